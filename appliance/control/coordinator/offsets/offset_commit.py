"""OffsetCommit 2-10: which records a commit makes, and what its answer will be once they are committed.

| a partition is answered | when |
|---|---|
| UNKNOWN_TOPIC_OR_PARTITION | the topic, or the partition, is not there (v2-9) |
| UNKNOWN_TOPIC_ID | no topic has that id (v10) |
| OFFSET_METADATA_TOO_LARGE | its metadata is longer than offset.metadata.max.bytes, in characters |
| what the group says | the member may not commit (unknown, fenced, of another generation): all partitions alike |
| what became of the append | as `append_errors.py` says; 0 once the record is committed |

The record carries the topic's id, so a topic of the same name that comes later never inherits the offset. What is left
out: nothing. Source: `OffsetMetadataManager.java`, `KafkaApis.scala` of Kafka 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final
from uuid import UUID

from appliance.control.coordinator.group.effects import Topic, Topics
from appliance.control.coordinator.pieces import Steps
from appliance.protocol.errors import ErrorCode
from appliance.protocol.offset_commit import (
    DEFAULT_RETENTION,
    PIECE,
    CommitRequest,
    CommittedTopic,
    TopicErrors,
)
from appliance.protocol.records.offset_records import (
    NO_EXPIRY,
    CommittedOffset,
    ValueEncoder,
    encode_value,
    key_prefix,
    suffix,
)

_TIME_MAX_MS: Final = 2**63 - 1
_UNKNOWN_PARTITION: Final = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN_TOPIC_ID: Final = int(ErrorCode.UNKNOWN_TOPIC_ID)
_METADATA_TOO_LARGE: Final = int(ErrorCode.OFFSET_METADATA_TOO_LARGE)


class CommitPlan:
    """`errors` holds once `records`, (key, value), are committed; `puts` is what they will have changed.

    `puts`: topic and, for each of its partitions, the value.
    """

    __slots__ = ("errors", "puts", "records")

    def __init__(
        self,
        records: Sequence[tuple[bytes, bytes]],
        puts: Sequence[tuple[str, Sequence[tuple[int, bytes]]]],
        errors: Sequence[TopicErrors],
    ) -> None:
        self.records = records
        self.puts = puts
        self.errors = errors


class CommitPlanner:
    """Plans commits one after the other; those of one moment share what their values have alike.

    Args:
        metadata_max: offset.metadata.max.bytes, in characters.
    """

    __slots__ = ("_encoders", "_encoders_ms", "_metadata_max", "_topics")

    def __init__(self, topics: Topics, *, metadata_max: int) -> None:
        self._topics = topics
        self._metadata_max = metadata_max
        self._encoders: dict[UUID, ValueEncoder] = {}
        self._encoders_ms = 0

    def plan(self, request: CommitRequest, now_ms: int) -> CommitPlan:
        """What the request comes to, for a member that may commit."""
        records: list[tuple[bytes, bytes]] = []
        puts: list[tuple[str, Sequence[tuple[int, bytes]]]] = []
        answers: list[TopicErrors] = []
        metadata_max = self._metadata_max
        expire_ms = NO_EXPIRY
        if request.retention_ms != DEFAULT_RETENTION:
            expire_ms = min(now_ms + request.retention_ms, _TIME_MAX_MS)
        for wanted, partitions in request.topics:
            topic, missing = self._topic(wanted)
            if topic is None:
                answers.append((wanted, [(each[0], missing) for each in partitions]))
                continue
            name, count = topic.name, topic.partitions
            prefix = key_prefix(request.group_id, name)
            encoder = self._encoder(topic.topic_id, now_ms)
            results: list[tuple[int, int]] = []
            put: list[tuple[int, bytes]] = []
            for index, offset, leader_epoch, metadata in partitions:
                if not 0 <= index < count:
                    results.append((index, _UNKNOWN_PARTITION))
                    continue
                if metadata and _is_too_large(metadata, metadata_max):
                    results.append((index, _METADATA_TOO_LARGE))
                    continue
                if expire_ms == NO_EXPIRY:
                    value = encoder.encode(offset, leader_epoch, metadata)
                else:
                    value = encode_value(
                        CommittedOffset(offset, leader_epoch, metadata.decode(), now_ms, expire_ms)
                    )
                results.append((index, 0))
                records.append((prefix + suffix(index), value))
                put.append((index, value))
            puts.append((name, put))
            answers.append((wanted, results))
        return CommitPlan(records, puts, answers)

    def _topic(self, wanted: str | UUID) -> tuple[Topic | None, int]:
        if isinstance(wanted, str):
            return self._topics.by_name(wanted), _UNKNOWN_PARTITION
        return self._topics.by_id(wanted), _UNKNOWN_TOPIC_ID

    def _encoder(self, topic_id: UUID, now_ms: int) -> ValueEncoder:
        if now_ms != self._encoders_ms:
            self._encoders_ms = now_ms
            self._encoders = {}
        encoder = self._encoders.get(topic_id)
        if encoder is None:
            encoder = self._encoders[topic_id] = ValueEncoder(now_ms, topic_id)
        return encoder


class LongPlan:
    """The plan of a long commit while it is made. `is_too_large`: its records are more than one batch may hold.

    Then none is kept, and only the answer is made.
    """

    __slots__ = ("_bytes_max", "bytes", "errors", "puts", "records")

    def __init__(self, bytes_max: int) -> None:
        self.records: list[tuple[bytes, bytes]] = []
        self.puts: list[tuple[str, list[tuple[int, bytes]]]] = []
        self.errors: list[tuple[str | UUID, list[tuple[int, int]]]] = []
        self.bytes = 0
        self._bytes_max = bytes_max

    @property
    def is_too_large(self) -> bool:
        return self.bytes > self._bytes_max

    def add(self, plan: CommitPlan, *, goes_on: bool) -> None:
        """Take in the next part. `goes_on`: its only topic is the last one, of which it has more partitions."""
        if goes_on:
            self.errors[-1][1].extend(plan.errors[0][1])
        else:
            self.errors += [(topic, list(results)) for topic, results in plan.errors]
        self.bytes += sum([len(key) + len(value) for key, value in plan.records])
        if self.is_too_large:
            self.records.clear()
            self.puts.clear()
            return
        self.records += plan.records
        if goes_on and plan.puts and self.puts and self.puts[-1][0] == plan.puts[0][0]:
            self.puts[-1][1].extend(plan.puts[0][1])
        else:
            self.puts += [(topic, list(values)) for topic, values in plan.puts]

    def made(self) -> CommitPlan:
        return CommitPlan(self.records, self.puts, self.errors)


def plan_in_pieces(
    planner: CommitPlanner, request: CommitRequest, now_ms: int, plan: LongPlan
) -> Steps[None]:
    """Plan the request into `plan`, some of its partitions at a time."""
    for topics, goes_on in _parts(request.topics):
        part = CommitRequest(request.group_id, topics, retention_ms=request.retention_ms)
        plan.add(planner.plan(part, now_ms), goes_on=goes_on)
        yield None


def _parts(topics: Sequence[CommittedTopic]) -> Iterator[tuple[Sequence[CommittedTopic], bool]]:
    """The topics in parts of up to PIECE partitions or topics; whether a part goes on with the last one's topic."""
    some: list[CommittedTopic] = []
    count = 0
    for topic, partitions in topics:
        if some and count + len(partitions) + 1 > PIECE:
            yield some, False
            some, count = [], 0
        if len(partitions) < PIECE:
            some.append((topic, partitions))
            count += len(partitions) + 1
            continue
        for first in range(0, len(partitions), PIECE):
            yield [(topic, partitions[first : first + PIECE])], first > 0
    if some:
        yield some, False


def failed_commit(errors: Sequence[TopicErrors], error: int) -> list[TopicErrors]:
    """`errors`, where what would have been committed was not: it has `error` now."""
    return [(topic, [(index, found or error) for index, found in each]) for topic, each in errors]


def _is_too_large(metadata: bytes, characters_max: int) -> bool:
    # Characters are never more than bytes.
    return len(metadata) > characters_max and len(metadata.decode()) > characters_max
