"""What a worker counts of timed requests and of flushes, and what others see of it in shared memory."""

from __future__ import annotations

from typing import Final

import pytest

from appliance.channels.request_channel import (
    ARRIVED_NS,
    CONNECTION,
    INCARNATION,
    ITEM,
    OFFSET,
    REQUEST,
    ROW,
    fetch_request,
    produce_request,
)
from appliance.channels.roles import Role, RoleKind
from appliance.channels.traffic_table import (
    BUCKETS_NS,
    FETCH_LOG,
    FETCH_QUEUE,
    FLUSH_MS,
    FLUSH_TIME,
    HISTOGRAM_WORDS,
    LOG_WORDS,
    PRODUCE_LOG,
    PRODUCE_QUEUE,
    PRODUCE_REPLICATE,
    STAGE_WORDS,
    bucket_of,
    log_sizes_bytes,
    stages_at,
)
from appliance.clock import NS_PER_MS, ManualClock
from appliance.ioproc.stage_times import FLUSHES_LOOK_MS, WAITING_MAX, StageTimes
from appliance.ipc.agent import Timers
from appliance.log.flush_times import FLUSH_TIMES, KEPT_MAX, FlushTimes

ROWS: Final = 300
PEER: Final = Role(RoleKind.NETPROC, 0)
OTHER: Final = Role(RoleKind.NETPROC, 1)


def answer(request_id: int, item: int = 0, *, error: int = 0) -> tuple[int, ...]:
    return (1, 0, error, request_id, item, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class Bench:
    """Worker 1 of 2."""

    def __init__(self) -> None:
        FLUSH_TIMES.take()
        self.memory = bytearray(log_sizes_bytes(ROWS, 2))
        self.clock = ManualClock(monotonic_ns=1_000_000)
        self.timers = Timers(self.clock.monotonic_ns)
        self.stages = StageTimes(
            memoryview(self.memory), stages_at(1, rows=ROWS), clock=self.clock, after_ms=self.timers.after_ms
        )

    def pass_ms(self, pause_ms: int) -> None:
        self.clock.advance(pause_ms)
        self.timers.run_due(self.clock.monotonic_ns())

    def seen(self, histogram: int) -> tuple[int, int]:
        """How many durations are counted, and their sum in ms."""
        cells = memoryview(self.memory).cast("q")
        at = stages_at(1, rows=ROWS) + histogram
        words = cells[at : at + HISTOGRAM_WORDS].tolist()
        return sum(words[1:]), words[0] // NS_PER_MS


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_the_page_of_each_worker_lies_behind_the_rows_and_apart_from_the_others() -> None:
    assert stages_at(0, rows=ROWS) * 8 >= ROWS * LOG_WORDS * 8
    assert stages_at(0, rows=ROWS) * 8 % 4096 == 0
    assert stages_at(1, rows=ROWS) - stages_at(0, rows=ROWS) >= STAGE_WORDS
    assert log_sizes_bytes(ROWS, 2) >= (stages_at(1, rows=ROWS) + STAGE_WORDS) * 8


def test_the_stages_of_a_produce_that_waits_for_followers_are_counted(bench: Bench) -> None:
    arrived_ns = bench.clock.monotonic_ns()
    bench.clock.advance(3)
    bench.stages.begin()
    bench.clock.advance(2)
    bench.stages.appended(arrived_ns)
    bench.stages.held(PEER, answer(7, 1))
    bench.clock.advance(20)
    bench.stages.left(PEER, answer(7, 0))
    bench.stages.left(OTHER, answer(7, 1))
    assert bench.seen(PRODUCE_QUEUE) == (0, 0), "it is written some time later"
    bench.stages.left(PEER, answer(7, 1))
    bench.stages.left(PEER, answer(7, 1))
    bench.pass_ms(FLUSH_MS)
    assert bench.seen(PRODUCE_QUEUE) == (1, 3)
    assert bench.seen(PRODUCE_LOG) == (1, 2)
    assert bench.seen(PRODUCE_REPLICATE) == (1, 20)
    assert bench.seen(FETCH_LOG) == (0, 0)


def test_an_answer_with_an_error_was_not_replicated(bench: Bench) -> None:
    bench.stages.begin()
    bench.stages.appended(1)
    bench.stages.held(PEER, answer(1))
    bench.stages.left(PEER, answer(1, error=7))
    bench.pass_ms(FLUSH_MS)
    assert bench.seen(PRODUCE_REPLICATE) == (0, 0)
    assert not bench.stages.waiting


def test_a_fetch_has_a_queue_and_a_log(bench: Bench) -> None:
    arrived_ns = bench.clock.monotonic_ns()
    bench.clock.advance(5)
    bench.stages.begin()
    bench.stages.located(arrived_ns)
    bench.pass_ms(FLUSH_MS)
    assert bench.seen(FETCH_QUEUE) == (1, 5)
    assert bench.seen(FETCH_LOG) == (1, 0)


def test_answers_that_wait_are_bounded_and_go_with_who_has_asked(bench: Bench) -> None:
    bench.stages.begin()
    for number in range(WAITING_MAX + 10):
        bench.stages.held(PEER if number else OTHER, answer(number))
    assert len(bench.stages.waiting) == WAITING_MAX
    bench.stages.drop_peer(PEER)
    assert list(bench.stages.waiting) == [(OTHER, 0, 0)]


def test_flushes_of_any_thread_are_counted(bench: Bench) -> None:
    FLUSH_TIMES._kept.extend((NS_PER_MS, 2 * NS_PER_MS))
    bench.pass_ms(FLUSHES_LOOK_MS)
    bench.pass_ms(FLUSH_MS)
    assert bench.seen(FLUSH_TIME) == (2, 3)


def test_flushes_that_nobody_takes_are_forgotten() -> None:
    times = FlushTimes()
    for _ in range(KEPT_MAX + 5):
        times.note(0)
    assert len(times.take()) == KEPT_MAX
    assert times.take() == []


def test_every_duration_has_a_bucket() -> None:
    assert [bucket_of(bound_ns) for bound_ns in BUCKETS_NS] == list(range(1, len(BUCKETS_NS) + 1))
    assert bucket_of(BUCKETS_NS[-1] + 1) == len(BUCKETS_NS) + 1 < HISTOGRAM_WORDS


def test_only_a_timed_operation_says_when_its_request_arrived() -> None:
    for timed_ns in (0, 1234):
        produce = produce_request(1, 2, 3, 4, 0, -1, 5, 6, 9, 1000, 8, timed_ns)
        fetch = fetch_request(1, 2, 3, 4, 0, -1, 6, -1, 77, timed_ns)
        for message in (produce, fetch):
            unpacked = REQUEST.unpack(REQUEST.pack(*message))
            assert unpacked == message
            assert unpacked[ARRIVED_NS] == timed_ns
            assert (unpacked[ITEM], unpacked[ROW], unpacked[INCARNATION]) == (2, 3, 4)
        assert (produce[CONNECTION], fetch[OFFSET]) == (8, 77)
