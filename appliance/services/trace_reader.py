"""The message trace: writes the steps of traced records to `__trace` (docs/trace.md).

A traced record is remembered for its later steps: the end of its transaction, fetches, commits of groups. At most
TRACED_MAX are remembered of a partition, and TRACED_ALL_MAX in all; the oldest ones are forgotten. At most PER_SECOND
records begin a trace in a second, so that clients that ask for a trace of everything do not cost more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Any, Final, NamedTuple

from appliance.clock import NS_PER_MS, Clock
from appliance.errors import ApplianceError
from appliance.message_audit.batches import TIME_MS_MAX
from appliance.message_audit.commits import Commit
from appliance.message_audit.observation import Fetched, short
from appliance.message_audit.portions import Result
from appliance.message_audit.positions import GroupPosition, PartitionKey, PartitionPosition, Traced
from appliance.message_trace.event import Event, Step, encode
from appliance.message_trace.finding import Found, traced
from appliance.partition_access.access import PartitionAccess
from appliance.protocol.records.batch import (
    CONTROL,
    H_ATTRIBUTES,
    H_PRODUCER_ID,
    NO_PRODUCER_ID,
    TRANSACTIONAL,
)
from appliance.protocol.records.control import decode_marker
from appliance.services.errand import Step as ErrandStep
from appliance.services.giving_way import GivingWay
from appliance.services.log_reads import RECORDS_BYTES, ReadBatch, Stretch
from appliance.services.rounds import Rounds, no_steps
from appliance.services.trace_topics import TracedPartition, TraceTopics

STEP_BYTES: Final = 2 * RECORDS_BYTES
"""Each step costs the owner of the log a request. With more bytes, reading them is slower than that saves."""
PER_SECOND: Final = 1_000
TRACED_MAX: Final = 1_000
TRACED_ALL_MAX: Final = 100_000
EVENTS_MAX: Final = 5_000
"""A round ends when it has so many events."""
EVENTS_ALL_MAX: Final = 50_000
"""Further steps of a round are dropped, and counted as `untraced_records`. A round ends between two observations, and
one of these may have millions of steps."""
DETAIL_LENGTH_MAX: Final = 300


class Who(NamedTuple):
    """Who did a step, as far as it is known."""

    client: str = ""
    principal: str = ""
    group: str = ""
    detail: str = ""


NOBODY: Final = Who()


class TraceReader(Rounds[TracedPartition]):
    """The trace of all traced topics.

    Args:
        export: gets the events of a round that is in `__trace`.
        way: as of `Rounds`.
    """

    def __init__(
        self,
        topics: TraceTopics,
        logs: PartitionAccess,
        clock: Clock,
        *,
        export: Callable[[list[Event]], None] | None = None,
        way: GivingWay | None = None,
    ) -> None:
        super().__init__(topics, logs, clock, way=way)
        self._export = export
        self._events: list[Event] = []
        self._written: list[Event] = []
        self._budget = PER_SECOND
        self._budget_ns = 0
        self.traced_records = 0
        self.untraced_records = 0

    @property
    def _is_full(self) -> bool:
        return len(self._events) >= EVENTS_MAX or super()._is_full

    @property
    def _has_results(self) -> bool:
        return bool(self._events)

    def _results(self) -> Iterable[Result]:
        self._written = self._events
        for event in self._events:
            # A fetch is below `observed`, and not below the position of a partition.
            is_fetch = event.step == Step.FETCHED
            key = None if is_fetch else self._topics.names.get((event.topic, event.partition))
            yield Result(event.trace, encode(event), key)

    def _forget_results(self) -> None:
        self._events = []

    def _results_written(self) -> None:
        if self._export is not None:
            self._export(self._written)
        self._written = []

    # What came in

    def _bytes_max(self, followed: TracedPartition) -> int | None:
        return STEP_BYTES

    def _take_gap(self, followed: TracedPartition, *, first: int, end: int) -> None:
        """Records that are gone have no trace."""

    def _take_stretch(
        self,
        key: PartitionKey,
        followed: TracedPartition,
        position: PartitionPosition,
        stretch: Stretch,
    ) -> Generator[ErrandStep, Any, None]:
        for batch in stretch.batches:
            self._take_batch(key, followed, position, batch)
            position.next = batch.end
            if self._is_full:
                break
        return no_steps()

    def _take_batch(
        self, key: PartitionKey, followed: TracedPartition, position: PartitionPosition, batch: ReadBatch
    ) -> None:
        attributes, producer_id = batch.header[H_ATTRIBUTES], batch.header[H_PRODUCER_ID]
        if attributes & CONTROL:
            self._end_transaction(followed, position, batch.view, producer_id)
            return
        for found in traced(
            batch.data,
            batch.position,
            batch.header,
            topic=followed.topic,
            partition=followed.partition,
            sample=followed.sample,
        ):
            if found.offset < position.next:
                continue
            if not self._may_begin():
                self.untraced_records += 1
                continue
            open_id = producer_id if attributes & TRANSACTIONAL else NO_PRODUCER_ID
            self._begin_trace(key, followed, position, found=found, producer_id=open_id)

    def _may_begin(self) -> bool:
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._budget_ns >= 1_000 * NS_PER_MS:
            self._budget, self._budget_ns = PER_SECOND, now_ns
        if self._budget <= 0:
            return False
        self._budget -= 1
        return True

    def _begin_trace(
        self,
        key: PartitionKey,
        followed: TracedPartition,
        position: PartitionPosition,
        *,
        found: Found,
        producer_id: int,
    ) -> None:
        self.traced_records += 1
        client, principal, appended_ms = self._appended_by(key, found.offset)
        stamped_ms = _time_ms(found.timestamp_ms)
        produced_ms = stamped_ms if found.produced_ms is None else _time_ms(found.produced_ms)
        at_ms = -1 if appended_ms is None else appended_ms
        if appended_ms is None and found.produced_ms is not None:
            at_ms = stamped_ms  # the broker has appended it itself, so no network process has seen it
        record = Traced(found.trace, found.parent, producer_id, at_ms)
        who = Who(client, principal)
        self._note(Step.PRODUCED, followed, found.offset, record, at_ms=produced_ms, who=who)
        self._note(Step.APPENDED, followed, found.offset, record, at_ms=at_ms, since_ms=produced_ms, who=who)
        self._note(Step.REPLICATED, followed, found.offset, record, at_ms=self.limited_ms)
        origin = found.origin
        if origin is not None:
            detail = f"first {origin.topic}-{origin.partition}-{origin.offset} {origin.detail}".rstrip()
            self._note(
                Step(origin.step),
                followed,
                found.offset,
                record,
                at_ms=at_ms,
                who=Who(detail=detail[:DETAIL_LENGTH_MAX]),
            )
        position.traced[found.offset] = record
        many = len(self._topics.followed)
        if len(position.traced) > max(1, min(TRACED_MAX, TRACED_ALL_MAX // max(many, 1))):
            del position.traced[next(iter(position.traced))]

    def _end_transaction(
        self, followed: TracedPartition, position: PartitionPosition, batch: memoryview, producer_id: int
    ) -> None:
        try:
            marker = decode_marker(batch)
        except ApplianceError:
            return
        if marker is None:
            return
        step = Step.COMMITTED if marker.committed else Step.ABORTED
        for offset, record in position.traced.items():
            if record.producer_id == producer_id:
                position.traced[offset] = record._replace(producer_id=NO_PRODUCER_ID)
                self._note(step, followed, offset, record, at_ms=self.limited_ms)

    def _log_read(self, key: PartitionKey, followed: TracedPartition) -> Generator[ErrandStep, Any, None]:
        return no_steps()

    # What went out

    def _take_commit(
        self,
        key: PartitionKey,
        followed: TracedPartition,
        position: PartitionPosition,
        *,
        commit: Commit,
        group: GroupPosition,
    ) -> Generator[ErrandStep, Any, None]:
        self._note_range(
            Step.CONSUMED,
            followed,
            position,
            first=group.committed,
            end=commit.offset,
            at_ms=commit.at_ms,
            who=Who(group=short(commit.group)),
        )
        group.counted = group.committed = commit.offset
        group.at, group.at_ms = commit.at, commit.at_ms
        return no_steps()

    def _take_fetch(
        self,
        key: PartitionKey,
        followed: TracedPartition,
        position: PartitionPosition,
        *,
        fetched: Fetched,
    ) -> Generator[ErrandStep, Any, None]:
        self._note_range(
            Step.FETCHED,
            followed,
            position,
            first=fetched.first,
            end=fetched.end,
            at_ms=fetched.at_ms,
            who=Who(fetched.client, fetched.principal),
        )
        return no_steps()

    def _note_range(
        self,
        step: Step,
        followed: TracedPartition,
        position: PartitionPosition,
        *,
        first: int,
        end: int,
        at_ms: int,
        who: Who,
    ) -> None:
        found: list[int] = []
        for offset in reversed(position.traced):  # most readers are near the end
            if offset < first:
                break
            if offset < end:
                found.append(offset)
        for offset in reversed(found):
            self._note(step, followed, offset, position.traced[offset], at_ms=at_ms, who=who)

    def _note(
        self,
        step: Step,
        followed: TracedPartition,
        offset: int,
        record: Traced,
        *,
        at_ms: int,
        since_ms: int | None = None,
        who: Who = NOBODY,
    ) -> None:
        if len(self._events) >= EVENTS_ALL_MAX:
            self.untraced_records += 1
            return
        self._events.append(
            Event(
                trace=record.trace,
                step=step.value,
                topic=followed.topic,
                partition=followed.partition,
                offset=offset,
                at_ms=at_ms,
                since_ms=record.appended_ms if since_ms is None else since_ms,
                parent=record.parent,
                client=who.client,
                principal=who.principal,
                group=who.group,
                detail=who.detail,
            )
        )


def _time_ms(said_ms: int) -> int:
    """Return a time that a client has said, or -1. It may send any 64 bits, and a collector refuses such a span."""
    return said_ms if 0 <= said_ms <= TIME_MS_MAX else -1
