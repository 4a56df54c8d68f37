"""What a worker holds, against a purgatory process of its own over real rings, which is killed meanwhile."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.channels.purgatory_channel import PurgatoryOp
from appliance.channels.roles import PURGATORY
from appliance.clock import SystemClock
from appliance.delayed.held_answers import HeldAnswers
from appliance.ioproc.expiry_line import ExpiryLine
from appliance.ipc.agent import DutyCycle
from appliance.ipc.process_table import COUNTER_0
from tests.delayed.test_purgatory_process import IOPROC, House

MS = 1_000_000
PATIENCE_MS = 30_000
SOON_MS = 300
WAITING, HELD, EXPIRED = COUNTER_0, COUNTER_0 + 6, COUNTER_0 + 7


class Worker:
    """What of one takes part: it holds numbers, and sleeps until its timers or the purgatory wake it."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.attachment = house.peers[IOPROC]
        self.clock = SystemClock()
        self.cycle = DutyCycle(
            self.attachment.doorbell, self.attachment.row, monotonic_ns=self.clock.monotonic_ns
        )
        for reader in self.attachment.inbound.values():
            self.cycle.add_inbox(reader)
        self.line = ExpiryLine(self.attachment, self.cycle, self.clock)
        self.expired: list[tuple[int, int]] = []
        """How many milliseconds after its deadline, and what."""
        self.dues: dict[int, int] = {}
        self.held: HeldAnswers[str, str, int] = HeldAnswers(self.line.deadlines, expired=self._expired)

    def _expired(self, _key: str, _requester: str, answer: int) -> None:
        self.expired.append(((time.monotonic_ns() - self.dues[answer]) // MS, answer))

    def hold(self, answer: int, timeout_ms: int = SOON_MS) -> None:
        now_ns = self.clock.monotonic_ns()
        self.dues[answer] = now_ns + timeout_ms * MS
        self.held.hold("orders-0", answer, "x", answer, now_ns=now_ns, due_ns=self.dues[answer])

    def run_until(self, done: Callable[[], bool]) -> None:
        """The duty cycle, until `done`; it looks every 10 ms, which the worker itself need not."""
        deadline_ns = time.monotonic_ns() + PATIENCE_MS * MS
        while not done():
            assert time.monotonic_ns() < deadline_ns, self.line.deadlines.statistics()
            self.cycle.wait(10)
            self.line.turn()

    def purgatory_down(self) -> None:
        self.line.peer_down(PURGATORY)
        self.attachment.peer_down(PURGATORY)

    def purgatory_up(self) -> None:
        """As the worker hears it: the attachment, the inbox, and then the line."""
        self.attachment.peer_up(PURGATORY, self.house.purgatory_generation)
        self.cycle.add_inbox(self.attachment.inbound[PURGATORY])
        self.line.peer_up(PURGATORY)

    def counter(self, place: int) -> int:
        wiring = self.house.wiring
        return int(self.attachment.process_table.row(wiring.process_row(PURGATORY)).cells[place])


@pytest.fixture
def ring_slots() -> int:
    return 4096


@pytest.fixture
def worker(tmp_path: Path, ring_slots: int) -> Iterator[Worker]:
    house = House(tmp_path, ring_slots=ring_slots)
    made = Worker(house)
    yield made
    made.cycle.close()
    house.close()


def test_the_purgatory_expires_what_is_held_and_never_early(worker: Worker) -> None:
    for answer in range(1, 21):
        worker.hold(answer)
    worker.run_until(lambda: len(worker.expired) == 20)
    assert [answer for _, answer in worker.expired] == list(range(1, 21))
    assert min(late_ms for late_ms, _ in worker.expired) >= 0
    assert worker.line.deadlines.expired_by_purgatory == 20
    # It counts a moment after it has said so.
    worker.run_until(lambda: worker.counter(HELD) == worker.counter(EXPIRED) == 20)
    assert worker.line.deadlines.outstanding == 0


def test_what_is_answered_is_released(worker: Worker) -> None:
    for answer in range(1, 21):
        worker.hold(answer, 600_000)
    worker.run_until(lambda: worker.counter(WAITING) == 20)
    assert len(worker.held.reached("orders-0", 20)) == 20
    worker.run_until(lambda: worker.line.deadlines.outstanding == worker.counter(WAITING) == 0)
    assert worker.counter(EXPIRED) == 0
    assert worker.expired == []


def test_a_killed_purgatory_lets_nothing_hang_and_its_next_life_goes_on(worker: Worker) -> None:
    house = worker.house
    for answer in range(1, 6):
        worker.hold(answer)
        worker.hold(100 + answer, 3 * SOON_MS)
    worker.run_until(lambda: worker.counter(WAITING) == 10)
    assert house.kill() == -signal.SIGKILL
    worker.purgatory_down()
    worker.run_until(lambda: len(worker.expired) == 5)
    assert worker.line.deadlines.expired_by_owner == 5

    house.wiring.remove_for(PURGATORY, house.purgatory_generation)
    house.start()
    worker.purgatory_up()
    worker.run_until(lambda: len(worker.expired) == 10)
    assert sorted(answer for _, answer in worker.expired) == [*range(1, 6), *range(101, 106)]
    assert min(late_ms for late_ms, _ in worker.expired) >= 0
    worker.hold(200)
    worker.run_until(lambda: len(worker.expired) == 11)
    assert worker.line.deadlines.expired_by_purgatory >= 1


def test_a_dead_purgatory_of_which_nobody_has_told_yet_lets_nothing_hang(worker: Worker) -> None:
    for answer in range(1, 6):
        worker.hold(answer)
    worker.run_until(lambda: worker.counter(WAITING) == 5)
    assert worker.house.kill() == -signal.SIGKILL
    worker.run_until(lambda: len(worker.expired) == 5)
    assert worker.line.deadlines.expired_by_owner == 5


@pytest.mark.parametrize("ring_slots", [64])
def test_a_full_ring_leaves_what_it_has_no_room_for_with_the_owner(worker: Worker) -> None:
    for answer in range(1, 301):
        worker.hold(answer)
    worker.run_until(lambda: len(worker.expired) == 300)
    assert sorted(answer for _, answer in worker.expired) == list(range(1, 301))
    assert 0 < worker.line.deadlines.registrations < 300


@pytest.mark.parametrize("ring_slots", [64])
def test_a_release_that_a_full_ring_had_no_room_for_is_made_up_for(worker: Worker) -> None:
    """Else the registration would stay until a deadline that a client has chosen."""
    for answer in range(1, 41):
        worker.hold(answer, 600_000)
    worker.run_until(lambda: worker.counter(WAITING) == 40)
    os.kill(worker.house.pid, signal.SIGSTOP)
    writer = worker.attachment.outbound[PURGATORY]
    while writer.put(PurgatoryOp.POKE, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0):
        pass
    writer.publish()
    assert len(worker.held.reached("orders-0", 40)) == 40
    os.kill(worker.house.pid, signal.SIGCONT)
    worker.run_until(lambda: worker.line.deadlines.outstanding == worker.counter(WAITING) == 0)
    assert worker.expired == []
