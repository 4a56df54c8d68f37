"""A disk that does not answer, while it is written to: the kernel holds who writes, and no signal ends it.

A file system in a file, frozen as for a snapshot (fsfreeze(8)): whoever writes to it waits, uninterruptibly, until it
is thawed. So the worker and the replica of its slot are in state D, as on a dead disk. This needs the right to mount.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.broker import Appliance
from tests.system.acked_load import AckedLoad, create, leaders, settled
from tests.system.raw import wait_until

TOPIC = "kept"
PARTITIONS = 6
SLOTS = 3
FROZEN = 1
SETTINGS = {"worker.hang.timeout.ms": 3000, "replica.lag.time.max.ms": 1500, "shutdown.timeout.ms": 5000}
DISK_MIB = 256


def run(*command: str | Path) -> None:
    subprocess.run([str(each) for each in command], check=True, capture_output=True, timeout=60)


class Disk:
    """A file system of its own at `at`."""

    def __init__(self, image: Path, at: Path) -> None:
        self.at = at
        at.mkdir(parents=True)
        with image.open("wb") as file:
            file.truncate(DISK_MIB << 20)
        run("mkfs.ext4", "-q", "-F", image)
        run("mount", "-o", "loop", image, at)
        self._is_frozen = False

    def freeze(self) -> None:
        run("fsfreeze", "-f", self.at)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            run("fsfreeze", "-u", self.at)
            self._is_frozen = False

    def close(self) -> None:
        self.thaw()
        run("umount", self.at)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """The disk of slot FROZEN."""
    disk = Disk(tmp_path / "image", tmp_path / "data" / f"slot-{FROZEN}")
    try:
        yield disk
    finally:
        disk.thaw()
        wait_until(lambda: not users(disk.at), "nobody has it open", timeout_s=30)
        disk.close()


def users(path: Path) -> list[int]:
    """Who has a file below `path` open."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(Path(each.path).is_relative_to(path) for each in process.open_files()):
                found.append(process.pid)
    return found


@pytest.fixture
def broker(tmp_path: Path, disk: Disk) -> Iterator[Appliance]:
    broker = Appliance(tmp_path / "data", slots=SLOTS, settings=SETTINGS)
    broker.start()
    create(broker, TOPIC, PARTITIONS, replicas=3, min_insync_replicas="2")
    yield broker
    disk.thaw()
    broker.stop()


def is_held(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_DISK_SLEEP


def freeze_under(load: AckedLoad, disk: Disk, broker: Appliance) -> int:
    """Freezes the disk and returns when others lead what its slot led; the pid of the worker that the kernel holds."""
    assert FROZEN in leaders(broker, TOPIC).values()
    (worker,) = broker.pids(f"ioproc {FROZEN}.0")
    load.until(300)
    disk.freeze()
    # All partitions take turns, so those that it led are among them.
    load.until(300 + 3 * PARTITIONS, timeout_s=120)
    wait_until(lambda: FROZEN not in leaders(broker, TOPIC).values(), "others lead", timeout_s=60)
    assert is_held(worker)
    assert f"ioproc {FROZEN}.0 (pid {worker}) was killed, and the kernel holds it" in broker.output()
    return worker


@pytest.mark.slow
def test_others_lead_what_a_worker_led_that_its_disk_holds_and_the_slot_comes_back_with_the_disk(
    broker: Appliance, disk: Disk
) -> None:
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        held = freeze_under(load, disk, broker)
        load.until(300)
        broker.kill_role("controller")
        load.until(300)
        # Nobody opens its logs while it may still write.
        assert broker.pids(f"ioproc {FROZEN}.0") in ([held], [])
        disk.thaw()
        wait_until(
            lambda: broker.pids(f"ioproc {FROZEN}.0") not in ([held], []), "its next life", timeout_s=60
        )
        load.until(300)
    assert not load.failed
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)


@pytest.mark.slow
def test_a_stop_goes_on_without_whom_a_disk_holds_says_so_and_nothing_is_lost(
    broker: Appliance, disk: Disk
) -> None:
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        held = freeze_under(load, disk, broker)
    assert not load.failed
    left = broker.stop_without(timeout_s=90)
    assert held in {process.pid for process in left}
    assert "was killed but still exists; stopping without it" in broker.output()
    disk.thaw()
    psutil.wait_procs(left, timeout=60)
    assert not any(process.is_running() for process in left)
    broker.start()
    load.check(broker)
    settled(broker, TOPIC, PARTITIONS)
