"""Columns in and columns out, against a real broker and the clients that users have."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka import KafkaConsumer
from kafka import TopicPartition as KafkaPythonPartition

from appliance_client import Admin, Consumer, Producer, TopicPartition, aio
from appliance_client.arrow import read_arrow, read_arrow_batches
from appliance_client.errors import (
    BrokerError,
    BufferFullError,
    IllegalStateError,
    OptionError,
    RecordTooLargeError,
    SerializationError,
)
from tests.support.judge import running_broker
from tests.support.pasted import commands_of

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOT_NOW_MS = 1 << 40
"""About the year 2004."""
_numbers = count(1)

Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    how = {"group.initial.rebalance.delay.ms": 0}
    with running_broker(tmp_path_factory.mktemp("columns") / "data", how) as broker:
        yield broker.address


@pytest.fixture
def topic(address: str) -> str:
    """A topic of four partitions."""
    return create(address)


def create(address: str, partitions: int = 4, name: str | None = None, **configs: str) -> str:
    name = name or f"columns-{os.getpid()}-{next(_numbers)}"
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topic(name, partitions, configs={key.replace("_", "."): configs[key] for key in configs})
    return name


def send(address: str, topic: str, table: Any, *, options: dict[str, Any] | None = None, **how: Any) -> Any:
    with Producer(bootstrap_servers=address, **(options or {})) as producer:
        return producer.send_arrow(topic, table, **how).get(PATIENCE_S)


def table_of(rows: list[Row]) -> pa.Table:
    return pa.table(
        {
            "key": pa.array([row[0] for row in rows], pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.binary()),
            "timestamp": pa.array([row[2] for row in rows], pa.int64()),
            "headers": pa.array([[{"key": k, "value": v} for k, v in row[3]] for row in rows], HEADERS),
        }
    )


def rows_of(table: pa.Table) -> list[Row]:
    return [
        (
            row["key"],
            row["value"],
            int(row["timestamp"].timestamp() * 1000 + 0.5),
            [(each["key"], each["value"]) for each in row["headers"] or ()],
        )
        for row in table.sort_by([("partition", "ascending"), ("offset", "ascending")]).to_pylist()
    ]


def read_by_confluent(address: str, topic: str, wanted: int, partitions: int = 4) -> dict[int, list[Row]]:
    consumer = ConfluentConsumer({"bootstrap.servers": address, "group.id": "unused", "check.crcs": True})
    consumer.assign([ConfluentPartition(topic, each, 0) for each in range(partitions)])
    found: dict[int, list[Row]] = {each: [] for each in range(partitions)}
    deadline_s = time.monotonic() + PATIENCE_S
    while sum(map(len, found.values())) < wanted and time.monotonic() < deadline_s:
        for message in consumer.consume(10_000, 0.2):
            assert message.error() is None
            headers: Any = list(message.headers() or ())
            row = (message.key(), message.value(), message.timestamp()[1], headers)
            found[message.partition() or 0].append(row)
    consumer.close()
    return found


fields = st.none() | st.binary(max_size=40) | st.binary(min_size=60, max_size=300)
names = st.text(
    st.characters(exclude_characters="\0", codec="utf-8"), max_size=8
)  # librdkafka ends a name at a NUL
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=200)), max_size=3)
times = st.integers(0, 1_700_000_000_000)
tables = st.lists(st.tuples(fields, fields, times, headers), min_size=1, max_size=60)
HOW = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@HOW
@given(
    rows=tables, codec=st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]), batch=st.integers(1, 4000)
)
def test_other_clients_read_what_was_sent_as_columns(
    address: str, rows: list[Row], codec: str, batch: int
) -> None:
    topic = create(address, 1)
    sent = send(
        address, topic, table_of(rows), options={"compression_type": codec, "batch_size": batch}, partition=0
    )
    assert [(each.base_offset, each.count) for each in sent.values()] == [(0, len(rows))]
    assert read_by_confluent(address, topic, len(rows), 1)[0] == rows
    consumer = KafkaConsumer(bootstrap_servers=address, group_id=None)
    consumer.assign([KafkaPythonPartition(topic, 0)])
    consumer.seek_to_beginning()
    found: list[Row] = []
    deadline_s = time.monotonic() + PATIENCE_S
    while len(found) < len(rows) and time.monotonic() < deadline_s:
        for records in consumer.poll(500).values():
            found += [(r.key, r.value, r.timestamp, [tuple(h) for h in r.headers]) for r in records]
    consumer.close()
    assert found == rows


@HOW
@given(rows=tables, codec=st.sampled_from(["none", "gzip", "snappy", "lz4", "zstd"]))
def test_columns_are_what_another_client_has_written(address: str, rows: list[Row], codec: str) -> None:
    topic = create(address, 1)
    producer = ConfluentProducer({"bootstrap.servers": address, "compression.type": codec})
    for key, value, time_ms, listed in rows:
        headers: Any = listed
        producer.produce(topic, value, key, 0, timestamp=time_ms or 1, headers=headers)
    assert producer.flush(PATIENCE_S) == 0
    expected = [(key, value, time_ms or 1, listed) for key, value, time_ms, listed in rows]
    found = read_arrow(topic, bootstrap_servers=address)
    found.validate(full=True)
    assert rows_of(found) == expected
    assert found["offset"].to_pylist() == list(range(len(rows)))
    assert set(found["timestamp_type"].to_pylist()) == {0}


def test_a_key_goes_where_a_single_record_with_it_goes(address: str, topic: str) -> None:
    keys = [b"%d" % number * (number % 9) for number in range(2000)]
    one_by_one = create(address)
    with Producer(bootstrap_servers=address) as producer:
        futures = [producer.send(one_by_one, b"", key) for key in keys]
        wanted = {key: future.get(PATIENCE_S).partition for key, future in zip(keys, futures, strict=True)}
        producer.send_arrow(topic, pa.table({"key": keys}), value=None).get(PATIENCE_S)
    found = read_arrow(topic, bootstrap_servers=address)
    assert dict(zip(found["key"].to_pylist(), found["partition"].to_pylist(), strict=True)) == wanted
    assert len(set(wanted.values())) == 4


def test_the_rows_of_a_partition_keep_their_order_also_between_single_records(
    address: str, topic: str
) -> None:
    with Producer(bootstrap_servers=address, linger_ms=50) as producer:
        for turn in range(5):
            producer.send(topic, b"single %d" % turn, partition=1)
            rows = [b"%d %d" % (turn, number) for number in range(300)]
            producer.send_arrow(topic, pa.table({"value": rows}), partition=1)
        producer.flush(PATIENCE_S)
    found = read_arrow(topic, bootstrap_servers=address)["value"].to_pylist()
    wanted = []
    for turn in range(5):
        wanted += [b"single %d" % turn, *(b"%d %d" % (turn, number) for number in range(300))]
    assert found == wanted


def test_the_result_names_the_offsets_of_every_partition(address: str, topic: str) -> None:
    table = pa.table({"key": [str(n) for n in range(5000)], "value": [str(n) * 20 for n in range(5000)]})
    with Producer(bootstrap_servers=address, batch_size=2000) as producer:
        first = producer.send_arrow(topic, table).get(PATIENCE_S)
        second = producer.send_arrow(topic, table).get(PATIENCE_S)
    assert set(first) == {TopicPartition(topic, each) for each in range(4)}
    for place, delivered in first.items():
        assert delivered.base_offset == 0
        assert second[place].base_offset == delivered.count
        assert sum(records for _, records in delivered.batches) == delivered.count
        assert len(delivered.batches) > 10
    assert sum(each.count for each in first.values()) == 5000


def test_rows_without_keys_fill_one_partition_after_the_other(address: str, topic: str) -> None:
    send(address, topic, pa.table({"value": ["x" * 100] * 20_000}))
    found = read_arrow(topic, bootstrap_servers=address)
    counts = dict(found["partition"].value_counts().to_pylist()[n].values() for n in range(4))
    assert set(counts) == {0, 1, 2, 3}
    assert sum(counts.values()) == 20_000


@pytest.mark.parametrize("partitioner", ["round-robin", "random", lambda _t, key, n, _a: len(key) % n])
def test_every_partitioner_places_rows(address: str, topic: str, partitioner: Any) -> None:
    rows = {"key": ["k" * (n % 7) for n in range(400)], "value": ["v"] * 400}
    send(address, topic, pa.table(rows), options={"partitioner": partitioner})
    found = read_arrow(topic, bootstrap_servers=address)
    assert found.num_rows == 400
    assert set(found["partition"].to_pylist()) == {0, 1, 2, 3}
    if callable(partitioner):
        assert all(len(r["key"]) % 4 == r["partition"] for r in found.to_pylist())


def test_a_column_can_say_the_partition(address: str, topic: str) -> None:
    table = pa.table({"value": [str(n) for n in range(100)], "where": [n % 3 for n in range(100)]})
    send(address, topic, table, partition="where")
    found = read_arrow(topic, bootstrap_servers=address).to_pylist()
    assert all(int(row["value"]) % 3 == row["partition"] for row in found)
    assert len(found) == 100


TEXT = ["a", None, "", "ä" * 50, "a"]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(TEXT, pa.string()),
        pa.array(TEXT, pa.large_string()),
        pa.array(TEXT, pa.string_view()),
        pa.array([None if each is None else each.encode() for each in TEXT], pa.binary()),
        pa.array([None if each is None else each.encode() for each in TEXT], pa.large_binary()),
        pa.array([None if each is None else each.encode() for each in TEXT], pa.binary_view()),
        pa.array(TEXT, pa.string()).dictionary_encode(),
        pa.array(["?", *TEXT, "?"], pa.string()).slice(1, 5),
        pa.chunked_array([TEXT[:1], [], TEXT[1:4], TEXT[4:]], pa.string()),
        pa.chunked_array([pa.array(TEXT[:2]).dictionary_encode(), pa.array(TEXT[2:]).dictionary_encode()]),
    ],
    ids=str,
)
def test_text_and_bytes_of_every_kind_are_sent(address: str, column: Any) -> None:
    topic = create(address, 1)
    send(address, topic, pa.table({"value": column, "key": column}))
    found = read_arrow(topic, bootstrap_servers=address).to_pylist()
    wanted = [None if each is None else each.encode() for each in TEXT]
    assert [row["value"] for row in found] == wanted
    assert [row["key"] for row in found] == wanted


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
def test_times_of_every_unit_become_milliseconds(address: str, unit: str, zone: str | None) -> None:
    topic = create(address, 1)
    at = datetime(2026, 11, 25, 12, 30, 5, tzinfo=UTC)
    stamps = (
        pa.array([at.timestamp() * 1000, None], pa.float64()).cast(pa.int64()).cast(pa.timestamp("ms", zone))
    )
    before_ms = int(time.time() * 1000)
    send(
        address, topic, pa.table({"value": ["x", "now"], "timestamp": stamps.cast(pa.timestamp(unit, zone))})
    )
    found = read_arrow(topic, bootstrap_servers=address)["timestamp"].cast(pa.int64()).to_pylist()
    assert found[0] == int(at.timestamp() * 1000)
    assert before_ms <= found[1] <= int(time.time() * 1000)


def test_headers_may_be_maps_or_large_lists_or_null(address: str) -> None:
    topic = create(address, 1)
    maps = pa.array([[("a", b"1"), ("b", None)], None, []], pa.map_(pa.string(), pa.binary()))
    entry = pa.struct([("name", pa.large_string()), ("content", pa.string())])
    large = pa.array([[{"name": "a", "content": "1"}], None, []], pa.large_list(entry))
    with Producer(bootstrap_servers=address) as producer:
        for column in (maps, large, large.slice(1)):
            producer.send_arrow(topic, pa.table({"value": ["x"] * len(column), "headers": column})).get(
                PATIENCE_S
            )
    found = read_arrow(topic, bootstrap_servers=address)["headers"].to_pylist()
    assert found[0] == [{"key": "a", "value": b"1"}, {"key": "b", "value": None}]
    assert found[3] == [{"key": "a", "value": b"1"}]
    assert [each or [] for each in found[1:3] + found[4:]] == [[]] * 6


@pytest.mark.parametrize(
    ("columns", "how", "says"),
    [
        ({"value": [1, 2]}, {}, "value: column 'value' is int64, and must be binary or text"),
        ({"other": ["x"]}, {}, "no column 'value'; name one of other"),
        ({"value": ["x"]}, {"key": "id"}, "key: the table has no column 'id'; it has value"),
        ({"value": ["x"], "timestamp": ["y"]}, {}, "timestamp: column 'timestamp' is string"),
        (
            {"value": ["x", "y"], "timestamp": [5, -7]},
            {},
            "row 1: timestamp: column 'timestamp' has a time before 1970",
        ),
        ({"value": ["x"], "headers": [["a"]]}, {}, "headers: column 'headers' is list"),
        ({"value": ["x", "y"], "where": [0, 4]}, {"partition": "where"}, "row 1: "),
        ({"value": ["x", "y"], "where": [-1, 4]}, {"partition": "where"}, "partitions 0 to 3, not -1"),
        (
            {"value": ["x", "y"], "where": [0, None]},
            {"partition": "where"},
            "row 1: partition: column 'where' has nulls",
        ),
        (
            {"value": ["x"], "where": pa.array([(1 << 64) - 1], pa.uint64())},
            {"partition": "where"},
            "column 'where' has a value that does not fit",
        ),
        ({"value": ["x"]}, {"partition": 9}, "partitions 0 to 3, not 9"),
        ({"value": ["x"]}, {"value": None}, "neither key nor value"),
        (
            {"value": ["x"], "headers": pa.array([[{"key": None, "value": b""}]], HEADERS)},
            {},
            "a header without a name",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_anything_is_sent(
    address: str, topic: str, columns: dict[str, Any], how: dict[str, Any], says: str
) -> None:
    with Producer(bootstrap_servers=address) as producer:
        with pytest.raises(SerializationError) as raised:
            producer.send_arrow(topic, pa.table(columns), **how)
        assert says in str(raised.value)
        producer.flush(PATIENCE_S)
    assert read_arrow(topic, bootstrap_servers=address).num_rows == 0


def test_a_row_that_is_too_large_is_named_and_nothing_is_sent(address: str, topic: str) -> None:
    values = ["x"] * 3000 + ["y" * 5000] + ["x"] * 5
    with Producer(bootstrap_servers=address, max_request_size=4000, batch_size=1000) as producer:
        with pytest.raises(RecordTooLargeError, match="row 3000 makes a record"):
            producer.send_arrow(topic, pa.table({"value": values}))
        producer.flush(PATIENCE_S)
    assert read_arrow(topic, bootstrap_servers=address).num_rows == 0


def test_more_than_buffer_memory_is_sent_in_turn(address: str, topic: str) -> None:
    table = pa.table({"value": [os.urandom(1000) for _ in range(3000)]})
    send(address, topic, table, options={"buffer_memory": 100_000})
    found = read_arrow(topic, bootstrap_servers=address)
    assert sorted(found["value"].to_pylist()) == sorted(table["value"].to_pylist())


def test_a_batch_that_the_topic_finds_too_large_becomes_smaller_ones(address: str) -> None:
    topic = create(address, 1, max_message_bytes="3000")
    values = [b"%04d" % n * 50 for n in range(200)]
    table = pa.table({"key": values, "value": values})
    with Producer(bootstrap_servers=address, batch_size=16_000) as producer:
        delivered = producer.send_arrow(topic, table).get(PATIENCE_S)[TopicPartition(topic, 0)]
    assert (delivered.base_offset, delivered.count) == (0, 200)
    found = read_arrow(topic, bootstrap_servers=address)
    assert found["value"].to_pylist() == values
    assert found["key"].to_pylist() == values


def test_rows_around_one_that_the_broker_refuses_are_delivered_soon(address: str, topic: str) -> None:
    table = pa.table({"value": ["a", "b" * 2_000_000, "c"]})
    with Producer(bootstrap_servers=address, max_request_size=4_000_000, batch_size=4_000_000) as producer:
        sent = producer.send_arrow(topic, table, partition=1)
        with pytest.raises(BrokerError, match="MESSAGE_TOO_LARGE"):
            sent.get(PATIENCE_S)
        (found,) = sent.delivered.values()
        assert found.count == 2
    read = read_arrow(topic, bootstrap_servers=address, columns=["value"])
    assert read["value"].to_pylist() == [b"a", b"c"]


def test_a_call_that_gets_no_room_says_so(address: str, topic: str) -> None:
    options = {"buffer_memory": 40_000, "max_block_ms": 300, "linger_ms": 0, "retries": 1000}
    absent = pa.table({"value": ["x" * 1000] * 200})
    with Producer(bootstrap_servers=address, **options) as producer:
        producer.send_arrow(topic, pa.table({"value": ["x"]})).get(PATIENCE_S)
        # Nobody takes anything any more: what was learnt of the topic leads to an address without a broker.
        producer._core.metadata.leader = lambda *_: None  # type: ignore[method-assign]
        with pytest.raises(BufferFullError):
            producer.send_arrow(topic, absent)
        producer.close(0)


def test_a_transaction_of_columns_is_seen_whole_or_not_at_all(address: str, topic: str) -> None:
    table = pa.table({"key": [str(n) for n in range(500)], "value": ["committed"] * 500})
    undone = table.set_column(1, "value", pa.array(["aborted"] * 500))
    with Producer(bootstrap_servers=address, transactional_id=topic, batch_size=1000) as producer:
        producer.init_transactions()
        for turn in range(3):
            producer.begin_transaction()
            producer.send_arrow(topic, undone)
            producer.flush(PATIENCE_S)
            producer.abort_transaction()
            producer.begin_transaction()
            future = producer.send_arrow(topic, table)
            producer.commit_transaction()
            assert sum(each.count for each in future.get(0).values()) == 500, turn
    committed = read_arrow(topic, bootstrap_servers=address, isolation_level="read_committed")
    assert committed["value"].value_counts().to_pylist() == [{"values": b"committed", "counts": 1500}]
    everything = read_arrow(topic, bootstrap_servers=address)
    assert everything.num_rows == 3000
    in_pieces = [
        each.num_rows
        for each in read_arrow_batches(
            topic, bootstrap_servers=address, isolation_level="read_committed", max_records=700
        )
    ]
    assert sum(in_pieces) == 700


def test_polls_by_record_and_by_column_give_each_record_once(address: str) -> None:
    topic = create(address, 1)
    send(address, topic, pa.table({"value": [str(n) for n in range(10_000)]}), options={"batch_size": 3000})
    found: list[int] = []
    place = TopicPartition(topic, 0)
    with Consumer(bootstrap_servers=address, max_poll_records=37) as consumer:
        consumer.assign([place])
        consumer.seek(place, 0)
        deadline_s = time.monotonic() + PATIENCE_S
        turn = 0
        while len(found) < 10_000 and time.monotonic() < deadline_s:
            turn += 1
            if turn % 2:
                found += [int(r.value) for records in consumer.poll(1000).values() for r in records]
            else:
                most = [1, 50, 333][turn % 3]
                table = consumer.poll_arrow(1000, most)
                assert table.num_rows <= most
                found += map(int, table["value"].to_pylist())
            assert consumer.position(place) == len(found)
    assert found == list(range(10_000))


def test_a_group_goes_on_behind_what_was_polled_as_columns(address: str, topic: str) -> None:
    send(address, topic, pa.table({"key": [str(n) for n in range(1000)], "value": ["v"] * 1000}))
    found: list[bytes] = []
    deadline_s = time.monotonic() + PATIENCE_S
    options: dict[str, Any] = {"auto_offset_reset": "earliest", "enable_auto_commit": False}
    while len(found) < 1000 and time.monotonic() < deadline_s:
        with Consumer(topic, bootstrap_servers=address, group_id=topic, **options) as consumer:
            found += consumer.poll_arrow(10_000, 400)["key"].to_pylist()
            consumer.commit()
    assert len(found) == len(set(found)) == 1000


def test_a_bounded_read_has_its_bounds(address: str) -> None:
    topic = create(address, 2)
    stamps = [1_700_000_000_000 + n * 1000 for n in range(100)]
    table = pa.table({"value": [str(n) for n in range(100)], "timestamp": stamps})
    with Producer(bootstrap_servers=address) as producer:
        for partition in (0, 1):
            producer.send_arrow(topic, table, partition=partition).get(PATIENCE_S)

    def values(**how: Any) -> list[int]:
        return sorted(map(int, read_arrow(topic, bootstrap_servers=address, **how)["value"].to_pylist()))

    assert values(partitions=[1]) == list(range(100))
    assert values(start=90, partitions=[0]) == list(range(90, 100))
    assert values(start=20, end=25) == sorted([20, 21, 22, 23, 24] * 2)
    assert values(start={0: 98, 1: 99}, end={0: 99}) == [98, 99]
    at = datetime.fromtimestamp(stamps[95] / 1000, UTC)
    assert values(start=at, partitions=[0]) == [95, 96, 97, 98, 99]
    assert values(end=at, partitions=[0]) == list(range(95))
    assert values(start="latest") == []
    with pytest.raises(OptionError, match="partitions 0 to 1, not 7"):
        values(partitions=[7])
    with pytest.raises(OptionError, match="joins no group"):
        values(group_id="g")
    chosen = read_arrow(topic, bootstrap_servers=address, columns=("offset", "value"), partitions=[0])
    assert chosen.schema.names == ["offset", "value"]
    with pytest.raises(OptionError, match="columns: each of topic"):
        values(columns=("valve",))
    with pytest.raises(OptionError, match="name one at least"):
        values(columns=())


def test_a_mistyped_topic_is_an_error_soon_and_is_not_created(address: str, topic: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(BrokerError, match=f"UNKNOWN_TOPIC_OR_PARTITION: topic {topic}x"):
        read_arrow(f"{topic}x", bootstrap_servers=address)
    assert time.monotonic() - began_s < 30
    with Admin(bootstrap_servers=address) as admin:
        assert f"{topic}x" not in admin.topics()


@pytest.mark.parametrize("names", [{"0": 5}, {9: 5}, {TopicPartition("t", 0): 5}])
def test_an_offset_of_what_is_no_partition_is_refused(address: str, topic: str, names: Any) -> None:
    for edge in ("start", "end"):
        with pytest.raises(OptionError, match=f"{edge} names .*, which is no partition of {topic}"):
            read_arrow(topic, bootstrap_servers=address, **{edge: names})


def test_what_is_read_can_be_sent_as_it_is(address: str, topic: str) -> None:
    rows: list[Row] = [
        (b"%d" % n, None if n % 5 == 0 else b"v" * n, 1000 + n, [("h", b"1")]) for n in range(200)
    ]
    send(address, topic, table_of(rows))
    copy = create(address)
    send(address, copy, read_arrow(topic, bootstrap_servers=address))
    assert rows_of(read_arrow(copy, bootstrap_servers=address)) == rows_of(
        read_arrow(topic, bootstrap_servers=address)
    )


def test_whoever_gives_an_arrow_stream_is_a_table(address: str, topic: str) -> None:
    class Frame:
        """What pandas, Polars and DuckDB have in common."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return pa.table({"value": ["x", "y"]}).__arrow_c_stream__(requested_schema)

    send(address, topic, Frame())
    assert sorted(read_arrow(topic, bootstrap_servers=address)["value"].to_pylist()) == [b"x", b"y"]
    with pytest.raises(SerializationError, match="list is no table"):
        send(address, topic, [1, 2])


def test_the_asyncio_face_sends_and_polls_columns(address: str, topic: str) -> None:
    async def play() -> list[int]:
        table = pa.table({"key": [str(n) for n in range(3000)], "value": [str(n) for n in range(3000)]})
        async with aio.Producer(bootstrap_servers=address, buffer_memory=60_000) as producer:
            sent = await (await producer.send_arrow(topic, table))
            assert sum(each.count for each in sent.values()) == 3000
        found: list[int] = []
        async with aio.Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, each) for each in range(4)])
            deadline_s = time.monotonic() + PATIENCE_S
            while len(found) < 3000 and time.monotonic() < deadline_s:
                found += map(int, (await consumer.poll_arrow(500))["value"].to_pylist())
        return found

    assert sorted(asyncio.run(play())) == list(range(3000))


def test_a_loop_goes_on_while_a_hundred_megabytes_become_columns(address: str) -> None:
    """Counted in the processor time of the loop's thread, so that a busy machine does not matter.

    Decoding takes 50 ms. What is left on the loop, about 10 ms, is to receive an answer of 64 MB.
    """
    topic = create(address, 1)
    rows, size = 100_000, 1_000
    values = pa.array([b"%d" % number + b"x" * size for number in range(1_000)] * (rows // 1_000))

    async def play() -> tuple[int, int, float]:
        longest_s = 0.0
        ended = False

        async def tick() -> None:
            nonlocal longest_s
            last_s = time.thread_time()
            has_ended = False
            while not has_ended:
                has_ended = ended
                await asyncio.sleep(0)
                now_s = time.thread_time()
                longest_s = max(longest_s, now_s - last_s)
                last_s = now_s

        how: dict[str, Any] = {"bootstrap_servers": address}
        async with aio.Producer(**how, batch_size=1_000_000, buffer_memory=1 << 28) as producer:
            await (await producer.send_arrow(topic, pa.table({"value": values})))
        read = polls = 0
        async with aio.Consumer(
            **how, auto_offset_reset="earliest", max_partition_fetch_bytes=64 << 20, fetch_max_bytes=64 << 20
        ) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.poll_arrow(PATIENCE_S * 1000, max_records=1)
            read = 1
            await asyncio.sleep(2)  # tens of megabytes are there
            ticking = asyncio.create_task(tick())
            await asyncio.sleep(0)
            while read < rows:
                table = await consumer.poll_arrow(PATIENCE_S * 1000)
                assert table["value"][0].as_py() == values[read].as_py()
                read += table.num_rows
                polls += 1
                assert table.num_rows
            ended = True
            await ticking
        return read, polls, longest_s

    read, polls, longest_s = asyncio.run(play())
    assert read == rows
    assert polls < 100, "tables were large"
    assert longest_s < 0.03


def test_a_poll_that_is_given_up_while_columns_are_decoded_loses_nothing(address: str) -> None:
    topic = create(address, 1)
    send(address, topic, pa.table({"value": [str(number) for number in range(50_000)]}))

    async def play() -> list[int]:
        found: list[int] = []
        async with aio.Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            deadline_s, turn = time.monotonic() + PATIENCE_S, 0
            while len(found) < 50_000 and time.monotonic() < deadline_s:
                polling = asyncio.create_task(consumer.poll_arrow(500, max_records=5_000))
                turn += 1
                if turn % 2:
                    for _ in range(turn % 8):
                        await asyncio.sleep(0)
                    polling.cancel()
                try:
                    found += map(int, (await polling)["value"].to_pylist())
                except asyncio.CancelledError:
                    continue
        return found

    assert asyncio.run(play()) == list(range(50_000))


def test_two_tasks_do_not_poll_columns_at_once(address: str) -> None:
    topic = create(address, 1)
    send(address, topic, pa.table({"value": [str(number) for number in range(20_000)]}))

    async def play() -> list[Any]:
        async with aio.Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            await consumer.poll_arrow(0, max_records=1)
            first = asyncio.create_task(consumer.poll_arrow(PATIENCE_S * 1000))
            await asyncio.sleep(0)
            refused = []
            while not first.done():
                await asyncio.sleep(0)
                if not first.done():
                    with pytest.raises(IllegalStateError):
                        await consumer.poll(0)
                    refused.append(True)
            return [len(refused) > 0, (await first).num_rows > 0]

    assert asyncio.run(play()) == [True, True]


BYTES_TYPES = {
    "string": pa.string(),
    "large_string": pa.large_string(),
    "string_view": pa.string_view(),
    "binary": pa.binary(),
    "large_binary": pa.large_binary(),
    "binary_view": pa.binary_view(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
    "dictionary_of_large": pa.dictionary(pa.int8(), pa.large_binary()),
}
PER_UNIT = {"s": 1 / 1000, "ms": 1, "us": 1000, "ns": 1_000_000}
texts = st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
"""Nulls as keys, and as values: tombstones."""


def column_of(fields: list[Any], kind: Any, cuts: list[int], before: int) -> Any:
    """A column of a type, in chunks, and those are slices of longer arrays."""
    bounds = sorted({0, len(fields), *(cut % (len(fields) + 1) for cut in cuts)})
    chunks = []
    for begin, end in pairwise(bounds):
        padded = ["?"] * before + fields[begin:end] + ["?"] * 2
        storage = kind.value_type if pa.types.is_dictionary(kind) else kind
        is_text = any(f(storage) for f in (pa.types.is_string, pa.types.is_large_string))
        if not is_text and not pa.types.is_string_view(storage):
            padded = [each if each is None else each.encode() for each in padded]
        array = pa.array(padded, storage)
        if pa.types.is_dictionary(kind):
            array = array.dictionary_encode().cast(kind)
        chunks.append(array.slice(before, end - begin))
    return pa.chunked_array(chunks, kind)


@settings(HOW, max_examples=25)
@given(
    rows=st.lists(
        st.tuples(texts, texts, st.none() | st.integers(0, 1 << 40), headers | st.none()), max_size=40
    ),
    types=st.tuples(*[st.sampled_from(sorted(BYTES_TYPES))] * 2),
    unit=st.sampled_from(sorted(PER_UNIT)),
    shape=st.tuples(st.lists(st.integers(0, 40), max_size=3), st.integers(0, 3)),
)
def test_columns_of_every_make_are_the_records_that_single_sends_make(
    address: str,
    rows: list[tuple[str | None, str | None, int | None, list[tuple[str, bytes | None]] | None]],
    types: tuple[str, str],
    unit: str,
    shape: tuple[list[int], int],
) -> None:
    as_columns, one_by_one = create(address, 3), create(address, 3)
    # A null of a time means now, which is another moment for each record: those are compared by their order alone.
    times_ms = [None if row[2] is None else row[2] // 1000 * 1000 for row in rows]
    scaled = [None if each is None else int(each * PER_UNIT[unit]) for each in times_ms]
    lists = [None if row[3] is None else [{"key": k, "value": v} for k, v in row[3]] for row in rows]
    table = pa.table(
        {
            "key": column_of([row[0] for row in rows], BYTES_TYPES[types[0]], *shape),
            "value": column_of([row[1] for row in rows], BYTES_TYPES[types[1]], *shape),
            "timestamp": pa.array(scaled, pa.timestamp(unit, "UTC")),
            "headers": pa.array(lists, HEADERS),
            "where": pa.array([number % 3 for number in range(len(rows))], pa.uint8()),
        }
    )
    with Producer(bootstrap_servers=address) as producer:
        producer.send_arrow(as_columns, table, partition="where").get(PATIENCE_S)
        for number, (key, value, _, listed) in enumerate(rows):
            producer.send(
                one_by_one,
                None if value is None else value.encode(),
                key=None if key is None else key.encode(),
                timestamp_ms=times_ms[number],
                headers=listed or [],
                partition=number % 3,
            )
        producer.flush(PATIENCE_S)
    found = [each_record(address, topic, len(rows)) for topic in (as_columns, one_by_one)]
    assert found[0] == found[1]
    read = [
        read_arrow(topic, bootstrap_servers=address).sort_by(
            [("partition", "ascending"), ("offset", "ascending")]
        )
        for topic in (as_columns, one_by_one)
    ]
    shared = ["partition", "offset", "key", "value", "headers"]
    assert read[0].select(shared).to_pylist() == read[1].select(shared).to_pylist()
    assert read[0].num_rows == len(rows)


def each_record(address: str, topic: str, wanted: int) -> list[tuple[Any, ...]]:
    """What the per-record consumer gives; a time of this year is "now"."""
    found: list[tuple[Any, ...]] = []
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition(topic, each) for each in range(3)])
        deadline_s = time.monotonic() + PATIENCE_S
        while len(found) < wanted and time.monotonic() < deadline_s:
            for records in consumer.poll(500).values():
                found += [
                    (
                        each.partition,
                        each.offset,
                        each.key,
                        each.value,
                        "now" if each.timestamp > NOT_NOW_MS else each.timestamp,
                        list(each.headers),
                    )
                    for each in records
                ]
    return sorted(found, key=lambda each: each[:2])


def test_an_empty_table_is_nothing_to_wait_for(address: str, topic: str) -> None:
    for kind in BYTES_TYPES.values():
        for table in (
            pa.table({"value": pa.array([], kind)}),
            pa.table({"value": pa.chunked_array([], kind)}),
            pa.table({"value": pa.chunked_array([pa.array([], kind)] * 2, kind)}),
        ):
            assert send(address, topic, table) == {}


def test_the_sixty_seconds_of_the_page_work_when_they_are_pasted(address: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "columns.md").read_text().partition("\n## pandas, Polars and DuckDB\n")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "APPLIANCE_BOOTSTRAP": address}
    printed = subprocess.run(
        [sys.executable, "-c", program.replace("localhost:9092", address)],
        check=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
    ).stdout
    assert all(f"'value': b'{said}'" in printed for said in ("hello", "hi", "good day"))
    outputs = []
    for command in commands_of(page):
        words = command.text.split()
        assert words.pop(0) == "appliance"
        done = subprocess.run(
            [sys.executable, "-m", "appliance", *words, "--bootstrap", address],
            check=False,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert len(outputs) == 3
    assert sorted(json.loads(line)["value"] for line in outputs[-1].splitlines()) == [
        "good day",
        "hello",
        "hi",
    ]
