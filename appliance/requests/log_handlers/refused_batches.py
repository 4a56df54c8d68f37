"""What a producer has sent behind a batch that was refused is refused like it, until the client goes back.

    sent       A1 A2 A3            before the answer to A1 is read
    answers    A1 NOT_LEADER_OR_FOLLOWER: its worker has died, or does not serve the partition yet
               A2, A3: it does by now. The log would see a gap, OUT_OF_ORDER_SEQUENCE_NUMBER; so they get A1's answer
    sent       A1 A2 A3            again: taken

The gap is of our making, and the word for it does harm: librdkafka takes a new epoch, under which it numbers anew
whatever it has to send again, of every partition, also what was answered REQUEST_TIMED_OUT and is in a log already.
That stands there twice then (`rd_kafka_handle_idempotent_Produce_error`, "skipped sequence numbers"; then
`rd_kafka_toppar_pid_change`). And a log that does not know the producer takes A2 without A1. Kafka has the same
window, but a broker that dies closes its connections; where a worker dies, ours go on.

A batch counts as sent behind if it is of the same producer and epoch, and above all that were refused; one that is
not above them says that the client has read the answers. A client that never goes back hears of its gap after
BEHIND_MAX.

Who was refused, went to another leader and comes back is above, too: that is refused once more, with all that is in
flight behind it, for to take a part of them would be to make the gap. So BEHIND_MAX is four, since an idempotent
producer has five in flight at most (`max.in.flight.requests.per.connection`), and five more of one that comes back
right behind. What was refused longer than FORGOTTEN_NS ago means nothing.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from uuid import UUID

from appliance.protocol.errors import ErrorCode
from appliance.protocol.produce import ProducePartition
from appliance.protocol.records.batch import (
    H_BASE_SEQUENCE,
    H_LAST_OFFSET_DELTA,
    H_MAGIC,
    H_PRODUCER_EPOCH,
    H_PRODUCER_ID,
    HEADER,
    HEADER_BYTES,
    MAGIC_V2,
    SEQUENCE_MAX,
)

BEHIND_MAX: Final = 9
PARTITIONS_MAX: Final = 256
FORGOTTEN_NS: Final = 60_000_000_000
_NAME_MAX: Final = 249
_AHEAD_MAX: Final = SEQUENCE_MAX >> 1

NOT_APPENDED: Final = frozenset(
    {
        int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        int(ErrorCode.LEADER_NOT_AVAILABLE),
        int(ErrorCode.NOT_ENOUGH_REPLICAS),
        int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        int(ErrorCode.UNKNOWN_TOPIC_ID),
        int(ErrorCode.KAFKA_STORAGE_ERROR),
    }
)
"""Answers after which a client sends the batch again, under the same number."""


class _Sent(NamedTuple):
    """What a batch says of itself; `following` is the sequence of the next one."""

    producer_id: int
    epoch: int
    sequence: int
    following: int


class _Refused:
    """Of one partition: the lowest and the highest base sequence that were refused, what follows, and how."""

    __slots__ = ("code", "epoch", "first", "following", "last", "left", "noted_ns", "producer_id")

    def __init__(self, sent: _Sent, *, code: int, now_ns: int) -> None:
        self.producer_id = sent.producer_id
        self.epoch = sent.epoch
        self.first = self.last = sent.sequence
        self.following = sent.following
        self.code = code
        self.noted_ns = now_ns
        self.left = BEHIND_MAX


class RefusedBatches:
    """Of one connection: at most PARTITIONS_MAX partitions, the oldest goes first. All calls are O(1)."""

    __slots__ = ("_by_partition",)

    def __init__(self) -> None:
        self._by_partition: dict[tuple[str | UUID, int], _Refused] = {}

    def __len__(self) -> int:
        return len(self._by_partition)

    def note(
        self, wanted: ProducePartition, view: memoryview, *, code: int, now_ns: int, arriving: bool
    ) -> None:
        """A batch was refused with `code`, and not because of another that was; `arriving`: as it came in."""
        sent = _sent(wanted, view)
        if sent is None or (isinstance(wanted.topic, str) and len(wanted.topic) > _NAME_MAX):
            return
        key = (wanted.topic, wanted.partition)
        known = self._by_partition.get(key)
        if (
            known is None
            or (known.producer_id, known.epoch) != (sent.producer_id, sent.epoch)
            or (arriving and not _is_above(sent.sequence, known.last))
        ):
            if known is None and len(self._by_partition) >= PARTITIONS_MAX:
                del self._by_partition[next(iter(self._by_partition))]
            self._by_partition[key] = _Refused(sent, code=code, now_ns=now_ns)
            return
        # Of several in flight, whichever's answer is known first.
        if _is_above(known.first, sent.sequence):
            known.first = sent.sequence
        else:
            _raise_to(known, sent)
        known.code, known.noted_ns, known.left = code, now_ns, BEHIND_MAX

    def before_placing(self, wanted: ProducePartition, view: memoryview, *, now_ns: int) -> int:
        """What a batch is answered that the log shall not see; 0 where it shall."""
        key = (wanted.topic, wanted.partition)
        known = self._by_partition.get(key)
        if known is None:
            return 0
        sent = _sent(wanted, view)
        if sent is None:
            return 0
        if (
            (sent.producer_id, sent.epoch) != (known.producer_id, known.epoch)
            or not _is_above(sent.sequence, known.last)
            or now_ns - known.noted_ns > FORGOTTEN_NS
        ):
            del self._by_partition[key]
            return 0
        if sent.sequence != known.following:
            known.left = 1 + BEHIND_MAX
        elif known.left == 0:
            del self._by_partition[key]
            return 0
        _raise_to(known, sent)
        known.left -= 1
        return known.code

    def instead_of_gap(self, wanted: ProducePartition, view: memoryview) -> int:
        """What a batch is answered in which the log saw a gap: it was placed before the one ahead was refused.

        0 where the gap is the client's own.
        """
        known = self._by_partition.get((wanted.topic, wanted.partition))
        sent = None if known is None else _sent(wanted, view)
        if (
            known is None
            or sent is None
            or known.left == 0
            or (sent.producer_id, sent.epoch) != (known.producer_id, known.epoch)
            or not _is_above(sent.sequence, known.first)
        ):
            return 0
        _raise_to(known, sent)
        known.left -= 1
        return known.code


def _sent(wanted: ProducePartition, view: memoryview) -> _Sent | None:
    """None of a batch without sequence numbers, or of what is no batch."""
    if wanted.records_length < HEADER_BYTES:
        return None
    header = HEADER.unpack_from(view, wanted.records_position)
    sequence, last_delta = header[H_BASE_SEQUENCE], header[H_LAST_OFFSET_DELTA]
    if header[H_MAGIC] != MAGIC_V2 or header[H_PRODUCER_ID] < 0 or sequence < 0 or last_delta < 0:
        return None
    return _Sent(
        header[H_PRODUCER_ID], header[H_PRODUCER_EPOCH], sequence, (sequence + last_delta + 1) & SEQUENCE_MAX
    )


def _raise_to(known: _Refused, sent: _Sent) -> None:
    if _is_above(sent.sequence, known.last):
        known.last, known.following = sent.sequence, sent.following


def _is_above(sequence: int, other: int) -> bool:
    """Whether it comes after: sequences go on with 0 after SEQUENCE_MAX."""
    return 0 < ((sequence - other) & SEQUENCE_MAX) <= _AHEAD_MAX
