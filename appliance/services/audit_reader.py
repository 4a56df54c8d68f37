"""The message audit: counts what came in and what went out, and writes it to `__audit` (docs/message-audit.md)."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Final

from appliance.clock import Clock
from appliance.message_audit.batches import (
    ID_HEADER,
    bucket_of,
    facts_of,
    part_of_header,
    parts_of_records,
    time_of,
)
from appliance.message_audit.commits import Commit
from appliance.message_audit.entry import Finding, Kind, encode
from appliance.message_audit.observation import Fetched
from appliance.message_audit.portions import Result
from appliance.message_audit.positions import GroupPosition, PartitionKey, PartitionPosition
from appliance.message_audit.record_ids import follow, parse_id
from appliance.message_audit.tally import OTHER_BUCKET, Key, Part, Tally
from appliance.partition_access.access import PartitionAccess
from appliance.services.audit_topics import Audited, AuditTopics
from appliance.services.errand import Step
from appliance.services.log_reads import HEADERS_BYTES, ReadBatch, read_stretch
from appliance.services.rounds import Rounds

FIRST_BYTES: Final = 256 << 10
"""How much of a log the first read of a range takes; each further one takes twice as much."""
FOUND_MAX: Final = 64
"""Logs of which the headers of the last such read are kept, because groups commit often."""


class AuditReader(Rounds[Audited]):
    """The audit of all audited topics."""

    def __init__(self, topics: AuditTopics, logs: PartitionAccess, clock: Clock) -> None:
        super().__init__(topics, logs, clock)
        self.records = 0
        self.findings = 0
        self._found: dict[PartitionKey, list[ReadBatch]] = {}
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

    # What came in

    def _reads_headers(self, followed: Audited) -> bool:
        return not followed.by_headers

    def _take_gap(self, followed: Audited, *, first: int, end: int) -> None:
        self._find(followed, Kind.UNSEEN, first=first, last=end - 1)

    def _take_batch(
        self, key: PartitionKey, followed: Audited, position: PartitionPosition, batch: ReadBatch
    ) -> Generator[Step, Any, None]:
        parts = yield from self._parts(followed, batch, first=position.next, end=batch.end)
        client, principal, at_ms = self._appended_by(key, batch.first)
        for part in parts:
            if part.records:
                self.records += part.records
                counted = Key(
                    Kind.PRODUCED,
                    followed.topic,
                    followed.partition,
                    part.bucket,
                    followed.bucket_ms,
                    client,
                    principal,
                )
                self._tally.count(counted, part, at_ms=at_ms)
        if followed.by_headers:
            self._follow_ids(followed, position, batch)

    def _follow_ids(self, audited: Audited, position: PartitionPosition, batch: ReadBatch) -> None:
        for record in batch.records:
            if record.offset < position.next:
                continue
            value = next((value for name, value in record.headers if name == ID_HEADER), None)
            found_id = parse_id(value)
            found = None if found_id is None else follow(position.sources, *found_id)
            if found is not None:
                bucket = bucket_of(time_of(record, by_headers=True), audited.bucket_ms)
                key = Key(Kind.PRODUCED, audited.topic, audited.partition, bucket, audited.bucket_ms)
                self._tally.found_id(key, found, offset=record.offset)
                self.findings += 1

    def _parts(
        self, audited: Audited, batch: ReadBatch, *, first: int, end: int
    ) -> Generator[Step, Any, list[Part]]:
        """Return what [first, end) has of a batch; reads the batch if its header does not say it."""
        facts = facts_of(batch.header)
        if not facts.records:
            return []
        if not audited.by_headers or batch.is_unread:
            part = part_of_header(facts, audited.bucket_ms, first=first, end=end)
            if part is not None:
                return [part]
        records = batch.records
        place = audited.place
        if not records and place is not None and not batch.is_unread:
            # No more than this batch: with times of their own, the records of each one may belong to several buckets.
            stretch = yield from read_stretch(
                place, batch.first, headers_only=False, bytes_max=facts.size_bytes
            )
            found = [each for each in stretch.batches if each.first == batch.first]
            records = found[0].records if found else []
        if not records:  # gone, or not to be decoded: all in the bucket of its first record
            part = part_of_header(
                facts._replace(max_ms=facts.first_ms), audited.bucket_ms, first=first, end=end
            )
            return [] if part is None else [part]
        return parts_of_records(
            records, facts, audited.bucket_ms, first=first, end=end, by_headers=audited.by_headers
        )

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
        self, key: PartitionKey, audited: Audited, counted: Key, *, first: int, end: int, at_ms: int
    ) -> Generator[Step, Any, int]:
        """Count [first, end) of a log as `counted`; return how far it came. The key's bucket is set here."""
        bytes_max = FIRST_BYTES
        while first < end:
            batches = self._found_before(key, first)
            if not batches:
                place = audited.place
                if place is None or not self._logs.serves(place):
                    return first
                stretch = yield from read_stretch(
                    place, first, headers_only=not audited.by_headers, bytes_max=bytes_max
                )
                bytes_max = min(2 * bytes_max, HEADERS_BYTES)
                batches = stretch.batches
                if not batches:
                    if stretch.log_start <= first:
                        return first
                    gone_to = min(stretch.log_start, end)
                    self._find(
                        audited, Kind.UNSEEN, first=first, last=gone_to - 1, group=counted.group, at_ms=at_ms
                    )
                    first = gone_to
                elif not audited.by_headers:
                    self._found[key] = batches
                    if len(self._found) > FOUND_MAX:
                        del self._found[next(iter(self._found))]
            for batch in batches:
                if batch.first >= end:
                    first = end  # compaction has removed what was here
                    break
                upto = min(batch.end, end)
                parts = yield from self._parts(audited, batch, first=first, end=upto)
                for part in parts:
                    if part.records:
                        self._tally.count(counted._replace(bucket=part.bucket), part, at_ms=at_ms)
                first = max(first, upto)
        return first

    def _found_before(self, key: PartitionKey, offset: int) -> list[ReadBatch]:
        """Return the batches from `offset` on that the last read of this log has found, if `offset` is among them."""
        found = self._found.get(key)
        if not found or not found[0].first <= offset < found[-1].end:
            return []
        return [batch for batch in found if batch.end > offset]
