"""A worker that opens many logs serves those that are open already, between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.control_channel import Assign, AssignedPartition, Envelope
from appliance.channels.request_channel import ERROR, OP, REQUEST_ID, ROW, Op, RequestFlag
from appliance.channels.roles import Role, RoleKind
from appliance.clock import ManualClock
from appliance.ioproc.leader_host import OPENINGS_A_LOOK
from tests.ioproc.worker_on_rings import WORKER, WorkerOnRings

NETPROC = Role(RoleKind.NETPROC)
TOPIC_ID = UUID(int=7)


class Served(WorkerOnRings):
    """A worker, and the network process's end of the rings between them."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, (NETPROC,))
        self.asker = self.askers[NETPROC]

    def obey(self, rows: range, *, full: bool) -> None:
        partitions = tuple(
            AssignedPartition("t", TOPIC_ID, row, row, 1, 0, 0, (0,), (0,), {}) for row in rows
        )
        self.worker.host.obey([Envelope(1, Assign(1, "c", full, partitions))])

    def ask_greatest_timestamp(self, row: int) -> None:
        to = self.asker.outbound[WORKER]
        flags = int(RequestFlag.MAX_TIMESTAMP)
        assert to.put(int(Op.LIST_OFFSETS), flags, 0, 77, 0, row, 1, -1, 0, 0, 0, 0, 0, 0)
        to.publish()

    def answers(self) -> list[tuple[int, ...]]:
        """(operation, error, request, row)"""
        told = self.asker.inbound[WORKER].drain(16)
        return [(each[OP], each[ERROR], each[REQUEST_ID], each[ROW]) for each in told]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.close()


def test_who_is_led_already_is_answered_before_the_last_log_is_open(served: Served) -> None:
    served.obey(range(1), full=True)
    served.ask_greatest_timestamp(0)
    served.obey(range(1, 1 + 2 * OPENINGS_A_LOOK), full=False)
    assert served.answers() == [(Op.LIST_OFFSETS, 0, 77, 0)]


def test_a_log_of_the_same_command_is_served_once_it_is_open(served: Served) -> None:
    served.obey(range(0), full=True)
    served.ask_greatest_timestamp(0)
    served.obey(range(2 * OPENINGS_A_LOOK), full=False)
    assert served.answers() == [(Op.LIST_OFFSETS, 0, 77, 0)]


def test_before_the_first_command_is_done_nobody_is_served(served: Served) -> None:
    """Who asks then has heard of an earlier life: its request waits, and is served once its log is open."""
    last = 2 * OPENINGS_A_LOOK - 1
    served.ask_greatest_timestamp(last)
    served.obey(range(last + 1), full=True)
    assert not served.answers()
    served.worker.rings.serve()
    assert served.answers() == [(Op.LIST_OFFSETS, 0, 77, last)]


@pytest.mark.interpreted
def test_openings_have_at_least_half_of_the_time(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.obey(range(0), full=True)
    looks: list[int] = []
    clock = ManualClock()
    monkeypatch.setattr(served.worker.host, "clock", clock)

    def look_for_a_second() -> bool:
        looks.append(served.worker.host._openings)
        clock.advance(1_000)
        return True

    monkeypatch.setattr(served.worker.rings, "serve", look_for_a_second)
    served.obey(range(3 * OPENINGS_A_LOOK), full=False)
    assert looks == [OPENINGS_A_LOOK]
    clock.advance(1_000)
    served.obey(range(3 * OPENINGS_A_LOOK, 4 * OPENINGS_A_LOOK), full=False)
    assert len(looks) == 2
