"""Parquet and Arrow in and out of the command line, against a broker."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from appliance.cli.columns import COLUMNS, Sent, _rows_at_once, send_parquet, write_columns
from appliance.cli.connecting import BrokerError
from appliance.cli.output_file import UnfitFile
from appliance.cli.positions import parse_place
from appliance.cli.topic_client import ClientReader, ClientWriter
from appliance_client import Admin, Producer
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
        (("--to", "json", "-o", "/nowhere/at/all"), "/nowhere/at/all: No such file"),
        (("--to", "json", "-o", "x", "--group", "g"), "--output cannot be used with --follow or --group"),
        (("--to", "json", "-o", "x", "--follow"), "--output cannot be used with --follow or --group"),
        (("--to", "arrow", "--columns", "value", "--text", "key", "-o", "x"), "--columns leaves it out"),
        (("--to", "arrow", "--from", "99", "-o", "x"), "offset 99 is past its end, 0"),
        (("--to", "arrow", "-X", "isolation.level=dirty", "-o", "x"), "isolation.level is 'dirty'"),
    ],
)
def test_what_cannot_be_written_is_told(
    bootstrap: str, topic: str, arguments: tuple[str, ...], says: str
) -> None:
    done = consume(bootstrap, topic, *arguments)
    assert done.code != 0
    assert says in done.errors
    assert "Traceback" not in done.errors
    assert not Path("x").exists()


def sent(
    bootstrap: str, topic: str, *files: Path, value: str | None = None, partition: int | None = None
) -> Sent:
    """`produce --parquet` without a process of its own."""
    mapping = {"key": None, "value": value, "timestamp": None, "headers": None}
    how = {"mapping": mapping, "partition": partition, "compression": "none", "acks": "all"}
    return send_parquet(bootstrap, topic, files, **how)  # type: ignore[arg-type]


def written(bootstrap: str, topic: str, path: Path, **how: Any) -> pa.Table:
    """What `consume --to parquet --output` writes, without a process of its own."""
    usual = {"place": parse_place("beginning"), "until": None, "partitions": (), "count": None, "text": ()}
    write_columns(bootstrap, topic, to="parquet", output=str(path), **{**usual, "columns": COLUMNS, **how})
    return pq.read_table(path)


def test_a_mistyped_topic_is_an_error_and_is_not_created(bootstrap: str, tmp_path: Path) -> None:
    with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION: topic mistyped"):
        written(bootstrap, "mistyped", tmp_path / "out", place=parse_place("-3"))
    assert list(tmp_path.iterdir()) == []
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert "mistyped" not in admin.topics()


def test_a_time_after_the_calendar_is_after_all_records(
    bootstrap: str, topic: str, people: Path, tmp_path: Path
) -> None:
    sent(bootstrap, topic, people, value="text")
    late = parse_place("@9999999999999999")
    assert written(bootstrap, topic, tmp_path / "out", place=late).num_rows == 0
    assert written(bootstrap, topic, tmp_path / "out", until=late).num_rows == 500


@pytest.mark.parametrize("to", ["parquet", "arrow"])
def test_what_a_failed_command_has_written_to_standard_output_does_not_look_complete(
    bootstrap: str, topic: str, to: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"value": [b"x" * 1000] * 5000 + [b"\xff"]}), path)
    sent(bootstrap, topic, path, partition=0)
    done = consume(bootstrap, topic, "--to", to, "--text", "value")
    assert done.code == 1
    assert f"--text: the value of {topic}-0@5000 is no text in UTF-8" in done.errors
    with pytest.raises((pa.ArrowInvalid, OSError)):
        _read(to, done.output)


def _read(kind: str, data: bytes) -> pa.Table:
    if kind == "parquet":
        return pq.read_table(pa.BufferReader(data))
    return pa.ipc.open_stream(data).read_all()


def test_many_batches_become_one_row_group(bootstrap: str, topic: str, people: Path, tmp_path: Path) -> None:
    for _ in range(4):
        sent(bootstrap, topic, people, value="text")
    written(bootstrap, topic, tmp_path / "out")
    found = pq.read_metadata(tmp_path / "out")
    assert (found.num_row_groups, found.num_rows) == (1, 2000)


ROWS = pa.table(
    {
        "key": pa.array([b"k", None, b"", b"\xff\x00"], pa.binary()),
        "value": pa.array([bytes(range(256)), b"v", None, b""], pa.binary()),
        "timestamp": pa.array([1, 2, 1_795_818_555_123, 4], pa.timestamp("ms", "UTC")),
        "headers": pa.array(
            [
                [{"key": "a", "value": b"\xff"}, {"key": "a", "value": None}],
                None,
                [],
                [{"key": "", "value": b""}],
            ],
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
    }
)


@pytest.mark.parametrize("by", ["nobody", "pandas", "DuckDB", "Polars"])
def test_a_topic_that_went_through_a_file_has_the_same_records(
    bootstrap: str, topic: str, by: str, tmp_path: Path
) -> None:
    first, second, copy = (tmp_path / f"{name}.parquet" for name in ("first", "second", "copy"))
    pq.write_table(ROWS, first)
    sent(bootstrap, topic, first, partition=0)
    written(bootstrap, topic, second)
    if by == "pandas":
        pd.read_parquet(second).to_parquet(copy)
    elif by == "DuckDB":
        duckdb.sql(f"COPY (SELECT * FROM '{second}') TO '{copy}'")
    elif by == "Polars":
        pl.read_parquet(second).write_parquet(copy)
    sent(bootstrap, topic, second if by == "nobody" else copy, partition=1)
    found = written(bootstrap, topic, first, partitions=(1,)).select(ROWS.schema.names).to_pylist()
    # A record has no list of headers that is empty, and none that is null.
    assert found == [{**row, "headers": row["headers"] or None} for row in ROWS.to_pylist()]


def test_a_wrong_row_is_named_by_its_place_in_the_file_and_the_rows_before_it_are_counted(
    bootstrap: str, topic: str, people: Path, tmp_path: Path
) -> None:
    path = tmp_path / "bad.parquet"
    times = [1] * 150_000 + [-5] + [1] * 9
    pq.write_table(pa.table({"text": ["x"] * len(times), "timestamp": times}), path)
    how = ("--value-column", "text", "--json")
    done = produce(bootstrap, topic, "--parquet", people, path, people, *how)
    assert done.code == 1
    assert "bad.parquet: row 150000: timestamp: column 'timestamp' has a time before 1970" in done.errors
    told = json.loads(done.output)
    assert (told["delivered"], told["failed"]) == (500 + 2 * (1 << 16), 0)
    assert "row 150000" in told["error"]
    assert f"{told['delivered']} rows were sent" in done.errors
    found = written(bootstrap, topic, tmp_path / "out", columns=["offset"])
    assert found.num_rows == told["delivered"]


def test_nothing_is_sent_where_the_columns_of_one_file_do_not_fit(
    bootstrap: str, topic: str, people: Path, tmp_path: Path
) -> None:
    path = tmp_path / "other.parquet"
    pq.write_table(pa.table({"text": [1, 2]}), path)
    with pytest.raises(UnfitFile, match=r"other\.parquet: value: column 'text' is int64"):
        sent(bootstrap, topic, people, path, value="text")
    assert written(bootstrap, topic, tmp_path / "out").num_rows == 0


def test_a_file_that_is_broken_in_the_middle_ends_the_command(
    bootstrap: str, topic: str, people: Path, tmp_path: Path
) -> None:
    path = tmp_path / "broken.parquet"
    rows = [random.Random(n).randbytes(50) for n in range(100_000)]
    pq.write_table(pa.table({"text": rows}), path, compression="zstd", row_group_size=50_000)
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4 : len(data) * 3 // 4 + 2000] = bytes(2000)
    path.write_bytes(data)
    found = sent(bootstrap, topic, path, people, value="text")
    assert isinstance(found.fault, UnfitFile)
    assert str(found.fault).startswith(f"{path}: ")
    assert found.rows == found.delivered < 100_000
    assert written(bootstrap, topic, tmp_path / "out", columns=["offset"]).num_rows == found.rows


def test_names_of_columns_that_are_no_text_are_told(bootstrap: str, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"value": ["x"], "strange": ["y"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"strange", b"str\xffnge"))
    with pytest.raises(UnfitFile, match=r"in\.parquet: .*can't decode byte 0xff"):
        sent(bootstrap, topic, path)


def test_records_that_the_broker_refuses_are_counted(bootstrap: str, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "large.parquet"
    pq.write_table(pa.table({"value": ["a", "b" * 2_000_000, "c"]}), path)
    found = sent(bootstrap, topic, path, partition=0)
    assert (found.delivered, found.rows) == (2, 3)
    assert "1 of 3 records were not acknowledged: MESSAGE_TOO_LARGE" in str(found.fault)
    assert written(bootstrap, topic, tmp_path / "out")["value"].to_pylist() == [b"a", b"c"]


def test_with_a_transactional_id_all_rows_are_seen_or_none(
    bootstrap: str, topic: str, people: Path, tmp_path: Path
) -> None:
    path, out = tmp_path / "bad.parquet", tmp_path / "out"
    pq.write_table(pa.table({"text": ["x"], "timestamp": [-5]}), path)
    how = ("--value-column", "text", "-X", "transactional.id=columns")
    done = produce(bootstrap, topic, "--parquet", people, path, *how)
    assert done.code == 1
    assert "the transaction was aborted" in done.errors
    assert written(bootstrap, topic, out).num_rows == 0
    dirty = ("-X", "isolation.level=read_uncommitted")
    consume(bootstrap, topic, "--to", "parquet", "-o", out, *dirty).succeeded()
    assert pq.read_table(out).num_rows == 500
    produce(bootstrap, topic, "--parquet", people, people, *how).succeeded()
    assert written(bootstrap, topic, out).num_rows == 1000


@pytest.mark.parametrize(
    ("row_bytes", "rows", "most"), [(10, 100_000, 1 << 11), (100_000, 100, 336), (1 << 26, 1, 1)]
)
def test_large_rows_are_read_few_at_a_time(row_bytes: int, rows: int, most: int, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    values = pa.array([bytes(row_bytes)] * rows)
    pq.write_table(pa.table({"value": values, "other": values}), path, use_dictionary=False)
    assert _rows_at_once(pq.read_metadata(path), ["value"]) == pytest.approx(most, rel=0.01)


def test_a_small_file_of_large_rows_does_not_fill_the_memory(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    """5 KB of Parquet, whose rows have 400 MB: a dictionary has their bytes once."""
    path = tmp_path / "rows.parquet"
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 20_000, pa.int32()), pa.array(["x" * 20_000]))
    pq.write_table(pa.table({"value": rows}), path, store_schema=False)
    program = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from appliance.cli.program import main\n"
        "code = main(sys.argv[1:])\n"
        "print(re.search(r'VmHWM:\\s*(\\d+) kB', Path('/proc/self/status').read_text())[1], code)\n"
    )
    arguments = ("produce", topic, "--parquet", path, "-z", "zstd", "--bootstrap", bootstrap)
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)], check=True, capture_output=True, text=True
    )
    most_kib, code = map(int, done.stdout.split())
    assert code == 0, done.stderr
    # 200 MB are the interpreter with its packages.
    assert most_kib < 600 << 10
    assert written(bootstrap, topic, tmp_path / "out", columns=["offset"]).num_rows == 20_000


def test_a_header_name_that_is_no_text_does_not_end_the_output(bootstrap: str, topic: str) -> None:
    table = pa.table({"value": ["x", "y"], "headers": [[{"key": b"\xff", "value": b"1"}], []]})
    with Producer(bootstrap_servers=bootstrap) as producer:
        producer.send_arrow(topic, table, partition=0).get(60)
    told = consume(bootstrap, topic, "--to", "json").succeeded().text.splitlines()
    rows = [json.loads(line) for line in told]
    assert [(row["value"], row["headers"]) for row in rows] == [("x", [["\ufffd", None]]), ("y", [])]
    # So do the commands that show and move dead letters, which move none whose headers they cannot read.
    with closing(ClientReader(bootstrap)) as reader:
        found = [each.record for each in reader.records({(topic, 0): 0}, {(topic, 0): 2})]
    assert [each.headers for each in found] == [(("\ufffd", None),), ()]
    writer = ClientWriter(bootstrap)
    with pytest.raises(BrokerError, match=f"cannot be copied to {topic}"):
        writer.send(topic, found[0].value, found[0].key, found[0].headers)


def test_bytes_that_are_no_text_are_told_and_leave_no_file(
    bootstrap: str, topic: str, tmp_path: Path
) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"value": [b"ok", b"\xff\xfe"]}), path)
    produce(bootstrap, topic, "--parquet", path, "-p", 1).succeeded()
    done = consume(bootstrap, topic, "--to", "parquet", "--text", "value", "-o", tmp_path / "out.parquet")
    assert done.code != 0
    assert f"--text: the value of {topic}-" in done.errors
    assert "@1 is no text in UTF-8" in done.errors
    assert [each.name for each in tmp_path.iterdir()] == ["in.parquet"]
