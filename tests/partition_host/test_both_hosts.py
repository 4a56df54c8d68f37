"""A worker and a replica process keep house for their partitions by the same parts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.channels.control_channel import Assign, Envelope
from appliance.channels.supervision import Ready, SupervisionSocket
from appliance.clock import ManualClock
from appliance.log.reader_leases import LEASE, READERS, SWEEP_MS, Lease
from tests.partition_host.slots import IOPROC, REPLICA, TOPIC_ID, WAIT_S, Slot

TTL_MS = SWEEP_MS // 2


class Timed(Slot):
    """A slot on a clock that the test moves."""

    def __init__(self, data_dir: Path, role: object) -> None:
        self.time = ManualClock()
        assert role in (IOPROC, REPLICA)
        super().__init__(data_dir, IOPROC if role == IOPROC else REPLICA, clock=self.time)

    def pass_ms(self, duration_ms: int) -> None:
        self.time.advance(duration_ms)
        for _ in range(2):  # what a timer adds is due in the next turn
            self.pass_time()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not is_so():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
            self.host.turn()

    def copies(self) -> list[Path]:
        holder = self.host.holder
        assert holder is not None
        return [each.log.directory for each in holder.by_name.values()]


@pytest.fixture(params=[IOPROC, REPLICA], ids=["worker", "replica"])
def slot(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Timed]:
    made = Timed(tmp_path, request.param)
    yield made
    made.close()


def test_leases_that_have_expired_are_swept_though_nothing_is_removed(slot: Timed) -> None:
    slot.hold(3)
    leases = [copy / READERS / f"dead{LEASE}" for copy in slot.copies()]
    for path in leases:
        path.parent.mkdir()
        path.write_bytes(Lease("dead", "tests", "here", "batch", TTL_MS, 0).encode())
    slot.pass_ms(SWEEP_MS)
    slot.wait_until(lambda: slot.host.removals.statistics()["leases"] == len(leases))
    assert all(path.exists() for path in leases)
    slot.pass_ms(SWEEP_MS)
    slot.wait_until(lambda: not any(path.exists() for path in leases))


def test_a_deleted_partition_is_removed_from_the_disk(slot: Timed) -> None:
    slot.hold(2)
    kept, gone = slot.copies()
    slot.host.obey([Envelope(2, Assign(1, "c", False, removed=(("t", TOPIC_ID, 1),)))])
    assert slot.host.held_at(1) is None
    slot.pass_ms(0)
    slot.wait_until(lambda: [path.name for path in kept.parent.glob("t-*")] == [kept.name])
    assert not gone.exists()


def test_partitions_go_offline_with_their_log_directory(slot: Timed) -> None:
    slot.hold(2)
    directories = slot.host.directories
    assert directories is not None
    (lock, *_), kept = directories.serving[0].locks, slot.copies()
    lock.unlink()
    slot.host.look_at_directories()
    assert [slot.host.held_at(row) for row in range(2)] == [None, None]
    holder = slot.host.holder
    assert holder is not None
    assert {str(name) for name in holder.offline} == {"t-0", "t-1"}
    assert directories.failed.keys() == {0}
    assert all(copy.exists() for copy in kept), "what has failed is touched no more"


def test_the_supervisor_learns_that_the_process_is_ready_once_the_first_command_is_done(slot: Timed) -> None:
    supervisor = SupervisionSocket(slot.ends[0])
    slot.hold(1)
    slot.hold(1)
    assert [type(message) for message in supervisor.receive() or ()].count(Ready) == 1
