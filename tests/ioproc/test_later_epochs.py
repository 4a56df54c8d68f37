"""Nobody leads in a leader epoch that the logs of this host have passed: the metadata store is that of a backup."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import msgspec
import pytest

from appliance.channels.control_channel import AssignedPartition
from appliance.clock import ManualClock
from appliance.ioproc import later_epochs
from appliance.ioproc.partitions import Partitions
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.protocol.errors import ErrorCode
from tests.ioproc.test_copies_that_went import ASSIGNED, FOLLOWED, NAME, TOPIC_ID, Disk, disk, refusal
from tests.log.batches import NOW_MS, batch_of

__all__ = ["disk"]

REFUSED = ErrorCode.KAFKA_STORAGE_ERROR
SINGLE = msgspec.structs.replace(ASSIGNED, replicas=(0,), isr=(0,))


def write(copy: Path, *epochs: int, topic_id: UUID = TOPIC_ID, is_clean: bool = True) -> None:
    """A copy with a record of each of these epochs."""
    copy.parent.mkdir(exist_ok=True)
    log = PartitionLog.open(
        copy, settings=LogSettings(), clock=ManualClock(NOW_MS), topic_id=topic_id, clean=False
    )
    for epoch in epochs:
        log.append(batch_of([b"x"]), leader_epoch=epoch)
    if is_clean:
        log.write_due_epochs()
    log.close(clean=is_clean)


def peer(disk: Disk) -> Path:
    return disk.path_of(1) / disk.copy.name


def found(partitions: Partitions, assigned: AssignedPartition) -> tuple[int, int]:
    """The epoch and the slot that the controller is told of; (-1, -1): the copy leads."""
    code = refusal(partitions, assigned, full=True)
    ahead = partitions.ahead.get(NAME)
    assert (code == REFUSED) == (ahead is not None)
    assert (NAME in partitions.by_name) == (ahead is None)
    assert (NAME in partitions.unopened) == (ahead is not None), (
        "it is tried again until the controller has answered"
    )
    return (-1, -1) if ahead is None else (ahead.log_epoch, ahead.longest_slot)


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_with_a_later_epoch_is_not_led_and_the_controller_is_told(
    disk: Disk, *, is_clean: bool
) -> None:
    write(disk.copy, 3, 7, is_clean=is_clean)
    partitions = disk.worker()
    assert found(partitions, SINGLE) == (7, 0)
    assert NAME not in partitions.offline, "its storage has not failed"


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_peer_with_a_later_epoch_keeps_a_copy_from_leading(disk: Disk, *, is_clean: bool) -> None:
    """The copy left the ISR after the backup: its own log says nothing of the epochs since."""
    write(disk.copy, 2)
    write(peer(disk), 2, 3, 7, is_clean=is_clean)
    assert found(disk.worker(), ASSIGNED) == (7, 1)


def test_the_epoch_of_a_start_is_no_other_leaders(disk: Disk) -> None:
    """Since the backup there was a start, which used epoch 3; what that leader wrote must not look like our own."""
    write(disk.copy, 2, 3)
    assert found(disk.worker(), ASSIGNED) == (3, 0)


def test_a_single_replica_goes_on_in_its_epoch(disk: Disk) -> None:
    write(disk.copy, 2, 3)
    assert found(disk.worker(), SINGLE) == (-1, -1)


def test_an_epoch_without_records_counts(disk: Disk) -> None:
    """Its leader wrote nothing, and clients have seen it."""
    write(disk.copy, 3)
    log = PartitionLog.open(disk.copy, settings=LogSettings(), clock=ManualClock(NOW_MS), clean=True)
    log.assign_epoch(9, log.log_end_offset)
    log.write_due_epochs()
    log.close(clean=True)
    assert found(disk.worker(), SINGLE) == (9, 0)


def test_it_leads_once_the_epoch_is_above_all_of_them(disk: Disk) -> None:
    write(disk.copy, 3, 7)
    write(peer(disk), 3, 7)
    partitions = disk.worker()
    assert found(partitions, ASSIGNED) == (7, 0)
    partitions.ahead.clear()
    later = msgspec.structs.replace(ASSIGNED, leader_epoch=8, isr=(0,))
    assert refusal(partitions, later) == 0
    log = partitions.by_name[NAME].log
    assert [log.epoch_end_offset(epoch) for epoch in (3, 7, 8)] == [(3, 1), (7, 2), (8, 2)]
    assert not partitions.unopened


def test_the_slots_replica_may_open_what_its_worker_did_not_lead(disk: Disk) -> None:
    write(disk.copy, 2)
    write(peer(disk), 2, 7)
    assert found(disk.worker(), ASSIGNED) == (7, 1)
    followers = disk.replica()
    assert refusal(followers, msgspec.structs.replace(FOLLOWED, leader_epoch=8), full=True) == 0
    assert followers.by_name[NAME].log.log_end_offset == 1


def test_an_empty_log_does_not_lead_where_another_slot_has_the_records(disk: Disk) -> None:
    """The partition was moved to slot 1 after the backup, and nothing was written since."""
    write(peer(disk), 2)
    assert found(disk.worker(), SINGLE) == (3, 1)


def test_a_topic_that_had_the_same_name_says_nothing(disk: Disk) -> None:
    write(disk.copy, 3)
    write(peer(disk), 3, 7, topic_id=UUID(int=8))
    assert found(disk.worker(), SINGLE) == (-1, -1)


def test_peers_are_looked_at_by_the_first_leader_of_a_start_alone(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(disk.copy, 2)
    write(peer(disk), 2)
    partitions = disk.worker()
    assert found(partitions, ASSIGNED) == (-1, -1)
    partitions._release(NAME)
    monkeypatch.delattr(later_epochs, "read_epochs")  # whoever calls it fails
    assert refusal(partitions, msgspec.structs.replace(ASSIGNED, leader_epoch=4)) == 0
