"""A command that a stop cuts short: what was opened is held and closes, the rest is left as it was."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.control_channel import Assign, AssignedPartition
from appliance.channels.partition_table import PartitionTable, table_size_bytes
from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.log.log_directories import LogDirectories
from appliance.log.shares import FOLLOWERS
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.listener import PartitionListener
from appliance.replicas.follower import Follower
from appliance.replicas.followers import Followers
from tests.log.batches import NOW_MS

PARTITIONS = 40
TOPIC_ID = UUID(int=9)


class Slot(PartitionListener[Follower]):
    """Slot 1's followed copies; it is told to stop once it has opened `stops_after` of them."""

    def __init__(self, path: Path, *, stops_after: int) -> None:
        clock = ManualClock(NOW_MS)
        self.stops_after = stops_after
        path.mkdir(exist_ok=True)
        self.directories = LogDirectories.open(
            [path], node_id=1, cluster_id="c", clock=clock, share=FOLLOWERS
        )
        self.warnings: list[str] = []
        self.followers = Followers(
            self.directories,
            PartitionTable(memoryview(bytearray(table_size_bytes(PARTITIONS, 2))), slots=2),
            slot=1,
            log_defaults={},
            directories_of=lambda _: [path],
            listener=self,
            publisher=StatePublisher(lambda _, __: None, clock, interval_ms=20, warn=self.warnings.append),
            warn=self.warnings.append,
        )

    def before_opening(self) -> bool:
        return len(self.followers.by_name) < self.stops_after

    def command(self) -> Assign:
        partitions = tuple(
            AssignedPartition("t", TOPIC_ID, row, row, 1, 0, 0, (0, 1), (0,), {}) for row in range(PARTITIONS)
        )
        return Assign(1, "c", full=True, partitions=partitions)


@pytest.mark.parametrize("stops_after", [0, 1, 17])
def test_a_command_ends_where_the_process_is_told_to_stop(tmp_path: Path, stops_after: int) -> None:
    slot = Slot(tmp_path / "data", stops_after=stops_after)

    assert slot.followers.obey(slot.command()) is None, "it says that the rest could not be opened"

    assert set(slot.followers.by_name) == {TopicPartition("t", index) for index in range(stops_after)}
    assert not slot.followers.unopened
    assert not slot.warnings
    slot.directories.close(slot.followers.high_watermarks())

    again = Slot(tmp_path / "data", stops_after=PARTITIONS + 1)
    answer = again.followers.obey(again.command())
    assert answer is not None
    assert not answer.failures
    assert len(again.followers.by_name) == PARTITIONS
