"""A cut that the disk refuses in the middle: the log stays one that can be asked, and the next cut does all of it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from appliance.errors import DiskFull, StorageFault
from appliance.log.config import LogSettings
from appliance.log.file_names import LEADER_EPOCHS
from appliance.log.partition_log import PartitionLog
from tests.log.batches import batch_of, crash, open_log, read_all
from tests.log.file_history import (
    Create,
    Fails,
    Fault,
    FileHistory,
    Operation,
    Rename,
    SetSize,
    Unlink,
    Write,
)

pytestmark = pytest.mark.interpreted

SETTINGS: Final = LogSettings(segment_bytes=1000)
FIRST: Final = 40
PRODUCER: Final = 7

CUTS: Final[dict[str, Callable[[PartitionLog], object]]] = {
    "to the middle": lambda log: log.truncate_to(FIRST + 11),
    "below the beginning": lambda log: log.truncate_to(FIRST - 10),
    "begun anew": lambda log: log.start_anew_at(500),
    "begun anew where it began": lambda log: log.start_anew_at(FIRST),
}
FAULTS: Final[dict[str, tuple[Fault, tuple[type[Operation], ...]]]] = {
    "EIO": (Fails(errno.EIO), (Create, Write, SetSize, Rename, Unlink)),
    "ENOSPC": (Fails(errno.ENOSPC), (Create, Write, Rename)),
}


def filled(root: Path) -> PartitionLog:
    """A log of several segments, epochs and snapshots, which begins at FIRST."""
    log = open_log(root, settings=SETTINGS, log_start=FIRST)
    for number in range(24):
        batch = batch_of(
            [b"%d" % number + bytes(100)], producer_id=PRODUCER, producer_epoch=0, base_sequence=number
        )
        log.append(batch, leader_epoch=number // 5)
    assert log.statistics().segments > 2
    return log


def told(log: PartitionLog) -> tuple[object, ...]:
    """All that a log says of itself."""
    return (
        log.log_start_offset,
        log.log_end_offset,
        log.latest_epoch,
        log.leader_epochs.entries(),
        log.producers.encode_snapshot(),
        [record.value for record in read_all(log)],
    )


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("cut", CUTS)
def test_a_cut_that_fails_is_told_and_is_done_by_the_next(tmp_path: Path, cut: str, kind: str) -> None:
    fault, operations_that_meet_it = FAULTS[kind]
    with FileHistory(tmp_path / "undisturbed") as history:
        log = filled(tmp_path / "undisturbed")
        begun = len(history.operations)
        CUTS[cut](log)
        operations = history.operations[begun:]
        wanted = told(log)
        crash(log)
    failed = 0
    for number, operation in enumerate(operations, begun):
        if not isinstance(operation, operations_that_meet_it):
            continue
        root = tmp_path / str(number)
        with FileHistory(root, faults={number: fault}):
            log = filled(root)
            with pytest.raises(StorageFault):
                CUTS[cut](log)
            log.statistics()
            log.read(log.log_end_offset, max_bytes=1, upper_bound=log.log_end_offset)
            with suppress(StorageFault):
                log.read(log.log_start_offset, max_bytes=1, upper_bound=log.log_end_offset)
            shutil.copytree(root, tmp_path / "killed")
            CUTS[cut](log)
            if log.log_end_offset == 0:
                log.start_anew_at(FIRST - 10)  # there was nothing to cut: its leader begins later
            assert told(log) == wanted, operation
            log.check()
            log.write_due_epochs()
            crash(log)
        again = open_log(root, settings=SETTINGS)
        assert told(again) == wanted, operation
        crash(again)
        killed = open_log(tmp_path / "killed", settings=SETTINGS)
        killed.check()
        crash(killed)
        shutil.rmtree(root)
        shutil.rmtree(tmp_path / "killed")
        failed += 1
    assert failed


@pytest.mark.parametrize("cut", CUTS)
def test_a_log_that_is_half_cut_is_recovered_by_whoever_opens_it_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    log = filled(tmp_path)
    made = os.open

    def no_room(path: Path, *arguments: int) -> int:
        if LEADER_EPOCHS in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        return made(path, *arguments)

    with monkeypatch.context() as full:
        full.setattr(os, "open", no_room)
        with pytest.raises(DiskFull):
            CUTS[cut](log)
    ways: tuple[Callable[[], None], ...] = (log.hand_over, lambda: log.close(clean=True))
    for way in ways:
        with pytest.raises(StorageFault):
            way()
    crash(log)
    again = open_log(tmp_path, settings=SETTINGS)
    again.check()
    CUTS[cut](again)
    again.check()
    left = told(again)
    again.close(clean=True)
    assert told(open_log(tmp_path, settings=SETTINGS, clean=True)) == left
