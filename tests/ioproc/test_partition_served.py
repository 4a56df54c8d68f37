"""What a worker publishes of a partition when it begins to lead it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    PartitionTable,
    table_size_bytes,
)
from appliance.clock import ManualClock
from appliance.errors import StorageFault
from appliance.ioproc.group_commit import GroupCommit
from appliance.ioproc.partition import Partition
from appliance.ioproc.pokes import Pokes
from appliance.log.config import LogSettings
from appliance.log.durable_tail import DurableTail
from appliance.log.flusher import Flusher
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.partition_host.listener import PartitionListener
from appliance.protocol.records.batch import TRANSACTIONAL
from tests.log.batches import NOW_MS, batch_of, marker

INCARNATION = 7


def leader(
    path: Path,
    table: PartitionTable,
    slot: int,
    *,
    epoch: int,
    records: int,
    checkpoint: int = 0,
    replicas: tuple[int, ...] = (0, 1),
) -> Partition:
    log = PartitionLog.open(path / f"{slot}", settings=LogSettings(), clock=ManualClock(NOW_MS))
    for _ in range(records):
        log.append(batch_of(), leader_epoch=0)
    assigned = AssignedPartition(
        "t", UUID(int=1), 0, 0, INCARNATION, slot, epoch, replicas, replicas, {}, epoch
    )
    partition = Partition(assigned, log, table=table, slot=slot, min_insync_replicas=1, clock=ManualClock())
    if len(replicas) > 1:
        partition.replicate(assigned, checkpoint=checkpoint, now_ms=0)
    partition.serve()
    return partition


def a_table() -> PartitionTable:
    return PartitionTable(memoryview(bytearray(table_size_bytes(1, 2))), slots=2)


def test_names_of_segments_mean_other_files_once_another_slot_leads(tmp_path: Path) -> None:
    table = a_table()
    leader(tmp_path, table, 0, epoch=0, records=3)
    before = table.files_version(0)
    leader(tmp_path, table, 1, epoch=1, records=3)
    assert table.files_version(0) != before
    assert not table.files_version(0) & 1


def test_they_do_once_the_only_replica_is_another_slot(tmp_path: Path) -> None:
    """At the end of a reassignment the new replica leads alone."""
    table = a_table()
    leader(tmp_path, table, 0, epoch=0, records=3, replicas=(0,))
    before = table.files_version(0)
    leader(tmp_path, table, 1, epoch=1, records=3, replicas=(1,))
    assert table.files_version(0) not in (before, before | 1)


def test_the_next_leader_begins_with_the_high_watermark_that_readers_saw(tmp_path: Path) -> None:
    table = a_table()
    leader(tmp_path, table, 0, epoch=0, records=3)
    table.cells[table.at(0) + HIGH_WATERMARK] = 2
    assert leader(tmp_path, table, 1, epoch=1, records=3).high_watermark == 2


def test_after_the_host_s_start_it_begins_with_the_checkpoint(tmp_path: Path) -> None:
    assert leader(tmp_path, a_table(), 0, epoch=0, records=3, checkpoint=1).high_watermark == 1


def test_a_leader_that_lacks_records_begins_with_what_it_has(tmp_path: Path) -> None:
    table = a_table()
    leader(tmp_path, table, 0, epoch=0, records=3)
    table.cells[table.at(0) + HIGH_WATERMARK] = 3
    assert leader(tmp_path, table, 1, epoch=1, records=1).high_watermark == 1


def test_an_old_leader_that_wakes_late_leaves_alone_what_its_successor_serves(tmp_path: Path) -> None:
    table = a_table()
    old = leader(tmp_path, table, 0, epoch=0, records=3)
    new = leader(tmp_path, table, 1, epoch=1, records=3)
    old.withdraw()
    assert table.serves(0, INCARNATION)
    old.withdraw(offline=True)
    assert table.serves(0, INCARNATION)
    new.withdraw()
    assert not table.serves(0, INCARNATION)


def test_under_fsync_a_transaction_is_open_until_its_end_is_on_the_disk(tmp_path: Path) -> None:
    table = a_table()
    led = leader(tmp_path, table, 0, epoch=0, records=0, replicas=(0,))
    batch = batch_of(attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=0)
    led.log.append(batch, leader_epoch=0, transaction_verified=True)
    led.log.append(batch_of(), leader_epoch=0)
    led.durable = DurableTail(led.log, flushed_to=0)
    end = marker(committed=True, producer_id=7)
    led.log.append(end, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
    for durable, last_stable in ((1, 0), (2, 0), (3, 3)):
        led.durable.offset = durable
        led.publish()
        assert (led.high_watermark, led.last_stable_offset) == (durable, last_stable)


def test_without_followers_ended_transactions_are_forgotten(tmp_path: Path) -> None:
    led = leader(tmp_path, a_table(), 0, epoch=0, records=0, replicas=(0,))
    for sequence in range(3):
        batch = batch_of(attributes=TRANSACTIONAL, producer_id=7, producer_epoch=0, base_sequence=sequence)
        led.log.append(batch, leader_epoch=0, transaction_verified=True)
        end = marker(committed=True, producer_id=7)
        led.log.append(end, leader_epoch=0, origin=AppendOrigin.COORDINATOR)
        led.publish()
        assert led.log.producers.undecided() == []
    assert led.last_stable_offset == 6


def test_under_fsync_what_a_follower_s_disk_may_not_have_counts_once_it_was_forced(tmp_path: Path) -> None:
    table = a_table()
    led = leader(tmp_path, table, 0, epoch=0, records=3)
    led.log.update_settings(LogSettings(durability="fsync"))
    submitted: list[Callable[[], None]] = []
    ended: list[Callable[[StorageFault | None], None]] = []

    class Thread(Flusher):
        def submit(self, work: Callable[[], None], ended_by: Callable[[StorageFault | None], None]) -> None:
            submitted.append(work)
            ended.append(ended_by)

    commits = GroupCommit(
        Pokes(table),
        reply=lambda *_: None,
        flusher=Thread("test", eventfd=-1),
        listener=PartitionListener(),
    )
    commits.bind(led)
    assert led.durable is not None
    assert led.durable.offset == led.log.recovery_point == 0
    commits.turn()
    submitted.pop()()
    ended.pop()(None)
    commits.turn()
    assert led.durable.offset == 3
