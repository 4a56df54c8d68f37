"""Long requests go on in turns, bounded in time and number; of a connection that has closed nothing goes on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any, cast

import pytest

from appliance.channels.control_channel import AllocateProducerIds, Body, ProducerIdBlock
from appliance.clock import Clock
from appliance.errors import MalformedFrame
from appliance.ipc.buffer_pool import BufferPool
from appliance.netproc.connection import Connection
from appliance.requests.long_requests import (
    FRESH_NS,
    LARGE_BYTES_MAX,
    LONG_MAX,
    SHORT_MAX,
    SHORT_NS,
    SLICE_NS,
    TURN_NS,
    LongRequests,
)
from appliance.requests.questions import ControllerRequests
from appliance.requests.session import Request
from appliance.requests.steps import PAUSE, Ask, Steps

PIECE_NS = 100_000
POOL_BYTES = 1 << 23


class HandClock:
    """Time that goes on where the test says so."""

    def __init__(self) -> None:
        self.now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns


class Asked:
    """Stands for the line to the controller."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []
        self.forgotten: list[Any] = []

    def ask(self, body: Body, *, due_ns: int, done: Any) -> Any:
        question = (body, due_ns, done)
        self.waiting.append(question)
        return question

    def forget(self, question: Any) -> None:
        self.forgotten.append(question)


class House:
    """Long requests over a pool, with a clock that only work moves."""

    def __init__(self) -> None:
        self.clock, self.asked = HandClock(), Asked()
        self.pool = BufferPool(memoryview(bytearray(POOL_BYTES)))
        self.faults: list[Exception] = []
        self.log: list[str] = []
        self.ours, self.client = socket.socketpair()
        self.long = LongRequests(
            self.pool,
            cast(ControllerRequests, self.asked),
            contain=lambda _, error: self.faults.append(error),
            clock=cast(Clock, self.clock),
        )

    def pending(self) -> Request:
        connection = Connection(self.ours, connection_id=1, slot=0, peer_host="h", peer_port=1, now_ns=0)
        block = self.pool.take(100)
        assert block is not None
        return Request(connection, block, 3, 0, 0)

    def work(self, name: str, pieces: int) -> Steps[None]:
        try:
            for _ in range(pieces):
                self.clock.now_ns += PIECE_NS
                yield None
            self.log.append(f"{name} done")
        except GeneratorExit:
            self.log.append(f"{name} dropped")
            raise

    def begin(self, name: str, pieces: int, *, size_bytes: int = 100) -> Request:
        pending = self.pending()
        self.long.begin(pending, self.work(name, pieces), size_bytes)
        return pending

    def turn(self) -> int:
        """One turn; how long it took."""
        began_ns = self.clock.now_ns
        self.long.run()
        return self.clock.now_ns - began_ns

    def finish(self) -> None:
        while not self.long.is_empty():
            assert self.turn() <= TURN_NS + SLICE_NS + PIECE_NS


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.ours.close()
    made.client.close()


def test_a_short_request_is_done_at_once_and_its_block_is_back(house: House) -> None:
    house.begin("short", 2)
    assert house.log == ["short done"]
    assert house.long.is_empty()
    assert house.pool.free_bytes() == POOL_BYTES


def test_no_turn_is_longer_than_its_bound_and_short_requests_pass_long_ones(house: House) -> None:
    for number in range(20):
        house.begin(f"long-{number}", 500)
    assert house.clock.now_ns <= FRESH_NS + SLICE_NS + PIECE_NS
    for _ in range(10):
        assert house.turn() <= TURN_NS + SLICE_NS + PIECE_NS
    house.begin("short", 3)
    house.turn()
    assert house.log == ["short done"]
    house.finish()
    assert len(house.log) == 21
    assert house.pool.free_bytes() == POOL_BYTES


def test_long_requests_go_on_beside_endless_short_ones(house: House) -> None:
    house.begin("long", 60)
    for number in range(200):
        for each in range(6):
            house.begin(f"short-{number}-{each}", 4)
        house.turn()
        if "long done" in house.log:
            return
    raise AssertionError("the long one did not get its turns")


def test_only_so_many_requests_are_half_done_at_a_time(house: House) -> None:
    most: dict[str, int] = {}
    for number in range(2 * SHORT_MAX):
        house.begin(f"long-{number}", 2 * SHORT_NS // PIECE_NS)
    for number in range(4):
        house.begin(f"large-{number}", 2 * SHORT_NS // PIECE_NS, size_bytes=LARGE_BYTES_MAX)
    while not house.long.is_empty():
        house.turn()
        for name, count in house.long.statistics().items():
            most[name] = max(count, most.get(name, 0))
    assert (most["short"], most["long"], most["large"]) == (SHORT_MAX, LONG_MAX, 1)
    assert len(house.log) == 2 * SHORT_MAX + 4
    assert set(house.long.statistics().values()) == {0}


def test_who_has_had_little_goes_before_who_has_had_much(house: House) -> None:
    for number in range(3 * LONG_MAX):
        house.begin(f"long-{number}", 10_000)
        house.begin(f"large-{number}", 10_000, size_bytes=LARGE_BYTES_MAX)
    while house.long.statistics()["short"]:
        house.turn()
    house.begin("middling", SHORT_NS // 2 // PIECE_NS)
    for _ in range(SHORT_NS // 2 // (TURN_NS - FRESH_NS) + 2):
        house.turn()
    assert house.log == ["middling done"]


@pytest.mark.parametrize("turns", [0, 1, 5, 2000])
def test_what_a_closed_connection_asked_is_dropped_wherever_it_is(house: House, turns: int) -> None:
    places = [house.begin(f"long-{number}", 100_000) for number in range(2 * SHORT_MAX)]
    for _ in range(turns):
        house.turn()
    for pending in places:
        assert pending.drop is not None
        pending.drop()
    assert house.long.statistics()["all"] == 0
    assert house.long.statistics()["short"] == 0
    house.finish()
    assert house.turn() == 0
    assert not [line for line in house.log if line.endswith("done")]
    assert house.pool.free_bytes() == POOL_BYTES


def test_questions_are_answered_into_the_work_and_share_one_deadline(house: House) -> None:
    answers: list[Any] = []

    def asking() -> Steps[None]:
        for _ in range(3):
            answers.append((yield Ask(AllocateProducerIds(), 10)))

    house.long.begin(house.pending(), asking(), 100)
    (first,) = house.asked.waiting
    assert first[1] == 10_000_000
    house.clock.now_ns += 4_000_000
    first[2](ProducerIdBlock(0, 1))
    assert not house.long.is_empty()
    house.turn()
    second = house.asked.waiting[1]
    assert second[1] == 10_000_000
    house.clock.now_ns += 6_000_000
    second[2](None)
    house.finish()
    assert answers == [ProducerIdBlock(0, 1), None, None]
    assert len(house.asked.waiting) == 2  # after the deadline nobody is asked


def test_a_question_of_a_closed_connection_is_forgotten_and_a_pause_ends_by_resume(house: House) -> None:
    def asking() -> Steps[None]:
        yield Ask(AllocateProducerIds(), 10)
        house.log.append("went on")

    def pausing() -> Steps[None]:
        yield PAUSE
        house.log.append("resumed")

    asker, pauser = house.pending(), house.pending()
    house.long.begin(asker, asking(), 100)
    house.long.begin(pauser, pausing(), 100)
    assert house.long.is_empty()
    assert asker.drop is not None
    asker.drop()
    assert house.asked.forgotten == house.asked.waiting
    house.asked.waiting[0][2](None)  # it was on its way
    house.long.resume(asker)
    house.long.resume(pauser)
    house.long.resume(pauser)
    house.finish()
    assert house.log == ["resumed"]


def test_what_a_request_raises_is_its_connection_s_fault_and_nobody_else_s(house: House) -> None:
    def failing() -> Steps[None]:
        yield None
        raise MalformedFrame("no")

    house.long.begin(house.pending(), failing(), 100)
    assert [str(fault) for fault in house.faults] == ["no"]
    house.begin("next", 1)
    assert house.log == ["next done"]
    assert house.pool.free_bytes() == POOL_BYTES
