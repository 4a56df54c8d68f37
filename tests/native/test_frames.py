"""pandas, Polars and DuckDB: their frames into a topic, and a topic into their frames, against a real broker.

librdkafka reads what was sent, so each round trip has a judge that knows nothing of columns.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from appliance_client import Admin, Consumer, Producer
from appliance_client.arrow import read_arrow, read_arrow_batches
from appliance_client.errors import SerializationError
from tests.native.test_arrow import Row, read_by_confluent, rows_of
from tests.support.judge import running_broker

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0
START = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
"""Half an hour before clocks go forward in Berlin."""
_numbers = count(1)


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    how = {"group.initial.rebalance.delay.ms": 0}
    with running_broker(tmp_path_factory.mktemp("frames") / "data", how) as broker:
        yield broker.address


@pytest.fixture
def topic(address: str) -> str:
    return create(address)


def create(address: str, partitions: int = 1, name: str | None = None) -> str:
    name = name or f"frames-{next(_numbers)}"
    with Admin(bootstrap_servers=address) as admin:
        # Times of the records are those of March: a pass of retention would delete them in the middle of a slow test.
        admin.create_topic(name, partitions, configs={"retention.ms": "-1"})
    return name


def send(address: str, topic: str, frame: Any, **how: Any) -> int:
    """How many rows were acknowledged."""
    with Producer(bootstrap_servers=address, batch_size=100_000) as producer:
        sent = producer.send_arrow(topic, frame, **how).get(PATIENCE_S)
    return sum(each.count for each in sent.values())


def ms_of(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def some_rows(number: int) -> list[Row]:
    """Records with nulls, empty fields, long fields, and headers of all kinds."""
    chance = random.Random(number)
    rows: list[Row] = []
    for index in range(number):
        key = chance.choice([None, b"", b"k%d" % (index % 50), b"key " * 30])
        value = chance.choice([None, b"", b"v%d" % index, chance.randbytes(chance.randint(1, 300))])
        listed: list[tuple[str, bytes | None]] = [
            (chance.choice(["", "name", "n\u00e4me"]), chance.choice([None, b"", b"\xff\x00", b"x" * 100]))
            for _ in range(chance.choice([0, 0, 1, 3]))
        ]
        rows.append((key, value, ms_of(START + timedelta(seconds=7 * index)), listed))
    return rows


# ── the same rows in each library ────────────────────────────────────────────────────────────────────────


def arrow_of(rows: list[Row], zone: str = "UTC") -> pa.Table:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    lists = [[{"key": name, "value": value} for name, value in row[3]] or None for row in rows]
    return pa.table(
        {
            "key": pa.array([row[0] for row in rows], pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.binary()),
            "timestamp": pa.array([row[2] for row in rows], pa.timestamp("ms", zone)),
            "headers": pa.array(lists, kind),
        }
    )


def pandas_of(rows: list[Row]) -> pd.DataFrame:
    """As a program makes it, of lists: columns of Python objects, and a zone that has summer time."""
    times = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=row[2]) for row in rows]
    return pd.DataFrame(
        {
            "key": [row[0] for row in rows],
            "value": [row[1] for row in rows],
            "timestamp": pd.to_datetime(pd.Series(times), utc=True).dt.tz_convert("Europe/Berlin"),
            "headers": [[{"key": k, "value": v} for k, v in row[3]] or None for row in rows],
            "of no use": [object() for _ in rows],
        }
    )


def polars_of(rows: list[Row]) -> pl.DataFrame:
    """In several chunks, as `concat` leaves them."""
    times = [datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=row[2]) for row in rows]
    schema = {
        "key": pl.Binary,
        "value": pl.Binary,
        "timestamp": pl.Datetime("us", "Asia/Tokyo"),
        "headers": pl.List(pl.Struct({"key": pl.String, "value": pl.Binary})),
    }
    columns = {
        "key": [row[0] for row in rows],
        "value": [row[1] for row in rows],
        "timestamp": [at.astimezone(ZoneInfo("Asia/Tokyo")) for at in times],
        "headers": [[{"key": k, "value": v} for k, v in row[3]] or None for row in rows],
    }
    whole = pl.DataFrame(columns, schema=schema)
    third = len(rows) // 3
    made = pl.concat([whole[:third], whole[third : 2 * third], whole[2 * third :]], rechunk=False)
    assert not rows or made.n_chunks() > 1
    return made


def duckdb_of(rows: list[Row]) -> duckdb.DuckDBPyRelation:
    """A query over a table of the database's own."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'America/New_York'")
    given = arrow_of(rows)
    connection.register("given", given)
    connection.execute("CREATE TABLE events AS SELECT row_number() OVER () AS n, * FROM given")
    return connection.sql("SELECT key, value, timestamp, headers FROM events ORDER BY n")


MAKERS: dict[str, Callable[[list[Row]], Any]] = {
    "pandas": pandas_of,
    "polars": polars_of,
    "duckdb": duckdb_of,
}


def rows_of_pandas(found: pa.Table) -> list[Row]:
    frame = found.to_pandas().sort_values(["partition", "offset"])
    assert str(frame["timestamp"].dtype) == "datetime64[ms, UTC]"
    return [
        (
            key,
            value,
            ms_of(at.to_pydatetime()),
            [] if listed is None else [(each["key"], each["value"]) for each in listed],
        )
        for key, value, at, listed in zip(
            frame["key"], frame["value"], frame["timestamp"], frame["headers"], strict=True
        )
    ]


def rows_of_polars(found: pa.Table) -> list[Row]:
    frame = pl.from_arrow(found)
    assert isinstance(frame, pl.DataFrame)
    assert frame.schema["timestamp"] == pl.Datetime("ms", "UTC")
    rows = frame.sort("partition", "offset").select("key", "value", "timestamp", "headers").rows()
    return [
        (key, value, ms_of(at), [(each["key"], each["value"]) for each in listed or ()])
        for key, value, at, listed in rows
    ]


def rows_of_duckdb(found: pa.Table) -> list[Row]:
    connection = duckdb.connect()
    connection.register("found", found)
    query = (
        "SELECT key, value, epoch_ms(timestamp), headers FROM found"
        ' WHERE topic IS NOT NULL ORDER BY partition, "offset"'
    )
    return [
        (key, value, at_ms, [(each["key"], each["value"]) for each in listed or ()])
        for key, value, at_ms, listed in connection.execute(query).fetchall()
    ]


READERS: dict[str, Callable[[pa.Table], list[Row]]] = {
    "pandas": rows_of_pandas,
    "polars": rows_of_polars,
    "duckdb": rows_of_duckdb,
}
LIBRARIES = sorted(MAKERS)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_frame_becomes_the_records_that_another_client_reads(
    address: str, topic: str, library: str
) -> None:
    rows = some_rows(2_000)
    assert send(address, topic, MAKERS[library](rows)) == len(rows)
    assert read_by_confluent(address, topic, len(rows), 1)[0] == rows


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_topic_becomes_a_frame(address: str, topic: str, library: str) -> None:
    rows = some_rows(2_000)
    send(address, topic, arrow_of(rows))
    assert READERS[library](read_arrow(topic, bootstrap_servers=address)) == rows


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_topic_goes_through_a_frame_into_another_topic(address: str, topic: str, library: str) -> None:
    """What `read_arrow` gives, the library holds, and `send_arrow` takes it from there without a cast."""
    rows = some_rows(1_000)
    send(address, topic, arrow_of(rows))
    found: Any = read_arrow(topic, bootstrap_servers=address)
    connection = duckdb.connect()
    connection.register("found", found)
    through: dict[str, Callable[[], Any]] = {
        "pandas": found.to_pandas,
        "polars": lambda: pl.from_arrow(found),
        "duckdb": lambda: connection.sql('SELECT * FROM found ORDER BY partition, "offset"'),
    }
    copy = create(address)
    assert send(address, copy, through[library](), partition=None) == len(rows)
    assert rows_of(read_arrow(copy, bootstrap_servers=address)) == rows


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_frame_without_rows_is_nothing_to_wait_for(address: str, topic: str, library: str) -> None:
    assert send(address, topic, MAKERS[library]([])) == 0
    assert READERS[library](read_arrow(topic, bootstrap_servers=address)) == []


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_frame_of_tombstones_keeps_its_nulls(address: str, topic: str, library: str) -> None:
    """A column of nothing but nulls has no type of its own in pandas."""
    rows: list[Row] = [(b"k%d" % index, None, ms_of(START), []) for index in range(5)]
    send(address, topic, MAKERS[library](rows))
    assert read_by_confluent(address, topic, 5, 1)[0] == rows


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_group_polls_frames_and_goes_on_where_it_came_to(address: str, topic: str, library: str) -> None:
    rows = some_rows(900)
    send(address, topic, MAKERS[library](rows))
    found: list[Row] = []
    while len(found) < len(rows):
        with Consumer(
            topic, bootstrap_servers=address, group_id=topic, auto_offset_reset="earliest"
        ) as consumer:
            table = consumer.poll_arrow(PATIENCE_S * 1000, 400)
            assert 0 < table.num_rows <= 400
            found += READERS[library](table)
            consumer.commit()
    assert found == rows


def test_keys_of_a_frame_go_where_single_records_go(address: str) -> None:
    one_by_one, at_once = create(address, 8), create(address, 8)
    keys = [f"key {number}" for number in range(500)]
    with Producer(bootstrap_servers=address) as producer:
        for key in keys:
            producer.send(one_by_one, b"", key.encode())
        producer.flush(PATIENCE_S)
    send(address, at_once, pl.DataFrame({"key": keys, "value": [""] * 500}))
    places = [
        dict(zip(found["key"].to_pylist(), found["partition"].to_pylist(), strict=True))
        for found in (read_arrow(each, bootstrap_servers=address) for each in (one_by_one, at_once))
    ]
    assert places[0] == places[1]
    assert len(set(places[0].values())) == 8


# ── what each library has of its own ─────────────────────────────────────────────────────────────────────


def values_of(address: str, topic: str) -> list[bytes | None]:
    found = read_arrow(topic, bootstrap_servers=address, columns=("value",))
    return found["value"].to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["a", None, "\u00e4", "a"]),
        pd.Series(["a", None, "\u00e4", "a"], dtype=object),
        pd.Series(["a", float("nan"), "\u00e4", "a"], dtype="string"),
        pd.Series(["a", None, "\u00e4", "a"], dtype="category"),
        pd.Series(["a", None, "\u00e4", "a"], dtype=pd.ArrowDtype(pa.string())),
        pd.Series(["a", None, "\u00e4", "a"], dtype=pd.ArrowDtype(pa.large_string())),
        pd.Series([b"a", None, "\u00e4".encode(), b"a"], dtype=pd.ArrowDtype(pa.large_binary())),
        pd.Series([b"a", float("nan"), "\u00e4".encode(), b"a"], dtype=object),
    ],
    ids=lambda column: str(column.dtype),
)
def test_text_of_pandas_is_sent_whatever_its_dtype(address: str, topic: str, column: pd.Series) -> None:
    send(address, topic, pd.DataFrame({"value": column}))
    assert values_of(address, topic) == [b"a", None, "\u00e4".encode(), b"a"]


def test_the_index_of_pandas_is_a_column_where_it_has_a_name(address: str, topic: str) -> None:
    frame = pd.DataFrame({"value": ["x", "y"]}, index=pd.Index(["a", "b"], name="key"))
    send(address, topic, frame)
    send(address, topic, frame, key=None)
    found = read_arrow(topic, bootstrap_servers=address)
    assert found["key"].to_pylist() == [b"a", b"b", None, None]


def test_a_column_of_pandas_without_any_value_is_null_whatever_its_dtype(address: str, topic: str) -> None:
    frame = pd.DataFrame({"key": ["a", "b"], "value": float("nan"), "headers": float("nan")})
    send(address, topic, frame)
    assert values_of(address, topic) == [None, None]


def test_a_class_derived_from_a_pandas_frame_is_one(address: str, topic: str) -> None:
    class Frame(pd.DataFrame):  # type: ignore[misc]
        """As geopandas has."""

    send(address, topic, Frame({"value": ["x"], "other": [object()]}))
    assert values_of(address, topic) == [b"x"]


def test_times_of_pandas_may_miss_and_need_no_zone(address: str, topic: str) -> None:
    stamps = pd.to_datetime(pd.Series(["2026-01-02 03:04:05.678", None]))
    before_ms = ms_of(datetime.now(UTC))
    send(address, topic, pd.DataFrame({"value": ["x", "now"], "timestamp": stamps}))
    found = read_arrow(topic, bootstrap_servers=address)["timestamp"].cast(pa.int64()).to_pylist()
    assert found[0] == ms_of(datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC))
    assert before_ms <= found[1] <= ms_of(datetime.now(UTC))


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "\u00e4"]), pl.String, pl.Binary], ids=str)
def test_text_of_polars_is_sent_whatever_its_type(address: str, topic: str, kind: Any) -> None:
    parts = [pl.Series("value", ["a", None], pl.String), pl.Series("value", ["\u00e4", "a"], pl.String)]
    frame = pl.concat([part.cast(kind).to_frame() for part in parts], rechunk=False)
    send(address, topic, frame)
    assert values_of(address, topic) == [b"a", None, "\u00e4".encode(), b"a"]


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_times_of_polars_are_sent_in_every_unit(address: str, topic: str, unit: Any) -> None:
    at = datetime(2026, 7, 1, 12, 0, 0, 123_000)
    frame = pl.DataFrame({"value": ["x"], "timestamp": pl.Series([at], dtype=pl.Datetime(unit))})
    send(address, topic, frame)
    found = read_arrow(topic, bootstrap_servers=address)["timestamp"].cast(pa.int64()).to_pylist()
    assert found == [ms_of(at.replace(tzinfo=UTC))]


def test_a_column_of_polars_that_repeats_one_text_is_sent_without_its_size_in_memory_at_once(
    address: str, topic: str
) -> None:
    """30,000 rows that share 10 KB, and are 300 MB of records: `buffer.memory` bounds what is encoded of them."""
    frame = pl.DataFrame({"key": [f"{number}" for number in range(30_000)]}).with_columns(
        value=pl.lit("x" * 10_000)
    )
    program = f"""
import resource, sys
import polars as pl
from appliance_client import Producer
frame = pl.DataFrame({{"key": [f"{{n}}" for n in range(30_000)]}}).with_columns(value=pl.lit("x" * 10_000))
with Producer(bootstrap_servers={address!r}, batch_size=200_000, compression_type="zstd") as producer:
    producer.send_arrow({topic!r}, frame[:10]).get(60)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    producer.send_arrow({topic!r}, frame).get(120)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=ROOT
    )
    assert int(done.stdout) < 150_000, "KiB"
    found = read_arrow(topic, bootstrap_servers=address, columns=("key",), start=10)
    assert found["key"].to_pylist() == [key.encode() for key in frame["key"]]


def test_types_that_only_duckdb_has_are_sent(address: str) -> None:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'Asia/Kathmandu'")
    query = """
        SELECT n::VARCHAR AS key, CASE n WHEN 2 THEN NULL ELSE 'x' || n END AS value,
               MAP {'trace': encode('id ' || n)} AS headers,
               TIMESTAMPTZ '2026-03-29 01:00:00+00' + n * INTERVAL 1 HOUR AS timestamp
        FROM range(5) AS numbers(n) ORDER BY n
    """
    topic = create(address)
    send(address, topic, connection.sql(query))
    found = read_by_confluent(address, topic, 5, 1)[0]
    at = datetime(2026, 3, 29, 1, tzinfo=UTC)
    assert found == [
        (
            b"%d" % number,
            None if number == 2 else b"x%d" % number,
            ms_of(at + timedelta(hours=number)),
            [("trace", b"id %d" % number)],
        )
        for number in range(5)
    ]
    for expression, wanted in (
        ("'u'::ENUM('u', 'v')", b"u"),
        ("'{\"a\": 1}'::JSON", b'{"a": 1}'),
        ("'\\xAA\\x00'::BLOB", b"\xaa\x00"),
        ("'00000000-0000-0000-0000-000000000007'::UUID", b"00000000-0000-0000-0000-000000000007"),
    ):
        topic = create(address)
        send(address, topic, connection.sql(f"SELECT {expression} AS value FROM range(3)"))
        assert values_of(address, topic) == [wanted] * 3, expression
    connection.execute("SET arrow_lossless_conversion = true")
    topic = create(address)
    send(address, topic, connection.sql("SELECT '{\"a\": 1}'::JSON AS value"))
    assert values_of(address, topic) == [b'{"a": 1}']


def test_duckdb_asks_a_topic_and_sends_the_answer(address: str, topic: str) -> None:
    rows = [(f"user {n % 7}", str(n)) for n in range(1_000)]
    send(address, topic, pd.DataFrame(rows, columns=["key", "value"]))
    found = read_arrow(topic, bootstrap_servers=address, columns=("key", "value"))
    connection = duckdb.connect()
    connection.register("found", found)
    answer = connection.sql(
        "SELECT decode(key) AS key, sum(decode(value)::INT)::VARCHAR AS value FROM found GROUP BY key"
    )
    totals = create(address)
    assert send(address, totals, answer) == 7
    table = read_arrow(totals, bootstrap_servers=address)
    wanted = {f"user {k}".encode(): str(sum(range(k, 1_000, 7))).encode() for k in range(7)}
    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == wanted


def test_a_long_answer_of_duckdb_is_sent_in_record_batches(address: str, topic: str) -> None:
    """Each call holds one batch: for answers that do not fit into memory."""
    reader = duckdb.sql("SELECT n::VARCHAR AS value FROM range(10000) AS numbers(n)").to_arrow_reader(3_000)
    with Producer(bootstrap_servers=address) as producer:
        for batch in reader:
            producer.send_arrow(topic, batch)
        producer.flush(PATIENCE_S)
    assert values_of(address, topic) == [b"%d" % number for number in range(10_000)]


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: pd.DataFrame({"value": ["x", 5]}), "the data frame cannot be sent: .*value"),
        (lambda: pd.DataFrame({"value": [1, 2]}), "value: column 'value' is int64, and must be binary or"),
        (lambda: pd.DataFrame({"text": ["x"], "o": [object()]}), "no column 'value'; name one of text, o"),
        (lambda: pd.DataFrame([["x", "y"]], columns=["value", "value"]), "[Dd]uplicate column names"),
        (lambda: pd.Series(["x"], name="value"), "Series is no table"),
        (lambda: pl.Series("value", ["x"]), "Series is no table"),
        (lambda: pl.LazyFrame({"value": ["x"]}), r"LazyFrame is no table yet: call its collect\(\)"),
        (lambda: pl.DataFrame({"value": [1]}), "value: column 'value' is int64, and must be binary or text"),
        (
            lambda: pl.DataFrame({"value": pl.Series([object()], dtype=pl.Object)}),
            "column 'value' has Python objects",
        ),
        (
            lambda: pl.DataFrame({"value": ["x"], "timestamp": [datetime(2026, 1, 1).date()]}),
            "timestamp: column 'timestamp' is date32",
        ),
        (duckdb.connect, r"DuckDBPyConnection is no table: call its to_arrow_table\(\)"),
        (lambda: duckdb.sql("SELECT 1.5 AS value"), "value: column 'value' is decimal"),
        (lambda: {"value": ["x"]}, "dict is no table: give an Arrow table"),
        (lambda: "value", "str is no table"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_name(
    address: str, topic: str, make: Callable[[], Any], says: str
) -> None:
    with pytest.raises(SerializationError, match=says):
        send(address, topic, make())
    assert read_arrow(topic, bootstrap_servers=address).num_rows == 0


# ── the page, and many rows ──────────────────────────────────────────────────────────────────────────────


def test_the_examples_of_the_page_work_when_they_are_pasted(address: str, tmp_path: Path) -> None:
    """One after the other, as a reader has them, whose broker makes the topics: each says below what it prints."""
    page = (ROOT / "docs" / "columns.md").read_text().partition("\n## pandas, Polars and DuckDB\n")[2]
    page = page.partition("\n## Command line\n")[0]
    programs = re.findall(
        r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", page, re.MULTILINE | re.DOTALL
    )
    assert [each for each in ("pandas", "polars", "duckdb") if any(each in text for text, _ in programs)] == [
        "pandas",
        "polars",
        "duckdb",
    ]
    for program, printed in programs:
        done = subprocess.run(
            [sys.executable, "-c", program.replace("localhost:9092", address)],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        )
        assert done.returncode == 0, done.stderr
        assert printed, program
        assert [line.split() for line in done.stdout.splitlines()] == [
            line.split() for line in printed.splitlines()
        ]


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_millions_of_rows_go_in_and_out(address: str, library: str) -> None:
    rows = 3_000_000
    topic = create(address, 4)
    numbers = pl.DataFrame({"n": range(rows)})
    text = pl.col("n").cast(pl.String)
    begin = pl.lit(START).cast(pl.Datetime("ms", "UTC"))
    made = numbers.select(
        key=("user " + (pl.col("n") % 1_000).cast(pl.String)).cast(pl.Categorical),
        value=pl.when(pl.col("n") % 100 == 0).then(None).otherwise(text + "x" * 40),
        timestamp=begin + pl.duration(milliseconds=pl.col("n")),
    )
    connection = duckdb.connect()
    connection.register("made", made.to_arrow())
    frames: dict[str, Callable[[], Any]] = {
        "pandas": made.to_pandas,
        "polars": lambda: made,
        "duckdb": lambda: connection.sql("SELECT * FROM made"),
    }
    assert send(address, topic, frames[library]()) == rows
    counted, tombstones = 0, 0
    last: dict[tuple[Any, ...], int] = {}
    for batch in read_arrow_batches(topic, bootstrap_servers=address):
        found = pl.from_arrow(batch)
        assert isinstance(found, pl.DataFrame)
        counted += found.height
        tombstones += found["value"].null_count()
        places = found.select("partition", "key", n=(pl.col("timestamp") - begin).dt.total_milliseconds())
        for place, group in places.group_by("partition", "key", maintain_order=True):
            ordered = group["n"]
            assert ordered.is_sorted(), "a key keeps its order"
            assert ordered[0] > last.get(place, -1)
            last[place] = ordered[-1]
    assert (counted, tombstones) == (rows, rows // 100)
    assert len(last) == 1_000, "a key has one partition"
    whole = read_arrow(topic, bootstrap_servers=address, columns=("value",))
    connection.register("whole", whole)
    counts: dict[str, Callable[[], Any]] = {
        "pandas": lambda: whole.to_pandas()["value"].notna().sum(),
        "polars": lambda: pl.DataFrame(whole)["value"].drop_nulls().len(),
        "duckdb": lambda: connection.sql("SELECT count(value) FROM whole").fetchall()[0][0],
    }
    assert counts[library]() == rows - rows // 100
