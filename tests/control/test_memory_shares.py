"""The rounds in which the supervisor looks at the memory of all processes: one process at a time, for one asker."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from appliance.channels.roles import SUPERVISOR, Role, RoleKind
from appliance.channels.supervision import MemoryShare
from appliance.clock import ManualClock
from appliance.control.supervisor.back_off import BackOff
from appliance.control.supervisor.child_states import State
from appliance.control.supervisor.children import ChildRecord
from appliance.control.supervisor.memory_shares import (
    PAUSE_MS,
    UNKNOWN,
    MemoryShares,
    disk_bytes,
    open_files,
    proportional_bytes,
)
from appliance.ipc.agent import Timers

METRICS: Final = Role(RoleKind.METRICS)
WORKER: Final = Role(RoleKind.IOPROC, 0, 0)
NO_PID: Final = 2**22 + 5


def child(role: Role, *, pid: int, state: State = State.SERVING) -> ChildRecord:
    return ChildRecord(role, BackOff(1, 1), state=state, generation=3, pid=pid)


class Bench:
    """This process stands for every child."""

    def __init__(self) -> None:
        self.asker = child(METRICS, pid=os.getpid())
        self.worker = child(WORKER, pid=os.getpid())
        self.told: list[MemoryShare] = []
        self.clock = ManualClock()
        self.timers = Timers(self.clock.monotonic_ns)
        self.shares = MemoryShares(
            lambda: (self.asker, self.worker),
            lambda asker, share: self.told.append(share),
            self.timers.after_ms,
        )

    def go_on(self) -> None:
        self.clock.advance(PAUSE_MS)
        self.timers.run_due(self.clock.monotonic_ns())


def test_each_process_is_looked_at_in_a_moment_of_its_own() -> None:
    bench = Bench()
    bench.shares.begin(bench.asker)
    assert [share.role for share in bench.told] == [SUPERVISOR]
    bench.shares.begin(bench.asker)
    for _ in range(5):
        bench.go_on()
    assert [(share.role, share.generation) for share in bench.told] == [
        (SUPERVISOR, 0),
        (METRICS, 3),
        (WORKER, 3),
    ]
    assert all(share.proportional_bytes > 1 << 20 and share.open_files > 2 for share in bench.told)
    bench.shares.begin(bench.asker)
    assert len(bench.told) == 4, "the next round begins when the one before has ended"


def test_a_process_that_has_died_is_passed_over_and_with_the_asker_the_round_ends() -> None:
    bench = Bench()
    bench.worker.state = State.GONE
    bench.shares.begin(bench.asker)
    for _ in range(4):
        bench.go_on()
    assert [share.role for share in bench.told] == [SUPERVISOR, METRICS]
    bench.shares.begin(bench.asker)
    bench.asker.state = State.GONE
    for _ in range(4):
        bench.go_on()
    assert len(bench.told) == 3
    bench.asker.state = State.SERVING
    bench.shares.begin(bench.asker)
    assert len(bench.told) == 4


def test_a_process_that_is_not_there_has_no_numbers() -> None:
    assert proportional_bytes(NO_PID) == open_files(NO_PID) == UNKNOWN
    assert disk_bytes(NO_PID) == (UNKNOWN, UNKNOWN)


def test_what_a_process_writes_is_counted(tmp_path: Path) -> None:
    _, before = disk_bytes(os.getpid())
    with open(tmp_path / "file", "wb") as file:
        file.write(bytes(1 << 20))
        file.flush()
        os.fsync(file.fileno())
    _, after = disk_bytes(os.getpid())
    assert after - before >= 1 << 20
