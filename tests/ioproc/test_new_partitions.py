"""What is made new leaves nothing to be done for it later: a thousand partitions that nobody uses cost nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.channels.control_channel import Assign
from appliance.channels.partition_table import PartitionTable, table_size_bytes
from appliance.clock import ManualClock
from appliance.log.log_directories import LogDirectories
from appliance.log.partition_state import read_state
from appliance.log.state_publisher import StatePublisher
from tests.log.batches import NOW_MS
from tests.partition_host.test_old_controllers import LATE, TOPIC_ID, Make, assigned, replica, worker


@pytest.mark.parametrize("make", [worker, replica])
def test_readers_find_a_new_partition_once_it_is_acknowledged_and_no_timer_runs(
    tmp_path: Path, make: Make
) -> None:
    clock, said, timers = ManualClock(NOW_MS), list[str](), list[int]()
    directories = LogDirectories.open([tmp_path], node_id=0, cluster_id="c", clock=clock)
    table = PartitionTable(memoryview(bytearray(table_size_bytes(4, 2))), slots=2)
    publisher = StatePublisher(lambda ms, _action: timers.append(ms), clock, interval_ms=20, warn=said.append)
    holder = make(directories, table, publisher, said)
    try:
        assert holder.obey(Assign(3, "c", False, (assigned(holder, LATE, epoch=0),))) is not None
        found = read_state(tmp_path / "t-1")
        assert found is not None
        assert (found.topic_id, found.leader_epoch) == (TOPIC_ID, 0)
        assert (found.log_start, found.high_watermark, found.last_stable, found.log_end) == (0, 0, 0, 0)
        assert found.leads == (make is worker)
        assert (timers, said) == ([], [])
    finally:
        directories.abandon()
