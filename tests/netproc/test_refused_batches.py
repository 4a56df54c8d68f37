"""What was sent behind a refused batch: told by sequence numbers alone, and not for ever."""

from __future__ import annotations

import pytest

from appliance.netproc.log_handlers.refused_batches import (
    BEHIND_MAX,
    FORGOTTEN_NS,
    PARTITIONS_MAX,
    RefusedBatches,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.produce import ProducePartition
from appliance.protocol.records.batch import SEQUENCE_MAX
from appliance.protocol.records.record import Record, encode_record, frame_batch

NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
NOT_ENOUGH = int(ErrorCode.NOT_ENOUGH_REPLICAS)
NOW_NS = 5_000_000_000


class Sender:
    """A producer's batches, as they lie in a request's block."""

    def __init__(self, producer_id: int = 7, epoch: int = 0) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.refused = RefusedBatches()

    def batch(
        self, sequence: int, *, partition: int = 0, topic: str = "t"
    ) -> tuple[ProducePartition, memoryview]:
        payload = encode_record(Record(b"value"), offset_delta=0, timestamp_delta_ms=0)
        raw = frame_batch(
            payload,
            count=1,
            base_timestamp_ms=1,
            max_timestamp_ms=1,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=sequence,
        )
        return ProducePartition(topic, partition, 5, len(raw)), memoryview(b"12345" + raw)

    def is_refused(self, sequence: int, code: int = NOT_LEADER, *, partition: int = 0) -> None:
        self.refused.note(*self.batch(sequence, partition=partition), code=code, now_ns=NOW_NS)

    def sends(self, sequence: int, *, partition: int = 0, later_ns: int = 0) -> int:
        """The answer to a batch that the log does not see, 0 where it does."""
        return self.refused.before_placing(
            *self.batch(sequence, partition=partition), now_ns=NOW_NS + later_ns
        )

    def gap_at(self, sequence: int) -> int:
        return self.refused.instead_of_gap(*self.batch(sequence))


@pytest.mark.parametrize("code", [NOT_LEADER, NOT_ENOUGH])
def test_what_was_sent_behind_a_refused_batch_is_refused_like_it(code: int) -> None:
    sender = Sender()
    sender.is_refused(10, code)
    assert [sender.sends(sequence) for sequence in (11, 12, 14)] == [code] * 3


def test_the_refused_batch_itself_and_what_follows_it_are_for_the_log() -> None:
    sender = Sender()
    sender.is_refused(10)
    assert sender.sends(11) == NOT_LEADER
    assert [sender.sends(sequence) for sequence in (10, 11, 12)] == [0, 0, 0]
    assert not sender.refused


def test_a_client_that_begins_again_above_the_refused_batch_is_refused_no_more() -> None:
    # Another slot took the first one meanwhile.
    sender = Sender()
    sender.is_refused(10)
    assert [sender.sends(sequence) for sequence in (70, 71)] == [NOT_LEADER] * 2
    assert [sender.sends(sequence) for sequence in (70, 71)] == [0, 0]


def test_a_client_that_never_goes_back_hears_of_its_gap() -> None:
    sender = Sender()
    sender.is_refused(10)
    answers = [sender.sends(sequence) for sequence in range(11, 13 + BEHIND_MAX)]
    assert answers == [NOT_LEADER] * BEHIND_MAX + [0, 0]


def test_a_gap_that_the_log_saw_gets_the_answer_of_the_batch_ahead() -> None:
    sender = Sender()
    sender.is_refused(10)
    assert sender.sends(13) == NOT_LEADER  # while 11 and 12 are with the worker
    assert [sender.gap_at(11), sender.gap_at(12)] == [NOT_LEADER] * 2
    assert sender.sends(10) == 0


def test_a_gap_of_the_clients_own_is_told() -> None:
    sender = Sender()
    assert sender.gap_at(11) == 0
    sender.is_refused(10)
    assert sender.gap_at(9) == 0


def test_answers_may_come_in_any_order() -> None:
    sender = Sender()
    for sequence in (11, 10, 12):
        sender.is_refused(sequence)
    assert [sender.gap_at(11), sender.sends(13)] == [NOT_LEADER] * 2
    assert sender.sends(11) == 0


def test_each_refusal_of_its_own_lets_as_many_follow_as_may_be_in_flight() -> None:
    sender = Sender()
    sender.is_refused(10)
    assert [sender.sends(11), sender.sends(12)] == [NOT_LEADER] * 2
    sender.is_refused(13)
    assert [sender.sends(14 + each) for each in range(BEHIND_MAX)] == [NOT_LEADER] * BEHIND_MAX


def test_another_epoch_or_producer_or_partition_is_not_behind() -> None:
    sender = Sender()
    sender.is_refused(10)
    assert sender.sends(11, partition=1) == 0
    for other in (Sender(epoch=1), Sender(producer_id=8)):
        other.refused = sender.refused
        sender.is_refused(10)
        assert other.sends(11) == 0


def test_sequences_that_begin_anew_at_zero_are_behind_the_largest() -> None:
    sender = Sender()
    sender.is_refused(SEQUENCE_MAX)
    assert [sender.sends(0), sender.sends(1)] == [NOT_LEADER] * 2
    assert sender.sends(SEQUENCE_MAX) == 0


def test_what_was_refused_long_ago_is_forgotten() -> None:
    sender = Sender()
    sender.is_refused(10)
    assert sender.sends(11, later_ns=FORGOTTEN_NS) == NOT_LEADER
    assert sender.sends(70, later_ns=FORGOTTEN_NS + 1) == 0
    assert not sender.refused


@pytest.mark.parametrize(
    "raw", [b"", bytes(61), bytes(16) + b"\x02" + bytes(26) + b"\xff" * 14 + bytes(30)], ids=len
)
def test_bytes_without_a_sequence_are_for_the_log_to_judge(raw: bytes) -> None:
    sender = Sender()
    sender.is_refused(10)
    wanted = ProducePartition("t", 0, 0, len(raw))
    assert sender.refused.before_placing(wanted, memoryview(raw), now_ns=NOW_NS) == 0
    assert sender.sends(11) == NOT_LEADER
    refused = RefusedBatches()
    refused.note(wanted, memoryview(raw), code=NOT_LEADER, now_ns=NOW_NS)
    assert not refused
    assert refused.instead_of_gap(wanted, memoryview(raw)) == 0


def test_no_more_than_so_many_partitions_are_remembered() -> None:
    sender = Sender()
    for partition in range(PARTITIONS_MAX + 10):
        sender.is_refused(10, partition=partition)
    assert len(sender.refused) == PARTITIONS_MAX
    assert sender.sends(11, partition=9) == 0
    assert sender.sends(11, partition=10) == NOT_LEADER
