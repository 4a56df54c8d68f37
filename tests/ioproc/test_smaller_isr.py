"""A smaller ISR may be all that acks=all and readers have waited for: the worker's other parts hear of it at once."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from appliance.channels.control_channel import Assign, AssignedPartition
from appliance.channels.partition_table import HIGH_WATERMARK, PartitionTable, table_size_bytes
from appliance.clock import ManualClock
from appliance.ioproc.partition import Partition
from appliance.log.log_directories import LogDirectories
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.listener import PartitionListener
from tests.log.batches import NOW_MS, batch_of
from tests.partition_host.test_old_controllers import KEPT, LATE, TOPIC_ID, worker


def test_the_watermark_is_moved_by_who_tells_those_that_wait_before_the_next_log_is_open(
    tmp_path: Path,
) -> None:
    clock = ManualClock(NOW_MS)
    directories = LogDirectories.open([tmp_path], node_id=0, cluster_id="c", clock=clock)
    table = PartitionTable(memoryview(bytearray(table_size_bytes(4, 2))), slots=2)
    publisher = StatePublisher(lambda _ms, _action: None, clock, interval_ms=20, warn=print)
    heard: list[tuple[int, int, bool]] = []

    class Listener(PartitionListener[Partition]):
        def high_watermark_may_move(self, partition: Partition) -> None:
            before = partition.high_watermark
            partition.publish()
            heard.append(
                (before, table.cells[table.at(partition.row) + HIGH_WATERMARK], LATE in partitions.by_name)
            )

    partitions = worker(directories, table, publisher, [], listener=Listener())
    try:
        kept, late = (
            AssignedPartition("t", TOPIC_ID, each, each, 9, 0, 0, (0, 1), (0, 1), {})
            for each in (KEPT.partition, LATE.partition)
        )
        partitions.obey(Assign(3, "c", False, (kept,)))
        led = partitions.by_name[KEPT]
        led.log.append(batch_of(), leader_epoch=0)
        led.publish()
        assert led.high_watermark == 0
        shrunk = replace(kept, isr=(0,), partition_epoch=1)
        partitions.obey(Assign(3, "c", False, (shrunk, late)))
        assert heard == [(0, led.log.log_end_offset, False)]
    finally:
        directories.abandon()
