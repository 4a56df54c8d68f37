"""A producer overtakes itself when a partition changes leaders: told so that it sends again, and in order."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.partition_table import PartitionTable, table_size_bytes
from appliance.channels.request_channel import ERROR, produce_request
from appliance.clock import ManualClock
from appliance.ioproc.handlers.produce import produce
from appliance.ioproc.partition import OVERTAKEN_NS, Partition
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.protocol.errors import ErrorCode
from tests.log.batches import batch_of

NONE = int(ErrorCode.NONE)
NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
OUT_OF_ORDER = int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
OVERTAKEN_MS = OVERTAKEN_NS // 1_000_000
PRODUCER = 7


class Leader:
    """Slot 1's worker, which has taken over a partition whose log ends with the producer's sequence 0."""

    def __init__(self, path: Path, replicas: tuple[int, ...] = (0, 1)) -> None:
        self.clock = ManualClock()
        log = PartitionLog.open(path / "t-0", settings=LogSettings(), clock=self.clock)
        log.append(batch_of(producer_id=PRODUCER, producer_epoch=0, base_sequence=0), leader_epoch=0)
        table = PartitionTable(memoryview(bytearray(table_size_bytes(1, 2))), slots=2)
        assigned = AssignedPartition("t", UUID(int=1), 0, 0, 7, 1, 1, replicas, replicas, {})
        self.partition = Partition(
            assigned, log, table=table, slot=1, min_insync_replicas=1, clock=self.clock
        )
        if len(replicas) > 1:
            self.partition.replicate(assigned, checkpoint=1, now_ms=0)
        self.partition.serve()

    def answers(self, sequence: int) -> int:
        batch = batch_of(producer_id=PRODUCER, producer_epoch=0, base_sequence=sequence)
        request = produce_request(1, 0, 0, 7, 0, -1, 0, len(batch), 9, 1000, 0)
        answer = produce(self.partition, request, memoryview(batch), 0)
        assert answer is not None
        return answer[ERROR]

    def elected_again(self) -> None:
        self.partition.leader_epoch += 1
        self.partition.serve_epoch()


def test_a_batch_that_comes_before_the_one_the_leader_before_refused_is_asked_for_again(
    tmp_path: Path,
) -> None:
    leader = Leader(tmp_path)
    assert leader.answers(2) == NOT_LEADER
    assert leader.partition.log.log_end_offset == 1
    assert [leader.answers(1), leader.answers(2)] == [NONE, NONE]


def test_a_client_whose_gap_is_its_own_hears_of_it_after_a_while(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.clock.advance(OVERTAKEN_MS)
    assert leader.answers(2) == OUT_OF_ORDER


def test_a_new_election_may_have_changed_leaders_anew(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.clock.advance(OVERTAKEN_MS)
    leader.elected_again()
    assert leader.answers(2) == NOT_LEADER


def test_being_told_the_same_again_changes_nothing(tmp_path: Path) -> None:
    leader = Leader(tmp_path)
    leader.clock.advance(OVERTAKEN_MS)
    leader.partition.serve_epoch()
    assert leader.answers(2) == OUT_OF_ORDER


@pytest.mark.parametrize("later_ms", [0, OVERTAKEN_MS])
def test_where_nobody_else_can_have_led_a_gap_is_a_gap(tmp_path: Path, later_ms: int) -> None:
    leader = Leader(tmp_path, replicas=(1,))
    leader.clock.advance(later_ms)
    assert leader.answers(2) == OUT_OF_ORDER
