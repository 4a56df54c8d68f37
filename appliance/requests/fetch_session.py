"""Incremental fetch sessions (KIP-227): what a consumer fetches is remembered, so it need not repeat it. Pure.

    session id, epoch in the request      meaning                                   answer
    0, -1                                 no session                                everything, id 0
    0, 0                                  make one of these partitions              everything, the new id
    n, 0                                  forget n, make a new one                  everything, the new id
    n, -1                                 forget n                                  everything, id 0
    n, e > 0                              change n: added, updated, forgotten       what has news, id n

The epoch of a session counts its requests; one that is not the next is refused, so a lost response is noticed.
Sessions belong to one network process: a client that comes back to another one gets FETCH_SESSION_ID_NOT_FOUND and
makes a new session, as after a broker's restart.

A session belongs to the principal that made it. Ids can be guessed, and an answer names the session's topics. Another
principal that uses the id gets FETCH_SESSION_ID_NOT_FOUND, and neither changes nor ends the session.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from appliance.protocol.errors import ErrorCode

INVALID_SESSION_ID: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
EPOCH_LIMIT: Final = 0x7FFFFFFF
EVICTABLE_AFTER_MS: Final = 120_000
PARTITIONS_MAX: Final = 500_000

TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]


@dataclass(slots=True)
class SessionPartition:
    """What the consumer wants of a partition, and what it was last told of it."""

    topic: TopicKey
    partition: int
    fetch_offset: int
    partition_max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    told_high_watermark: int = -1
    told_log_start: int = -1
    told_error: int = 0

    @property
    def key(self) -> PartitionKey:
        return (self.topic, self.partition)

    def want(self, other: SessionPartition) -> None:
        """Takes over what a later request says of the same partition."""
        self.fetch_offset = other.fetch_offset
        self.partition_max_bytes = other.partition_max_bytes
        self.current_leader_epoch = other.current_leader_epoch
        self.last_fetched_epoch = other.last_fetched_epoch

    def has_news(self, *, error: int, records_bytes: int, high_watermark: int, log_start: int) -> bool:
        """Whether an incremental answer must mention it, if not for its diverging epoch; notes what it is told."""
        news = (
            error != 0
            or records_bytes > 0
            or high_watermark != self.told_high_watermark
            or log_start != self.told_log_start
            or error != self.told_error
        )
        self.told_high_watermark = high_watermark
        self.told_log_start = log_start
        self.told_error = error
        return news


class FetchSession:
    """One consumer's session: partitions in the order in which they are looked at."""

    __slots__ = ("epoch", "id", "partitions", "principal", "used_ms", "uses_topic_ids")

    def __init__(
        self,
        session_id: int,
        partitions: Iterable[SessionPartition],
        *,
        principal: str,
        uses_topic_ids: bool,
    ) -> None:
        self.id = session_id
        self.principal = principal
        self.epoch = 1
        self.uses_topic_ids = uses_topic_ids
        self.used_ms = 0
        self.partitions: OrderedDict[PartitionKey, SessionPartition] = OrderedDict(
            (p.key, p) for p in partitions
        )

    def to_the_end(self, key: PartitionKey) -> None:
        """A partition that had records is looked at last next time, so that none starves."""
        if key in self.partitions:
            self.partitions.move_to_end(key)


@dataclass(frozen=True, slots=True)
class SessionTurn:
    """How one request is to be answered: which partitions, and under which session id.

    `session` is None for a request without a session; `incremental` answers mention only partitions with news.
    """

    session: FetchSession | None
    partitions: tuple[SessionPartition, ...]
    incremental: bool = False
    error: int = 0

    @property
    def session_id(self) -> int:
        return self.session.id if self.session is not None else INVALID_SESSION_ID


class FetchSessions:
    """The sessions of one network process; at most `slots`, the idle ones make room.

    A client names as many partitions as it likes, so these are bounded, too. A new session that has no room is not
    made: its client repeats what it fetches in each request. A session that grows beyond the bound ends, and its client
    makes another one.

    Args:
        partitions_max: of all sessions together.
        first_id: where ids begin; network processes begin apart, so that a stray id is not found elsewhere.
    """

    __slots__ = ("_ids", "_partitions", "_partitions_max", "_sessions", "_slots", "_stride")

    def __init__(
        self, slots: int, *, partitions_max: int = PARTITIONS_MAX, first_id: int = 1, stride: int = 1
    ) -> None:
        self._slots = slots
        self._partitions_max = partitions_max
        self._partitions = 0
        self._stride = stride
        self._ids = itertools.count(first_id, stride)
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def turn(
        self,
        session_id: int,
        epoch: int,
        wanted: tuple[SessionPartition, ...],
        forgotten: Iterable[PartitionKey],
        *,
        principal: str,
        uses_topic_ids: bool,
        now_ms: int,
    ) -> SessionTurn:
        """What this request of `principal` means, by the table above."""
        session = self._sessions.get(session_id)
        if session is not None and session.principal != principal:
            session = None
        if epoch in {FINAL_EPOCH, INITIAL_EPOCH}:
            if session is not None:
                self._drop(session_id)
            if epoch == FINAL_EPOCH:
                return SessionTurn(None, wanted)
            made = self._create(wanted, principal=principal, uses_topic_ids=uses_topic_ids, now_ms=now_ms)
            return SessionTurn(made, wanted)
        if session is None:
            return SessionTurn(None, (), error=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        if session.epoch != epoch:
            return SessionTurn(None, (), error=int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))
        if session.uses_topic_ids != uses_topic_ids:
            return SessionTurn(None, (), error=int(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR))
        if not self._change(session, wanted, forgotten):
            return SessionTurn(None, (), error=int(ErrorCode.FETCH_SESSION_ID_NOT_FOUND))
        session.epoch = epoch + 1 if epoch < EPOCH_LIMIT else 1
        session.used_ms = now_ms
        self._sessions.move_to_end(session_id)
        if not session.partitions:
            del self._sessions[session_id]
            return SessionTurn(None, (), incremental=True)
        return SessionTurn(session, tuple(session.partitions.values()), incremental=True)

    def _change(
        self, session: FetchSession, wanted: Iterable[SessionPartition], forgotten: Iterable[PartitionKey]
    ) -> bool:
        """Add, update and forget partitions; return False if there was no room, so that the session has ended."""
        for partition in wanted:
            known = session.partitions.get(partition.key)
            if known is None:
                if self._partitions >= self._partitions_max:
                    self._drop(session.id)
                    return False
                session.partitions[partition.key] = partition
                self._partitions += 1
            else:
                known.want(partition)
        for key in forgotten:
            if session.partitions.pop(key, None) is not None:
                self._partitions -= 1
        return True

    def _create(
        self, wanted: tuple[SessionPartition, ...], *, principal: str, uses_topic_ids: bool, now_ms: int
    ) -> FetchSession | None:
        """A new session, or None where there is nothing to remember or no room for it."""
        if not wanted:
            return None
        while len(self._sessions) >= self._slots or self._partitions + len(wanted) > self._partitions_max:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms < EVICTABLE_AFTER_MS:
                return None
            self._drop(oldest.id)
        session_id = next(self._ids)
        if session_id >= EPOCH_LIMIT:
            self._ids = itertools.count(1 + session_id % self._stride, self._stride)
            session_id = next(self._ids)
        session = FetchSession(session_id, wanted, principal=principal, uses_topic_ids=uses_topic_ids)
        session.used_ms = now_ms
        self._sessions[session_id] = session
        self._partitions += len(session.partitions)
        return session

    def _drop(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)

    def check(self) -> None:
        """Raises AssertionError unless every session is under its id and none is empty."""
        assert len(self._sessions) <= self._slots
        assert self._partitions == sum(len(session.partitions) for session in self._sessions.values())
        assert self._partitions <= self._partitions_max
        for session_id, session in self._sessions.items():
            assert session.id == session_id
            assert session.partitions

    def statistics(self) -> dict[str, int]:
        return {
            "sessions": len(self._sessions),
            "partitions": sum(len(session.partitions) for session in self._sessions.values()),
        }
