"""What was sent behind a refused batch: told by sequence numbers alone, and not for ever."""

from __future__ import annotations

import random

import pytest

from appliance.protocol.errors import ErrorCode
from appliance.protocol.produce import ProducePartition
from appliance.protocol.records.batch import SEQUENCE_MAX
from appliance.protocol.records.record import Record, encode_record, frame_batch
from appliance.requests.log_handlers.refused_batches import (
    BEHIND_MAX,
    FORGOTTEN_NS,
    PARTITIONS_MAX,
    RefusedBatches,
)

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

    def is_refused(
        self, sequence: int, code: int = NOT_LEADER, *, partition: int = 0, arriving: bool = False
    ) -> None:
        batch = self.batch(sequence, partition=partition)
        self.refused.note(*batch, code=code, now_ns=NOW_NS, arriving=arriving)

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
    sender.sends(11)
    in_flight = range(70, 75)
    assert [sender.sends(sequence) for sequence in in_flight] == [NOT_LEADER] * 5
    assert [sender.sends(sequence) for sequence in in_flight] == [0] * 5


@pytest.mark.parametrize("spent", range(5))
@pytest.mark.parametrize("from_there", [0, 50])
def test_all_that_is_in_flight_is_refused_or_nothing(spent: int, from_there: int) -> None:
    # However many were refused before the client went away: a part would be a gap.
    sender = Sender()
    sender.is_refused(10)
    for each in range(spent):
        sender.sends(11 + each)
    begins = 11 + spent + from_there
    answers = [sender.sends(begins + each) for each in range(5)]
    assert answers in ([NOT_LEADER] * 5, [0] * 5)


def test_a_batch_that_is_refused_again_has_company_again() -> None:
    sender = Sender()
    for sequence in (10, 11, 12):
        sender.is_refused(sequence, arriving=True)
    sender.is_refused(10, arriving=True)
    assert [sender.sends(11), sender.sends(12), sender.sends(10)] == [NOT_LEADER, NOT_LEADER, 0]


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
    refused.note(wanted, memoryview(raw), code=NOT_LEADER, now_ns=NOW_NS, arriving=True)
    assert not refused
    assert refused.instead_of_gap(wanted, memoryview(raw)) == 0


def test_no_more_than_so_many_partitions_are_remembered() -> None:
    sender = Sender()
    for partition in range(PARTITIONS_MAX + 10):
        sender.is_refused(10, partition=partition)
    assert len(sender.refused) == PARTITIONS_MAX
    assert sender.sends(11, partition=9) == 0
    assert sender.sends(11, partition=10) == NOT_LEADER


@pytest.mark.parametrize("seed", range(60))
def test_a_client_of_five_in_flight_never_meets_a_gap(seed: int) -> None:
    run = Run(random.Random(seed))
    for _ in range(1500):
        run.step()
    assert run.appended > 20


class Run:
    """A producer, two slots that lead in turn, and workers that die and come back: any order of events.

    What the log has is the same on both slots, but for what a worker had taken and nobody else when it died.
    """

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.senders = [Sender(), Sender()]
        self.leader = 0
        self.is_up = self.serves = True
        self.appended = 0
        self.ring: list[tuple[int, list[int]]] = []
        self.in_flight: list[list[int]] = []  # sequence, answer; -1 while there is none
        self.slot = self.next = 0
        self.first_failed: int | None = None

    def step(self) -> None:
        what = self.chance.choice(
            [self.send, self.send, self.send, self.work, self.work, self.hear, self.hear, self.upset]
        )
        what()

    def send(self) -> None:
        if len(self.in_flight) == 5 or self.first_failed is not None:
            return
        sequence, sender = self.next, self.senders[self.slot]
        self.next += 1
        request = [sequence, -1]
        self.in_flight.append(request)
        if self.leader != self.slot or not self.is_up:
            sender.is_refused(sequence, arriving=True)
            request[1] = NOT_LEADER
        elif code := sender.sends(sequence):
            request[1] = code
        else:
            self.ring.append((self.slot, request))

    def work(self) -> None:
        if not self.ring or not self.is_up:
            return
        slot, request = self.ring.pop(0)
        sender, sequence = self.senders[slot], request[0]
        if slot != self.leader or not self.serves:
            sender.is_refused(sequence)
            request[1] = NOT_LEADER
        elif sequence > self.appended:
            request[1] = sender.gap_at(sequence)
            assert request[1], f"a gap at {sequence} after {self.appended}"
        else:
            self.appended = max(self.appended, sequence + 1)
            request[1] = 0

    def hear(self) -> None:
        if self.in_flight and self.in_flight[0][1] >= 0:
            sequence, answer = self.in_flight.pop(0)
            if answer and self.first_failed is None:
                self.first_failed = sequence
        if not self.in_flight and self.first_failed is not None:
            self.next, self.first_failed = self.first_failed, None
            self.slot = self.chance.choice([self.slot, self.leader])

    def upset(self) -> None:
        match self.chance.randrange(8):
            case 0:
                self.is_up = self.serves = False
                for slot, request in self.ring:
                    self.senders[slot].is_refused(request[0])
                    request[1] = int(ErrorCode.REQUEST_TIMED_OUT)
                self.ring.clear()
            case 1 | 2:
                self.is_up = True
            case 3 | 4 | 5:
                self.serves = self.is_up
            case 6:
                self.leader = 1 - self.leader
            case _:
                pass
