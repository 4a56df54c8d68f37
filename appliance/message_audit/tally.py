"""Counts of one round: records, bytes and delays, by everything that the audit tells apart.

Bounded: a batch adds to at most BUCKETS_PER_BATCH_MAX buckets, and records beyond them count in OTHER_BUCKET. A round
ends when it has ENTRIES_MAX entries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from appliance.message_audit.entry import Count, Finding, Kind
from appliance.message_audit.histogram import Histogram
from appliance.message_audit.record_ids import IdFinding
from appliance.message_audit.runs import OTHER_BUCKET, Run

ENTRIES_MAX: Final = 2_000
BUCKETS_PER_BATCH_MAX: Final = 500
FINDINGS_MAX: Final = 1_000


class Part(NamedTuple):
    """Records of one bucket in one batch. `timestamp_ms`: of the oldest of them."""

    bucket: int
    records: int
    size_bytes: int
    timestamp_ms: int


class Key(NamedTuple):
    kind: Kind
    topic: str
    partition: int
    bucket: int
    bucket_ms: int
    client: str = ""
    principal: str = ""
    group: str = ""


class _Counted:
    __slots__ = ("delays", "records", "size_bytes")

    def __init__(self) -> None:
        self.records = 0
        self.size_bytes = 0
        self.delays = Histogram()


class Tally:
    """What a round has counted and found."""

    __slots__ = ("_counted", "_findings", "_more")

    def __init__(self) -> None:
        self._counted: dict[Key, _Counted] = {}
        self._findings: list[Finding] = []
        self._more: dict[tuple[str, int, str], int] = {}

    def __bool__(self) -> bool:
        return bool(self._counted or self._findings)

    @property
    def is_full(self) -> bool:
        """Whether the round should end."""
        return len(self._counted) >= ENTRIES_MAX or len(self._findings) >= FINDINGS_MAX

    def count(self, key: Key, part: Part, *, at_ms: int | None) -> None:
        """Count records that came in or went out at `at_ms`; None: the time is not known."""
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = _Counted()
        counted.records += part.records
        counted.size_bytes += part.size_bytes
        if at_ms is not None and part.timestamp_ms >= 0:
            counted.delays.add(at_ms - part.timestamp_ms, part.records)

    def count_run(self, key: Key, run: Run) -> None:
        """Count a run of batches, in its own bucket and not in that of the key."""
        if not run.records:
            return
        key = key._replace(bucket=run.bucket)
        counted = self._counted.get(key)
        if counted is None:
            counted = self._counted[key] = _Counted()
        counted.records += run.records
        counted.size_bytes += run.size_bytes
        for delay_ms, records in run.delays.items():
            counted.delays.add(delay_ms, records)

    def found_id(self, key: Key, found: IdFinding, *, offset: int) -> None:
        """Note missing, late or repeated ids. `offset`: of the record that showed it."""
        self.found(
            Finding(
                kind=found.kind.value,
                topic=key.topic,
                partition=key.partition,
                bucket=key.bucket,
                bucket_ms=key.bucket_ms,
                source=found.source,
                first=found.first,
                last=found.last,
                offset=offset,
            )
        )

    def found(self, finding: Finding) -> None:
        """Note a finding. Above FINDINGS_MAX in a round, findings of one kind in a partition become one number."""
        if len(self._findings) < FINDINGS_MAX:
            self._findings.append(finding)
        else:
            more = finding.topic, finding.partition, finding.kind
            self._more[more] = self._more.get(more, 0) + finding.last - finding.first + 1

    def entries(self) -> Iterator[Count | Finding]:
        """Return what is to be written."""
        for key, counted in self._counted.items():
            yield Count(
                **key._asdict(),
                records=counted.records,
                bytes=counted.size_bytes,
                delay=counted.delays.counts,
                delay_sum_ms=counted.delays.sum_ms,
                delay_max_ms=counted.delays.max_ms,
            )
        yield from self._findings
        for (topic, partition, kind), number in self._more.items():
            yield Finding(kind=kind, topic=topic, partition=partition, bucket=OTHER_BUCKET, unnamed=number)
