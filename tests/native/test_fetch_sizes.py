"""How much is fetched at a time, whose turn it is, and the memory that it is received into."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from appliance_client import Admin, Consumer, Producer, TopicPartition
from appliance_client.fetch_sizes import (
    COLUMNS_ANSWER_BYTES,
    COLUMNS_BYTES,
    COLUMNS_PARTITION_BYTES,
    answer_bytes,
    partition_bytes,
)
from appliance_client.options import ConsumerOptions, options_of
from appliance_client.spare_memory import PIECE_BYTES_MAX, PIECES_MAX, SpareMemory, detached
from tests.support.judge import running_broker

MIB = 1 << 20
PARTITIONS = 5
BATCHES = 20


def options(**given: object) -> ConsumerOptions:
    return options_of(ConsumerOptions, None, {"bootstrap_servers": "localhost:1", **given})


def test_tables_are_fetched_in_larger_pieces_that_stay_bounded_for_many_partitions() -> None:
    chosen = options()
    assert partition_bytes(chosen, 1, for_columns=False) == MIB
    assert partition_bytes(chosen, 1, for_columns=True) == COLUMNS_PARTITION_BYTES
    assert 16 * partition_bytes(chosen, 16, for_columns=True) <= COLUMNS_BYTES
    assert partition_bytes(chosen, 1000, for_columns=True) == MIB
    assert partition_bytes(chosen, 0, for_columns=True) == MIB


@pytest.mark.parametrize("name", ["max_partition_fetch_bytes", "max.partition.fetch.bytes"])
def test_the_option_for_a_partition_counts_for_tables_too(name: str) -> None:
    chosen = options(**{name: 1_000})
    assert partition_bytes(chosen, 1, for_columns=True) == 1_000


def test_an_answer_for_tables_fits_into_memory_that_is_used_again() -> None:
    assert answer_bytes(options(), for_columns=False) == 52_428_800
    assert answer_bytes(options(), for_columns=True) == COLUMNS_ANSWER_BYTES <= PIECE_BYTES_MAX
    assert answer_bytes(options(fetch_max_bytes=7), for_columns=True) == 7
    assert answer_bytes(options(max_partition_fetch_bytes=9_000_000), for_columns=True) == 9_000_000


def test_memory_is_used_again_when_no_view_of_it_is_left() -> None:
    memory = SpareMemory()
    first = memory.take(MIB)
    piece, part = first.obj, first[10:20]
    del first
    assert memory.take(MIB).obj is not piece  # a part of it is still seen
    array = np.frombuffer(part, np.uint8)
    del part
    assert memory.take(MIB).obj is not piece
    del array
    held = [memory.take(MIB) for _ in range(PIECES_MAX)]
    assert any(each.obj is piece for each in held)


def test_memory_that_is_seen_does_not_change() -> None:
    memory = SpareMemory()
    seen = []
    for number in range(3 * PIECES_MAX):
        taken = memory.take(MIB)
        taken[:] = bytes([number]) * MIB
        seen.append(taken[5:9])
    assert [bytes(each) for each in seen] == [bytes([number]) * 4 for number in range(3 * PIECES_MAX)]


def test_the_memory_that_is_kept_is_bounded() -> None:
    memory = SpareMemory()
    held = [memory.take(PIECE_BYTES_MAX) for _ in range(3 * PIECES_MAX)]
    pieces = {id(each.obj) for each in held}
    assert len(pieces) == 3 * PIECES_MAX
    kept = {id(each.obj) for each in held[-PIECES_MAX:]}
    del held
    again = [memory.take(MIB) for _ in range(PIECES_MAX)]
    assert {id(each.obj) for each in again} == kept
    large = memory.take(PIECE_BYTES_MAX + 1)
    assert len(large) == memoryview(large.obj).nbytes == PIECE_BYTES_MAX + 1


def test_small_pieces_give_way_to_larger_ones() -> None:
    memory = SpareMemory()
    for _ in range(PIECES_MAX):
        memory.take(10)
    held = [memory.take(10) for _ in range(PIECES_MAX)]
    del held
    large = memory.take(MIB)
    piece = large.obj
    del large
    assert memory.take(MIB).obj is piece


def test_little_of_a_piece_is_copied() -> None:
    taken = SpareMemory().take(MIB)
    assert detached(taken[: MIB // 2], MIB).obj is taken.obj
    little = detached(taken[:100], MIB)
    assert (len(little), type(little.obj)) == (100, bytes)


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The address of a broker, and a topic of five partitions with twenty batches each."""
    home: Path = tmp_path_factory.mktemp("sizes")
    with running_broker(home / "data") as broker:
        with Admin(bootstrap_servers=broker.address) as admin:
            admin.create_topic("turns", PARTITIONS)
        with Producer(bootstrap_servers=broker.address) as producer:
            for _ in range(BATCHES):
                for partition in range(PARTITIONS):
                    producer.send("turns", b"x" * 100, partition=partition)
                producer.flush()
        yield broker.address, "turns"


def test_no_partition_starves_where_an_answer_has_room_for_one_only(topic: tuple[str, str]) -> None:
    address, name = topic
    places = [TopicPartition(name, each) for each in range(PARTITIONS)]
    # Each answer holds one batch then, and would hold the same partition's as long as that one has any.
    with Consumer(bootstrap_servers=address, fetch_max_bytes=1, max_partition_fetch_bytes=1) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning()
        polls = 0
        while polls < PARTITIONS * BATCHES // 2:
            polls += bool(consumer.poll(1_000))
        come_to = [consumer.position(place) for place in places]
    assert min(come_to) >= BATCHES // 4, come_to
