"""What a network process counts for the metrics process, and what is in shared memory of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from appliance.channels.partition_table import INCARNATION, PartitionTable, table_size_bytes
from appliance.channels.request_channel import Op, ResponseFlag
from appliance.channels.traffic_table import (
    ANSWER_TIME,
    BUCKETS_NS,
    BYTES_IN,
    BYTES_OUT,
    COLUMNS,
    FAILED_PRODUCES,
    FETCHES,
    FIRST_CODE,
    FLUSH_MS,
    PRODUCE_ERRORS,
    PRODUCES,
    RECEIVE_TIME,
    RECORDS_IN,
    REQUEST_BYTES,
    REQUESTS,
    TOTAL_TIME,
    TrafficPart,
    bucket_of,
    traffic_size_bytes,
)
from appliance.clock import ManualClock
from appliance.ipc.agent import Timers
from appliance.protocol.produce import ProduceResult
from appliance.requests.session import Request, Session
from appliance.requests.topic_routes import TopicRoutes
from appliance.requests.traffic import SAMPLED, UNSENT_MAX, Traffic

ROWS = 8
ROW = 3
PRODUCE, FETCH, METADATA = 0, 1, 3


class Counting:
    """The counts of network process 1 of 2, and what others see of them."""

    def __init__(self) -> None:
        self.memory = bytearray(traffic_size_bytes(2, ROWS, 20))
        self.part = TrafficPart(memoryview(self.memory), 1, rows=ROWS)
        self.table = PartitionTable(memoryview(bytearray(table_size_bytes(ROWS, 1))), slots=1)
        self.clock = ManualClock(monotonic_ns=1)
        self.timers = Timers(self.clock.monotonic_ns)
        self.sending = False
        self.traffic = self.next_life()
        self.session = Session(
            connection_id=1, number=1, slot=0, listener="PLAINTEXT", peer_host="h", peer_port=1, now_ns=0
        )

    def next_life(self) -> Traffic:
        route = SimpleNamespace(partition=lambda index: SimpleNamespace(row=ROW) if not index else None)
        routes = SimpleNamespace(of=lambda topic: route if topic == "t" else None)
        return Traffic(
            self.part,
            cast(TopicRoutes, routes),
            self.table,
            timers=self.timers,
            clock=self.clock,
            is_sending=lambda _: self.sending,
        )

    def pass_ms(self, pause_ms: int) -> None:
        self.clock.advance(pause_ms)
        self.timers.run_due(self.clock.monotonic_ns())

    def request(self, key: int, size_bytes: int = 100) -> Request:
        request = Request(self.session, cast(Any, None), key, 0, 0)
        self.session.enqueue(request)
        self.traffic.arrived(request, size_bytes)
        return request

    def answer(self, request: Request) -> None:
        request.answer = []
        if request.arrived_ns:
            self.traffic.answered(request)

    def column(self, column: int) -> int:
        return self.part.cells[self.part.row_at(ROW) + column]


def answer(*, length_bytes: int, base: int, end: int, flags: int = 0) -> tuple[int, ...]:
    return (int(Op.PRODUCE), flags, 0, 1, 0, ROW, base, 0, 0, 0, length_bytes, 0, 0, end)


@pytest.fixture
def counting() -> Counting:
    return Counting()


def test_requests_are_there_after_a_moment_and_a_next_life_goes_on(counting: Counting) -> None:
    for _ in range(3):
        counting.request(METADATA)
    at = counting.part.api_at(METADATA)
    assert counting.part.cells[at + REQUESTS] == 0
    counting.pass_ms(FLUSH_MS)
    assert counting.part.cells[at + REQUESTS] == 3
    assert counting.part.cells[at + REQUEST_BYTES] == 300
    counting.traffic = counting.next_life()
    counting.request(METADATA)
    counting.pass_ms(FLUSH_MS)
    assert counting.part.cells[at + REQUESTS] == 4
    assert not any(counting.memory[: len(counting.memory) // 4]), "it wrote into another process's part"


def test_an_idle_process_is_not_woken_again(counting: Counting) -> None:
    assert not counting.timers.any
    counting.request(METADATA)
    counting.pass_ms(FLUSH_MS)
    assert not counting.timers.any


def test_one_produce_in_sixteen_is_timed_and_every_metadata(counting: Counting) -> None:
    timed = [counting.request(PRODUCE).arrived_ns > 0 for _ in range(3 * SAMPLED)]
    assert [index for index, is_timed in enumerate(timed) if is_timed] == [0, SAMPLED, 2 * SAMPLED]
    assert all(counting.request(METADATA).arrived_ns for _ in range(5))


def test_keys_that_no_api_has_are_counted_together(counting: Counting) -> None:
    for key in (-1, 127, 128, 32767, -32768):
        counting.answer(counting.request(key))
    counting.pass_ms(FLUSH_MS)
    assert counting.part.cells[counting.part.api_at(127) + REQUESTS] == 5


def test_a_time_ends_when_the_answer_has_left(counting: Counting) -> None:
    request = counting.request(METADATA)
    counting.clock.advance(3)
    counting.answer(request)
    counting.sending = True
    counting.session.queue = None
    counting.traffic.sent()
    counting.clock.advance(40)
    counting.sending = False
    counting.traffic.sent()
    assert counting.traffic.unsent == []
    counting.pass_ms(FLUSH_MS)
    at = counting.part.api_at(METADATA)
    cells = counting.part.cells
    assert cells[at + ANSWER_TIME] == 3_000_000
    assert cells[at + ANSWER_TIME + bucket_of(3_000_000)] == 1
    assert cells[at + TOTAL_TIME] == 43_000_000
    assert cells[at + TOTAL_TIME + bucket_of(43_000_000)] == 1


def test_answers_that_never_leave_are_bounded_and_go_with_their_session(counting: Counting) -> None:
    counting.sending = True
    for _ in range(UNSENT_MAX + 10):
        counting.answer(counting.request(METADATA))
        counting.session.queue = None
    assert len(counting.traffic.unsent) == UNSENT_MAX
    counting.session.closed = True
    counting.traffic.sent()
    assert counting.traffic.unsent == []


def test_a_batch_counts_once_for_its_partition_and_for_all(counting: Counting) -> None:
    counting.table.cells[counting.table.at(ROW) + INCARNATION] = 7
    counting.traffic.produced(answer(length_bytes=500, base=10, end=15))
    counting.traffic.produced(answer(length_bytes=500, base=10, end=15, flags=int(ResponseFlag.DUPLICATE)))
    counting.pass_ms(FLUSH_MS)
    found = [counting.column(column) for column in (BYTES_IN, RECORDS_IN, PRODUCES)]
    assert found == [500, 5, 2]
    assert counting.part.cells[:COLUMNS].tolist() == [0, 500, 5, 0, 2, 0, 0, 0]


def test_a_row_that_another_partition_has_begins_with_zero_and_the_total_goes_on(counting: Counting) -> None:
    for incarnation in (7, 8):
        counting.table.cells[counting.table.at(ROW) + INCARNATION] = incarnation
        counting.traffic.produced(answer(length_bytes=100, base=0, end=1))
        counting.pass_ms(FLUSH_MS)
        assert (counting.column(0), counting.column(BYTES_IN)) == (incarnation, 100)
    assert counting.part.cells[BYTES_IN] == 200


def test_what_failed_is_counted_by_error(counting: Counting) -> None:
    failed = [ProduceResult("t", 0, 6), ProduceResult("t", 9, 3), ProduceResult(UUID(int=1), 0, 100), None]
    counting.traffic.not_produced([*failed, ProduceResult("t", 0, 0)])
    counting.pass_ms(FLUSH_MS)
    codes = {code: counting.part.cells[PRODUCE_ERRORS + code - FIRST_CODE] for code in (0, 3, 6, 100)}
    assert codes == {0: 0, 3: 1, 6: 1, 100: 1}
    assert counting.column(FAILED_PRODUCES) == 1


def test_fetches_count_bytes_and_only_partitions_with_records_or_errors(counting: Counting) -> None:
    route = SimpleNamespace(row=ROW)
    items: list[Any] = [
        SimpleNamespace(route=route, error=0, length_bytes=1000),
        SimpleNamespace(route=route, error=0, length_bytes=0),
        SimpleNamespace(route=None, error=3, length_bytes=0),
    ]
    counting.traffic.fetched(items)
    counting.pass_ms(FLUSH_MS)
    assert (counting.column(BYTES_OUT), counting.column(FETCHES)) == (1000, 1)


@pytest.mark.parametrize(
    ("duration_ns", "word"),
    [(0, 1), (50_000, 1), (50_001, 2), (10_000_000_000, len(BUCKETS_NS)), (1 << 60, len(BUCKETS_NS) + 1)],
)
def test_buckets_include_their_upper_bound(duration_ns: int, word: int) -> None:
    assert bucket_of(duration_ns) == word


def test_every_bucket_has_one_bound() -> None:
    assert list(BUCKETS_NS) == sorted(set(BUCKETS_NS))
    assert (BUCKETS_NS[0], BUCKETS_NS[-1], len(BUCKETS_NS)) == (50_000, 10_000_000_000, 17)


def test_a_defect_of_counting_costs_counts_and_no_process(caplog: pytest.LogCaptureFixture) -> None:
    counting = Counting()
    traffic = counting.traffic
    nonsense = cast(Any, object())
    for count in (traffic.produced, traffic.answered, traffic.not_produced, traffic.fetched):
        count(nonsense)
    traffic.arrived(nonsense, 1)
    traffic.unsent = [nonsense]
    traffic.sent()
    traffic.unsent = []
    counting.request(METADATA)
    cells, counting.part.cells = counting.part.cells, memoryview(b"").cast("q")
    counting.pass_ms(FLUSH_MS)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    counting.part.cells = cells
    counting.request(METADATA)
    counting.pass_ms(FLUSH_MS)
    assert counting.part.cells[counting.part.api_at(METADATA) + REQUESTS] == 1


def test_a_request_that_came_in_parts_has_a_time_of_receipt(counting: Counting) -> None:
    counting.request(METADATA)
    counting.session.receiving_since_ns = counting.clock.monotonic_ns()
    counting.pass_ms(30)
    counting.request(METADATA)
    counting.pass_ms(FLUSH_MS)
    at = counting.part.api_at(METADATA) + RECEIVE_TIME
    assert counting.part.cells[at] == 30_000_000
    assert counting.part.cells[at + 1] == 1, "what comes at once has waited for nothing"
    assert counting.part.cells[at + bucket_of(30_000_000)] == 1
