"""A copy does not lead while an in-sync copy on this host has a longer valid log."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    RESTART_LOG_END,
    SLOT_CLOSED_INCARNATION,
    SLOT_CUT_TO,
)
from appliance.clock import ManualClock
from appliance.ioproc import peer_copies
from appliance.ioproc.later_epochs import PLAUSIBLE_STEP
from appliance.ioproc.partitions import Partitions
from appliance.log.checkpoint import write_offsets
from appliance.log.config import LogSettings
from appliance.log.file_names import (
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG_STARTS,
    PARTITION_METADATA,
    RECOVERY_POINTS,
)
from appliance.log.partition_log import PartitionLog
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import batches
from tests.ioproc.test_copies_that_went import ASSIGNED, FOLLOWED, NAME, TOPIC_ID, Disk, disk, refusal
from tests.log.batches import NOW_MS, batch_of

__all__ = ["disk"]

ALONE = msgspec.structs.replace(ASSIGNED, isr=(0,))
REFUSED = ErrorCode.KAFKA_STORAGE_ERROR


def write(copy: Path, count: int, *, epoch: int = 2, begins: int = 0) -> None:
    """A copy with so many records, a batch each, whose owner has died."""
    log = PartitionLog.open(
        copy, settings=LogSettings(), clock=ManualClock(NOW_MS), topic_id=TOPIC_ID, clean=False
    )
    for number in range(log.log_end_offset, count):
        log.append(batch_of([b"%d" % number]), leader_epoch=epoch if number >= begins else 1)
    log.write_due_epochs()
    log.close(clean=False)


def peer(disk: Disk) -> Path:
    path = disk.path_of(1) / disk.copy.name
    path.parent.mkdir(exist_ok=True)
    return path


def flip(copy: Path, share: float) -> None:
    (segment,) = copy.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[int(len(data.rstrip(b"\0")) * share)] ^= 1
    segment.write_bytes(data)


def test_a_copy_that_ends_before_its_peer_does_not_lead(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    write(disk.copy, 15)
    write(peer(disk), 20)
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=True) == REFUSED
    assert NAME in partitions.partial, (
        "the controller is told that it lacks records, and may lead once it has them"
    )
    assert (
        "slot 0 does not lead: its log ends at offset 15 (epoch 2), the in-sync copy of slot 1 at 20 (epoch 2)"
        in (str(partitions.offline[NAME]))
    )
    assert not partitions.lost


def test_it_leads_where_it_is_the_only_one_in_sync(disk: Disk) -> None:
    write(disk.copy, 15)
    write(peer(disk), 20)
    partitions = disk.worker()
    assert refusal(partitions, ALONE, full=True) == 0
    assert partitions.by_name[NAME].log.log_end_offset == 15


@pytest.mark.parametrize(("own", "others"), [(20, 20), (20, 15)])
def test_a_copy_that_no_peer_exceeds_leads_and_reads_no_checksum_of_theirs(
    disk: Disk, own: int, others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(disk.copy, own)
    write(peer(disk), others)
    monkeypatch.delattr(peer_copies, "valid_end")  # whoever calls it fails
    assert refusal(disk.worker(), ASSIGNED, full=True) == 0


def test_a_peer_with_a_later_epoch_counts_more_than_a_longer_log(disk: Disk) -> None:
    write(disk.copy, 25, epoch=2)
    write(peer(disk), 20, epoch=3, begins=18)
    assert refusal(disk.worker(), ASSIGNED, full=True) == REFUSED


def test_what_is_not_valid_of_a_peer_does_not_count(disk: Disk) -> None:
    write(disk.copy, 15)
    write(peer(disk), 20)
    flip(peer(disk), 0.5)
    assert refusal(disk.worker(), ASSIGNED, full=True) == 0


def test_the_loss_is_said_where_all_in_sync_copies_are_damaged(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    write(disk.copy, 20)
    write(peer(disk), 20)
    flip(disk.copy, 0.6)
    flip(peer(disk), 0.3)
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=True) == 0
    end = partitions.by_name[NAME].log.log_end_offset
    assert partitions.lost == {NAME}
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "partition t-0: records are lost: slot 0 leads with the longest valid log" in said.getMessage()
    assert f"ends at offset {end}; records up to 20 existed" in said.getMessage()


def test_the_loss_of_what_was_committed_is_said_where_nothing_had_to_be_cut(disk: Disk) -> None:
    """Pages that were never written back leave no trace, but the checkpoint of the high watermark."""
    write(disk.copy, 15)
    write(peer(disk), 15)
    write_offsets(disk.path / HIGH_WATERMARKS, {NAME: 18})
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=True) == 0
    assert partitions.lost == {NAME}


def test_a_copy_below_what_was_committed_waits_for_a_peer_that_cannot_be_read(disk: Disk) -> None:
    write(disk.copy, 15)
    write_offsets(disk.path / HIGH_WATERMARKS, {NAME: 18})
    assert refusal(disk.worker(), ASSIGNED, full=True) == REFUSED


def test_after_a_clean_stop_nothing_of_the_peers_is_read(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    disk.replica()
    life = disk.worker()
    assert refusal(life, msgspec.structs.replace(ASSIGNED, leader_epoch=0), full=True) == 0
    partition = life.by_name[NAME]
    for number in range(5):
        partition.log.append(batch_of([b"%d" % number]), leader_epoch=0)
    disk.directories.pop().close({NAME: 5})
    disk.directories.pop().close({})
    disk.new_memory()
    monkeypatch.delattr(peer_copies, "claimed_end")
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=True) == 0
    assert not partitions.by_name[NAME].log.is_recovered


def hand_over_by_replica(disk: Disk) -> None:
    """The slot's replica has opened, and recovered, the copy before its slot was chosen to lead."""
    followers = disk.replica()
    assert refusal(followers, FOLLOWED, full=True) == 0
    followers._release(NAME)


def hand_over_by_worker(disk: Disk) -> None:
    partitions = disk.worker()
    assert refusal(partitions, ALONE, full=True) == 0
    disk.table.cells[disk.table.at(0) + HIGH_WATERMARK] = 10  # as the checkpoint had it
    partitions._release(NAME)
    disk.directories.pop().abandon()


@pytest.mark.parametrize("hand_over", [hand_over_by_replica, hand_over_by_worker])
def test_a_copy_is_compared_until_all_in_sync_have_what_there_was_at_the_start(
    disk: Disk, hand_over: Callable[[Disk], None]
) -> None:
    """The slot's other process has closed it in good order: that says nothing of what it lacked before."""
    write(disk.copy, 15)
    hand_over(disk)
    write(peer(disk), 20)
    assert refusal(disk.worker(), ASSIGNED) == REFUSED


def test_a_failover_compares_nothing_once_the_watermark_is_known(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(disk.copy, 15)
    hand_over_by_worker(disk)
    cells, at = disk.table.cells, disk.table.at(0)
    assert cells[at + RESTART_LOG_END] == 15
    cells[at + HIGH_WATERMARK] = 15
    write(peer(disk), 20)  # not committed: the leader that wrote it has died
    monkeypatch.delattr(peer_copies, "claimed_end")
    assert refusal(disk.worker(), ASSIGNED) == 0


def test_what_only_a_damaged_copy_had_is_no_loss(disk: Disk, caplog: pytest.LogCaptureFixture) -> None:
    """The last leader had appended it, and no follower had copied it, so nobody was told that it was committed."""
    write(disk.copy, 19)
    own, other = disk.table.slot_at(0, 0), disk.table.slot_at(0, 1)
    disk.table.cells[other + SLOT_CLOSED_INCARNATION] = ASSIGNED.incarnation
    disk.table.cells[other + SLOT_CUT_TO] = 20
    write(peer(disk), 15)
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=True) == 0
    assert not partitions.lost
    assert "a damaged replica had records up to 20" in caplog.text
    assert disk.table.cells[own + SLOT_CUT_TO] <= 0


@pytest.mark.parametrize("name", [RECOVERY_POINTS, LOG_STARTS, LEADER_EPOCHS])
def test_a_checkpoint_that_is_garbage_does_not_hide_a_longer_copy(disk: Disk, name: str) -> None:
    """Its owner opens the copy without the checkpoint, and so does the comparison."""
    write(disk.copy, 15)
    write(peer(disk), 20)
    directory = peer(disk) if name == LEADER_EPOCHS else disk.path_of(1)
    (directory / name).write_bytes(bytes(40))
    assert refusal(disk.worker(), ASSIGNED, full=True) == REFUSED


def test_a_peer_that_cannot_be_compared_is_named_as_an_error(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    write(disk.copy, 15)
    write(peer(disk), 20)
    (peer(disk) / PARTITION_METADATA).write_bytes(bytes(40))
    assert refusal(disk.worker(), ASSIGNED, full=True) == 0
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert (
        "partition t-0: the in-sync copy of slot 1 cannot be compared with that of slot 0"
        in said.getMessage()
    )


@pytest.mark.parametrize("content", [None, bytes(40)])
def test_a_clean_stop_counts_only_with_a_high_watermark_that_bears_it_out(
    disk: Disk, content: bytes | None
) -> None:
    """The marker says that the stop was clean; nothing says how far the log went."""
    disk.replica()
    life = disk.worker()
    assert refusal(life, msgspec.structs.replace(ASSIGNED, leader_epoch=0), full=True) == 0
    for number in range(5):
        life.by_name[NAME].log.append(batch_of([b"%d" % number]), leader_epoch=0)
    disk.directories.pop().close({NAME: 5})
    disk.directories.pop().close({})
    disk.new_memory()
    write(peer(disk), 8)
    if content is None:
        (disk.path / HIGH_WATERMARKS).unlink()
    else:
        (disk.path / HIGH_WATERMARKS).write_bytes(content)
    assert refusal(disk.worker(), ASSIGNED, full=True) == REFUSED


def raise_epoch(copy: Path, number: int, bit: int) -> None:
    """Flip a bit in the leader epoch of a batch, which no checksum covers."""
    (segment,) = copy.glob("*.log")
    data = bytearray(segment.read_bytes())
    position, _ = list(batches(bytes(data)))[number]
    data[position + 15 - bit // 8] ^= 1 << bit % 8
    segment.write_bytes(data)


def in_the_end(partitions: Partitions, assigned: AssignedPartition) -> int:
    """As `refusal`, after the controller has raised the leader epoch above those of the logs, where it is asked to."""
    code = refusal(partitions, assigned, full=True)
    ahead = partitions.ahead.pop(NAME, None)
    if ahead is None or ahead.longest_slot != 0:
        return code
    return refusal(partitions, msgspec.structs.replace(assigned, leader_epoch=ahead.log_epoch + 1))


@pytest.mark.parametrize("bit", [0, 1, 2, 20, 31])
def test_a_damaged_epoch_lets_no_shorter_copy_win(disk: Disk, bit: int) -> None:
    write(disk.copy, 20)
    write(peer(disk), 15)
    raise_epoch(peer(disk), 14, bit)
    assert in_the_end(disk.worker(), ASSIGNED) == 0


@pytest.mark.parametrize("bit", [0, 1, 2, 20, 31])
def test_a_damaged_epoch_lets_no_shorter_copy_lead(disk: Disk, bit: int) -> None:
    write(disk.copy, 15)
    raise_epoch(disk.copy, 14, bit)
    write(peer(disk), 20)
    assert in_the_end(disk.worker(), ASSIGNED) == REFUSED


@pytest.mark.parametrize("bit", [0, 1, 2, 20, 31])
def test_a_damaged_epoch_does_not_hide_a_longer_copy(disk: Disk, bit: int) -> None:
    write(disk.copy, 15)
    write(peer(disk), 20)
    raise_epoch(peer(disk), 19, bit)
    assert in_the_end(disk.worker(), ASSIGNED) == REFUSED


def test_epochs_that_went_back_decide_nothing_between_copies_of_one_history(disk: Disk) -> None:
    """The metadata was restored: records of epoch 2 follow those of epoch 7, and the torn copy has none of them."""
    for copy, count in ((disk.copy, 15), (peer(disk), 20)):
        log = PartitionLog.open(
            copy, settings=LogSettings(), clock=ManualClock(NOW_MS), topic_id=TOPIC_ID, clean=False
        )
        for number in range(count):
            log.append(batch_of([b"%d" % number]), leader_epoch=7 if number < 16 else 2)
        log.close(clean=False)
    partitions = disk.worker()
    assert refusal(partitions, ASSIGNED, full=True) == REFUSED
    assert partitions.ahead[NAME].longest_slot == 1


def test_an_epoch_that_no_leader_can_have_had_decides_nothing(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    write(disk.copy, 15, epoch=7 + PLAUSIBLE_STEP)
    write(peer(disk), 20, epoch=2, begins=10)
    assert refusal(disk.worker(), ASSIGNED, full=True) == REFUSED
    assert "a copy ends in leader epoch 1000007, and slot 0 is to lead in epoch 3" in caplog.text


def test_an_epoch_that_no_leader_can_have_had_is_an_error_line(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    write(disk.copy, 15, epoch=7 + PLAUSIBLE_STEP)
    assert refusal(disk.worker(), ALONE, full=True) == 0
    (said,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert "partition t-0: slot 0 leads in epoch 3, and its log has epoch 1000007" in said.getMessage()
