"""The message audit: counts what came in and what went out, and writes it to `__audit` (docs/message-audit.md)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Generator, Iterable, Sequence
from typing import Any, Final, NamedTuple

from appliance.clock import Clock
from appliance.errors import ApplianceError
from appliance.message_audit.attribution import Appended, at_once
from appliance.message_audit.batches import (
    Stamped,
    bucket_of,
    facts_of,
    part_of_header,
    parts_of_records,
    stamped,
)
from appliance.message_audit.commits import Commit
from appliance.message_audit.entry import Finding, Kind, encode
from appliance.message_audit.observation import Fetched
from appliance.message_audit.portions import Result
from appliance.message_audit.positions import GroupPosition, PartitionKey, PartitionPosition
from appliance.message_audit.record_ids import follow, parse_id
from appliance.message_audit.runs import OTHER_BUCKET, Header, count_run
from appliance.message_audit.tally import Key, Part, Tally
from appliance.partition_access.access import PartitionAccess
from appliance.protocol.records.batch import H_BASE_OFFSET
from appliance.services.audit_topics import Audited, AuditTopics
from appliance.services.errand import Step
from appliance.services.giving_way import GivingWay
from appliance.services.log_reads import (
    HEADERS_BYTES,
    RECORDS_BYTES,
    ReadBatch,
    Stretch,
    end_of,
    read_stretch,
    within,
)
from appliance.services.rounds import Rounds

FIRST_BYTES: Final = 256 << 10
"""How much of a log the first read of a range takes; each further one takes twice as much."""
AGAIN_MS: Final = 60_000
"""How often the records of a partition are counted again for a group that goes back."""
AGAIN_MAX: Final = 10_000
"""Groups of partitions of which is known when that was; the one that went back first is forgotten."""
FOUND_MAX: Final = 64
"""Logs of which the headers of the last such read are kept, because groups commit often."""


class Counted(NamedTuple):
    """Batches up to `stop`, an index, have so many records. `stamped`: these, if they had to be read."""

    stop: int
    records: int
    stamped: Sequence[Stamped] = ()


class AuditReader(Rounds[Audited]):
    """The audit of all audited topics."""

    def __init__(
        self, topics: AuditTopics, logs: PartitionAccess, clock: Clock, *, way: GivingWay | None = None
    ) -> None:
        super().__init__(topics, logs, clock, way=way)
        self.records = 0
        self.findings = 0
        self._found: dict[PartitionKey, Stretch] = {}
        self._counted_again: dict[tuple[PartitionKey, str], int] = {}
        self._tally = Tally()

    @property
    def _is_full(self) -> bool:
        return self._tally.is_full or super()._is_full

    @property
    def _has_results(self) -> bool:
        return bool(self._tally)

    def _results(self) -> Iterable[Result]:
        for entry in self._tally.entries():
            # What was fetched is below `observed`, and not below the position of a partition.
            key = (
                None if entry.kind == Kind.FETCHED else self._topics.names.get((entry.topic, entry.partition))
            )
            yield Result(f"{entry.topic}-{entry.partition}", encode(entry), key)

    def _forget_results(self) -> None:
        self._tally = Tally()
        self._found = {}

    def _begin(self) -> Generator[Step, Any, None]:
        self._counted_again = {}  # the commits since the last written round come again
        yield from super()._begin()

    # What came in

    def _bytes_max(self, followed: Audited) -> int | None:
        return RECORDS_BYTES if followed.by_headers else None

    def _take_gap(self, followed: Audited, *, first: int, end: int) -> None:
        self._find(followed, Kind.UNSEEN, first=first, last=end - 1)

    def _take_stretch(
        self, key: PartitionKey, followed: Audited, position: PartitionPosition, stretch: Stretch
    ) -> Generator[Step, Any, None]:
        headers, index = stretch.headers, 0
        end = end_of(headers[-1])
        while index < len(headers) and not self._is_full:
            appended, until = self._appended_around(key, headers[index][H_BASE_OFFSET])
            who = ("", "") if appended is None else (appended.client, appended.principal)
            counted = Key(
                Kind.PRODUCED, followed.topic, followed.partition, OTHER_BUCKET, followed.bucket_ms, *who
            )
            found = yield from self._count(
                followed,
                counted,
                stretch,
                index,
                first=position.next,
                end=end,
                until=until,
                appended=appended,
            )
            self.records += found.records
            if followed.by_headers:
                self._follow_ids(followed, position, found.stamped)
            index = found.stop
            position.next = end_of(headers[index - 1])

    def _follow_ids(self, audited: Audited, position: PartitionPosition, records: Sequence[Stamped]) -> None:
        for offset, time_ms, value in records:
            if value is None or offset < position.next:
                continue
            found_id = parse_id(value)
            found = None if found_id is None else follow(position.sources, *found_id)
            if found is not None:
                bucket = bucket_of(time_ms, audited.bucket_ms)
                key = Key(Kind.PRODUCED, audited.topic, audited.partition, bucket, audited.bucket_ms)
                self._tally.found_id(key, found, offset=offset)
                self.findings += 1

    def _count(
        self,
        audited: Audited,
        counted: Key,
        stretch: Stretch,
        index: int,
        *,
        first: int,
        end: int,
        until: int | None = None,
        appended: Appended | None,
    ) -> Generator[Step, Any, Counted]:
        """Count what [first, end) has of the batches from `index` on, of one at least.

        Args:
            counted: the bucket in it is of no account.
            until: `appended` does not hold for batches from this offset on.
        """
        headers = stretch.headers
        header = headers[index]
        if not audited.by_headers and header[H_BASE_OFFSET] >= first:
            whole = bisect_right(headers, end, index, key=end_of)
            run = count_run(headers, index, whole, end=until, bucket_ms=audited.bucket_ms, appended=appended)
            if run.stop > index:
                self._tally.count_run(counted, run)
                return Counted(run.stop, run.records)
        batch = stretch.batches[index] if stretch.batches else None
        parts, stamps = yield from self._parts(audited, header, batch, first=first, end=end)
        at_ms = None if appended is None else appended.at_ms(header[H_BASE_OFFSET])
        records = 0
        for part in parts:
            if part.records:
                records += part.records
                self._tally.count(counted._replace(bucket=part.bucket), part, at_ms=at_ms)
        return Counted(index + 1, records, stamps)

    def _parts(
        self, audited: Audited, header: Header, batch: ReadBatch | None, *, first: int, end: int
    ) -> Generator[Step, Any, tuple[Sequence[Part], Sequence[Stamped]]]:
        """Return what [first, end) has of a batch, and its records, if they had to be read."""
        facts = facts_of(header)
        if not facts.records:
            return (), ()
        if not audited.by_headers:
            part = part_of_header(facts, audited.bucket_ms, first=first, end=end)
            if part is not None:
                return (part,), ()
        place = audited.place
        if batch is None and place is not None:
            # No more than this batch: with times of their own, the records of each one may belong to several buckets.
            stretch = yield from read_stretch(
                place, facts.first, headers_only=False, bytes_max=facts.size_bytes
            )
            batch = next((each for each in stretch.batches if each.first == facts.first), None)
        if batch is not None:
            try:
                records = stamped(batch.data, batch.position, header, by_headers=audited.by_headers)
            except ApplianceError:
                pass
            else:
                return parts_of_records(records, facts, audited.bucket_ms, first=first, end=end), records
        # It is gone, or cannot be read: all of it is in the bucket of its first record.
        part = part_of_header(facts._replace(max_ms=facts.first_ms), audited.bucket_ms, first=first, end=end)
        return (() if part is None else (part,)), ()

    def _find(
        self, audited: Audited, kind: Kind, *, first: int, last: int, group: str = "", at_ms: int = -1
    ) -> None:
        self.findings += 1
        self._tally.found(
            Finding(
                kind=kind.value,
                topic=audited.topic,
                partition=audited.partition,
                bucket=bucket_of(at_ms, audited.bucket_ms) if at_ms >= 0 else OTHER_BUCKET,
                bucket_ms=audited.bucket_ms,
                group=group,
                first=first,
                last=last,
            )
        )

    # What went out

    def _take_commit(
        self,
        key: PartitionKey,
        followed: Audited,
        position: PartitionPosition,
        *,
        commit: Commit,
        group: GroupPosition,
    ) -> Generator[Step, Any, None]:
        if commit.offset < group.committed:
            self._find(
                followed,
                Kind.REWOUND,
                first=commit.offset,
                last=group.committed - 1,
                group=commit.group,
                at_ms=commit.at_ms,
            )
            if self._may_count_again(key, commit):
                group.counted = min(group.counted, max(commit.offset, position.begin))
        group.committed, group.at, group.at_ms = commit.offset, commit.at, commit.at_ms
        counted = Key(
            Kind.COMMITTED,
            followed.topic,
            followed.partition,
            OTHER_BUCKET,
            followed.bucket_ms,
            group=commit.group,
        )
        end = min(commit.offset, position.next)
        group.counted = yield from self._count_range(
            key, followed, counted, first=group.counted, end=end, at_ms=commit.at_ms
        )

    def _may_count_again(self, key: PartitionKey, commit: Commit) -> bool:
        """Two programs of one group that commit here and there must not have a log counted for each commit."""
        again, who = self._counted_again, (key, commit.group)
        before_ms = again.get(who)
        if before_ms is not None and 0 <= commit.at_ms - before_ms < AGAIN_MS:
            return False
        again.pop(who, None)
        again[who] = commit.at_ms
        if len(again) > AGAIN_MAX:
            del again[next(iter(again))]
        return True

    def _take_fetch(
        self, key: PartitionKey, followed: Audited, position: PartitionPosition, *, fetched: Fetched
    ) -> Generator[Step, Any, None]:
        counted = Key(
            Kind.FETCHED,
            followed.topic,
            followed.partition,
            OTHER_BUCKET,
            followed.bucket_ms,
            fetched.client,
            fetched.principal,
        )
        yield from self._count_range(
            key,
            followed,
            counted,
            first=max(fetched.first, position.begin),
            end=min(fetched.end, position.next),
            at_ms=fetched.at_ms,
            bytes_max=fetched.bytes_max or None,
        )

    def _log_read(self, key: PartitionKey, followed: Audited) -> Generator[Step, Any, None]:
        """Count what groups had committed before the log was counted up to there, for example without a leader."""
        position = self._position(key)
        if position is None:
            return
        for name, group in position.groups.items():
            end = min(group.committed, position.next)
            if group.counted < end:
                counted = Key(
                    Kind.COMMITTED,
                    followed.topic,
                    followed.partition,
                    OTHER_BUCKET,
                    followed.bucket_ms,
                    group=name,
                )
                reached = yield from self._count_range(
                    key, followed, counted, first=group.counted, end=end, at_ms=group.at_ms
                )
                if reached > group.counted:
                    group.counted = reached
                    self._change(key, position)

    def _count_range(
        self,
        key: PartitionKey,
        audited: Audited,
        counted: Key,
        *,
        first: int,
        end: int,
        at_ms: int,
        bytes_max: int | None = None,
    ) -> Generator[Step, Any, int]:
        """Count [first, end) of a log as `counted`; return how far it came. The key's bucket is set here.

        Args:
            bytes_max: of the log, or one batch. A client that fetches here and there costs no more than its answers.
        """
        read_bytes, left_bytes, moment = FIRST_BYTES, bytes_max, at_once(at_ms)
        while first < end:
            stretch = self._found_from(key, first)
            if stretch is None:
                place = audited.place
                if place is None or not self._logs.serves(place):
                    return first
                stretch = yield from read_stretch(
                    place, first, headers_only=not audited.by_headers, bytes_max=read_bytes
                )
                read_bytes = min(2 * read_bytes, RECORDS_BYTES if audited.by_headers else HEADERS_BYTES)
                if not stretch.headers:
                    if stretch.log_start <= first:
                        return first
                    gone_to = min(stretch.log_start, end)
                    self._find(
                        audited, Kind.UNSEEN, first=first, last=gone_to - 1, group=counted.group, at_ms=at_ms
                    )
                    first = gone_to
                elif not audited.by_headers:
                    self._found[key] = stretch
                    if len(self._found) > FOUND_MAX:
                        del self._found[next(iter(self._found))]
                yield from self._rest()
            headers, index = stretch.headers, 0
            if left_bytes is not None and headers:
                end, left_bytes = within(headers, end, left_bytes, is_first=left_bytes == bytes_max)
            while index < len(headers) and first < end:
                if headers[index][H_BASE_OFFSET] >= end:
                    first = end  # compaction has removed what was here
                    break
                found = yield from self._count(
                    audited, counted, stretch, index, first=first, end=end, appended=moment
                )
                index = found.stop
                first = max(first, min(end_of(headers[index - 1]), end))
        return first

    def _found_from(self, key: PartitionKey, offset: int) -> Stretch | None:
        """Return the batches from `offset` on that the last read of this log has found, if `offset` is among them."""
        found = self._found.get(key)
        if found is None or not found.headers[0][H_BASE_OFFSET] <= offset < end_of(found.headers[-1]):
            return None
        at = bisect_right(found.headers, offset, key=end_of)
        return Stretch(found.headers[at:], (), found.log_start)
