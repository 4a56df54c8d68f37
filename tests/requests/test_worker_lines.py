"""What a network process has under way with its workers, when one of several dies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest

from appliance.channels.request_channel import REQUEST, RESPONSE, Op
from appliance.channels.roles import Role, workers_of
from appliance.channels.wiring import Attachment
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.ring import RingReader, RingWriter, ring_size_bytes
from appliance.requests.worker_lines import Answer, WorkerClient

FIRST, SECOND = workers_of(0, workers=2)
SLOTS = 8


class Listener:
    """Counts what it hears."""

    def __init__(self) -> None:
        self.request_id = 0
        self.answers: list[Answer] = []
        self.lost: list[Role] = []

    def answered(self, answer: Answer) -> None:
        self.answers.append(answer)

    def worker_lost(self, worker: Role) -> None:
        self.lost.append(worker)


class Bench:
    """Two workers whose ends of the rings the test holds."""

    def __init__(self) -> None:
        to = {each: memoryview(bytearray(ring_size_bytes(SLOTS))) for each in (FIRST, SECOND)}
        back = {each: memoryview(bytearray(ring_size_bytes(SLOTS))) for each in (FIRST, SECOND)}
        self.eventfd = os.eventfd(0)
        awake = memoryview(bytearray(8)).cast("q")
        self.attachment = SimpleNamespace(
            outbound={each: RingWriter(view, REQUEST) for each, view in to.items()},
            inbound={each: RingReader(view, RESPONSE) for each, view in back.items()},
            bells={each: Doorbell(self.eventfd, awake) for each in to},
        )
        self.lines = WorkerClient(cast("Attachment", self.attachment), brief_wait=BriefWait(lambda: 0))
        self.answers = {each: RingWriter(view, RESPONSE) for each, view in back.items()}
        self.listener = Listener()
        self.lines.enter(self.listener)

    def place(self, worker: Role) -> bool:
        return self.lines.place(worker, (int(Op.FETCH), 0, 0, self.listener.request_id, *(0,) * 10))

    def answer(self, worker: Role) -> None:
        ring = self.answers[worker]
        ring.put(int(Op.FETCH), 0, 0, self.listener.request_id, *(0,) * 10)
        ring.publish()

    def die(self, worker: Role) -> None:
        for ends in (self.attachment.outbound, self.attachment.inbound, self.attachment.bells):
            del ends[worker]
        self.lines.worker_down(worker)


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    os.close(made.eventfd)


def test_who_waits_for_the_other_worker_gets_its_answer(bench: Bench) -> None:
    assert bench.place(FIRST)
    assert bench.place(SECOND)
    bench.lines.publish()
    bench.die(FIRST)
    assert bench.listener.lost == [FIRST]
    assert not bench.place(FIRST)
    bench.answer(SECOND)
    assert bench.lines.take_answers()
    assert len(bench.listener.answers) == 1


def test_after_a_death_a_lone_operation_is_a_lone_one_again(bench: Bench) -> None:
    bench.place(FIRST)
    bench.place(SECOND)
    bench.place(SECOND)
    bench.die(FIRST)
    for _ in range(2):
        bench.answer(SECOND)
    bench.lines.take_answers()
    idle = [bench.lines.is_idle]
    bench.place(SECOND)
    idle.append(bench.lines.is_idle)
    bench.answer(SECOND)
    bench.lines.take_answers()
    idle.append(bench.lines.is_idle)
    assert idle == [True, False, True]
