"""Parquet and Arrow in and out of the command line, against a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.command import Outcome, appliance
from tests.support.judge import running_broker

_numbers = count(1)


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_broker(tmp_path_factory.mktemp("columns") / "data") as broker:
        yield broker.address


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = f"columns-{next(_numbers)}"
    appliance("topics", "create", name, "--partitions", 2, "--bootstrap", bootstrap).succeeded()
    return name


@pytest.fixture
def people(tmp_path: Path) -> Path:
    path = tmp_path / "people.parquet"
    table = pa.table({"id": [f"k{n}" for n in range(500)], "text": [f"person {n}" for n in range(500)]})
    pq.write_table(table, path, row_group_size=100)
    return path


def produce(bootstrap: str, topic: str, *arguments: object) -> Outcome:
    return appliance("produce", topic, *arguments, "--bootstrap", bootstrap)


def consume(bootstrap: str, topic: str, *arguments: object) -> Outcome:
    return appliance("consume", topic, *arguments, "--bootstrap", bootstrap)


def test_parquet_goes_in_and_comes_out(bootstrap: str, topic: str, people: Path, tmp_path: Path) -> None:
    mapping = ("--key-column", "id", "--value-column", "text", "-z", "lz4")
    told = produce(bootstrap, topic, "--parquet", people, *mapping, "--json").succeeded()
    assert json.loads(told.output)["delivered"] == 500
    path = tmp_path / "out.parquet"
    consume(bootstrap, topic, "--to", "parquet", "-o", path, "--text", "key,value").succeeded()
    found = pq.read_table(path)
    assert sorted(zip(found["key"].to_pylist(), found["value"].to_pylist(), strict=True)) == sorted(
        (f"k{n}", f"person {n}") for n in range(500)
    )
    assert set(found["topic"].to_pylist()) == {topic}
    assert set(found["partition"].to_pylist()) == {0, 1}
    assert list(tmp_path.glob("*.part")) == []


def test_arrow_goes_to_standard_output_or_a_file(
    bootstrap: str, topic: str, people: Path, tmp_path: Path
) -> None:
    produce(bootstrap, topic, "--parquet", people, "--value-column", "text", "-p", 1).succeeded()
    path = tmp_path / "out.arrow"
    chosen = ("--columns", "offset,value", "-n", 7, "--from", 90)
    consume(bootstrap, topic, "--to", "arrow", "-o", path, "-p", 1, *chosen).succeeded()
    found = pa.ipc.open_stream(path.read_bytes()).read_all()
    assert found.schema.names == ["offset", "value"]
    assert found["offset"].to_pylist() == list(range(90, 97))
    assert found["value"].to_pylist() == [b"person %d" % n for n in range(90, 97)]
    consume(bootstrap, topic, "--to", "arrow", "-o", path, "--from", "-3").succeeded()
    assert pa.ipc.open_stream(path.read_bytes()).read_all()["offset"].to_pylist() == [497, 498, 499]


def test_json_goes_to_a_file(bootstrap: str, topic: str, people: Path, tmp_path: Path) -> None:
    produce(bootstrap, topic, "--parquet", people, "--value-column", "text").succeeded()
    path = tmp_path / "out.json"
    assert consume(bootstrap, topic, "--to", "json", "-o", path).succeeded().output == b""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(row["value"] for row in rows) == sorted(f"person {n}" for n in range(500))


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--parquet",), "name files"),
        (("--parquet", "{file}"), "the table has no column 'value'; name one of id, text, or None"),
        (("--parquet", "{file}", "--value-column", "txt"), "no column 'txt'; it has id, text"),
        (("--parquet", "{file}", "--key", "k"), "--parquet cannot be used with"),
        (("{file}", "--value-column", "text"), "columns are named only with --parquet"),
        (("--parquet", __file__, "--value-column", "text"), "test_columns.py: Parquet magic bytes not found"),
    ],
)
def test_what_cannot_be_sent_is_told(
    bootstrap: str, topic: str, people: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = produce(bootstrap, topic, *(each.format(file=people) for each in arguments))
    assert done.code != 0
    assert says in done.errors
    assert "Traceback" not in done.errors
    assert consume(bootstrap, topic).succeeded().output == b""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("-o", "x"), "need --to"),
        (("--to", "parquet", "--follow", "-o", "x"), "cannot be used with"),
        (("--to", "arrow", "--columns", "offsets", "-o", "x"), "unknown column 'offsets'"),
        (("--to", "arrow", "-o", "/nowhere/at/all"), "/nowhere/at/all: No such file"),
    ],
)
def test_what_cannot_be_written_is_told(
    bootstrap: str, topic: str, arguments: tuple[str, ...], says: str
) -> None:
    done = consume(bootstrap, topic, *arguments)
    assert done.code != 0
    assert says in done.errors
    assert "Traceback" not in done.errors


def test_bytes_that_are_no_text_are_told_and_leave_no_file(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"value": [b"ok", b"\xff\xfe"]}), path)
    produce(bootstrap, topic, "--parquet", path).succeeded()
    done = consume(bootstrap, topic, "--to", "parquet", "--text", "value", "-o", tmp_path / "out.parquet")
    assert done.code != 0
    assert "--text: a value is no text" in done.errors
    assert [each.name for each in tmp_path.iterdir()] == ["in.parquet"]
