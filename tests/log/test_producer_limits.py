"""How many producer ids are remembered, which go first, and what a producer that was forgotten notices."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator

import pytest

from appliance.log.producer_limits import PRODUCER_LIMITS, UNLIMITED
from appliance.log.producer_state import AppendOrigin, Producers
from appliance.protocol.records.control import EndTransactionMarker

PER_LOG = 160
IN_PROCESS = 400
ENTRY_BYTES_MAX = 700
"""With its place in the dictionary and its last batch; 1.1 KiB when each kept a deque."""


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    PRODUCER_LIMITS.set(per_log=PER_LOG, in_process=IN_PROCESS)
    PRODUCER_LIMITS.recount(0)
    yield
    PRODUCER_LIMITS.set(per_log=UNLIMITED, in_process=UNLIMITED)


def add(producers: Producers, producer_id: int, offset: int, *, transactional: bool = False) -> None:
    producers.add_batch(
        producer_id,
        0,
        last_sequence=0,
        last_offset=offset,
        offset_delta=0,
        timestamp_ms=1 << 60,  # as a client says that wants to be remembered
        transactional=transactional,
    )


def ids(producers: Producers) -> set[int]:
    return {entry.producer_id for entry in producers.entries()}


def test_a_log_remembers_no_more_producers_than_it_may() -> None:
    producers = Producers()
    for number in range(10 * PER_LOG):
        add(producers, number, number)
        assert len(producers) <= PER_LOG
    assert PRODUCER_LIMITS.count == len(producers)
    assert len(producers) > PER_LOG // 2


def test_those_that_were_silent_the_longest_are_forgotten_first() -> None:
    producers = Producers()
    for number in range(PER_LOG):
        add(producers, number, number)
    add(producers, 3, PER_LOG)
    before = PRODUCER_LIMITS.forgotten
    add(producers, 1_000, PER_LOG + 1)
    assert {3, 1_000, PER_LOG - 1} <= ids(producers)
    assert not {0, 1, 2, 4} & ids(producers)
    assert PRODUCER_LIMITS.forgotten - before == PER_LOG // 16


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    producers = Producers()
    for number in range(PER_LOG):
        add(producers, number, number, transactional=True)
    for number in range(PER_LOG, 2 * PER_LOG):
        add(producers, number, number)
    assert set(range(PER_LOG)) <= ids(producers)
    producers.check()
    producers.add_marker(5, 0, marker=EndTransactionMarker(True, 0), offset=1_000, timestamp_ms=0)
    add(producers, 5_000, 1_001)
    assert 5 not in ids(producers)
    producers.check()


def test_all_logs_together_remember_no_more_than_they_may() -> None:
    logs = [Producers() for _ in range(10)]
    for number in range(2_000):
        add(logs[number % 10], number, number)
    assert sum(map(len, logs)) <= IN_PROCESS
    assert all(len(log) > 1 for log in logs)


def test_a_log_keeps_its_newest_producer_when_others_have_taken_all_room() -> None:
    greedy, modest = Producers(), Producers()
    PRODUCER_LIMITS.set(per_log=IN_PROCESS * 2, in_process=IN_PROCESS)
    for number in range(IN_PROCESS):
        add(greedy, number, number)
    add(modest, 1, 1)
    assert ids(modest) == {1}
    add(modest, 2, 2)
    assert ids(modest) == {2}


def test_a_forgotten_producer_goes_on_where_it_was() -> None:
    producers = Producers()
    for number in range(2 * PER_LOG):
        add(producers, number, number)
    assert 0 not in ids(producers)
    producers.check_batch(0, 0, first_sequence=1, transactional=False, origin=AppendOrigin.CLIENT)


def test_what_is_forgotten_by_age_counts_no_more() -> None:
    producers = Producers()
    for number in range(10):
        add(producers, number, number)
    producers.expire((1 << 60) + 1, expiration_ms=1)
    assert len(producers) == PRODUCER_LIMITS.count == 0


def test_a_producer_costs_half_a_kilobyte() -> None:
    PRODUCER_LIMITS.set(per_log=UNLIMITED, in_process=UNLIMITED)
    producers = Producers()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(1_000, 6_000):
            add(producers, number, 1_000_000 + number)
        each_bytes = (tracemalloc.get_traced_memory()[0] - before) / 5_000
    finally:
        tracemalloc.stop()
    assert each_bytes < ENTRY_BYTES_MAX
