"""Adds up entries of `__audit` to what `appliance audit` shows: buckets, groups, clients, and what is missing.

`difference` of a group in a bucket is what came in less what went out to it: above 0, so many records are not consumed
yet, or were removed before; below 0, it has read some of them again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from appliance.message_audit.entry import COUNTS, Entry, Kind
from appliance.message_audit.histogram import Histogram

FINDINGS_MAX: Final = 10_000
"""So many findings are listed; `unnamed` has the number of the others."""


class _Sum:
    __slots__ = ("bytes", "delays", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bytes = 0
        self.delays = Histogram()

    def add(self, entry: Entry) -> None:
        self.records += entry.records
        self.bytes += entry.bytes
        self.delays.merge(entry.delay, sum_ms=entry.delay_sum_ms, max_ms=entry.delay_max_ms)

    def shown(self) -> dict[str, Any]:
        delays = self.delays
        return {
            "records": self.records,
            "bytes": self.bytes,
            "delay": {
                "records": delays.count,
                "mean_ms": delays.sum_ms // delays.count if delays.count else None,
                "p50_ms": delays.quantile_ms(0.5),
                "p99_ms": delays.quantile_ms(0.99),
                "max_ms": delays.max_ms if delays.count else None,
                "counts": delays.counts,
            },
        }


_Who = tuple[str, str, str]
_Ranges = list[tuple[int, int]]


class Report:
    """What the entries of one topic say.

    Args:
        from_ms, to_ms: only buckets that begin in [from_ms, to_ms). Records without a time are in bucket -1, which is
            always shown.
        group: only this group.
    """

    def __init__(self, topic: str, *, from_ms: int, to_ms: int, group: str | None = None) -> None:
        self._topic = topic
        self._from_ms = from_ms
        self._to_ms = to_ms
        self._group = group
        self._buckets: dict[tuple[int, int], dict[tuple[str, _Who], _Sum]] = {}
        self._findings: list[Entry] = []
        self._late: dict[tuple[int, str], _Ranges] = {}
        self._unnamed: dict[str, int] = {}

    def add(self, entry: Entry) -> None:
        """Take an entry of any topic and kind."""
        if entry.topic != self._topic:
            return
        if entry.kind == Kind.LATE:  # whenever it came, it is not missing
            self._late.setdefault((entry.partition, entry.source), []).append((entry.first, entry.last))
        if entry.bucket >= 0 and not self._from_ms <= entry.bucket < self._to_ms:
            return
        if self._group is not None and entry.group not in ("", self._group):
            return
        if entry.kind in COUNTS:
            who = entry.group, entry.client, entry.principal
            sums = self._buckets.setdefault((entry.bucket, entry.bucket_ms), {})
            sums.setdefault((entry.kind, who), _Sum()).add(entry)
        elif entry.kind != Kind.POSITIONS:
            if entry.unnamed or len(self._findings) >= FINDINGS_MAX:
                number = entry.unnamed or entry.last - entry.first + 1
                self._unnamed[entry.kind] = self._unnamed.get(entry.kind, 0) + number
            else:
                self._findings.append(entry)

    def result(self) -> dict[str, Any]:
        """Return the report, with stable keys."""
        groups = sorted({who[0] for sums in self._buckets.values() for _, who in sums if who[0]})
        if self._group is not None and self._group not in groups:
            groups.append(self._group)
        return {
            "topic": self._topic,
            "buckets": [
                self._shown_bucket(bucket, bucket_ms, sums, groups)
                for (bucket, bucket_ms), sums in sorted(self._buckets.items())
            ],
            "findings": list(self._shown_findings()),
            "unnamed": dict(sorted(self._unnamed.items())),
        }

    def _shown_bucket(
        self, bucket: int, bucket_ms: int, sums: dict[tuple[str, _Who], _Sum], groups: list[str]
    ) -> dict[str, Any]:
        produced = _Sum()
        for (kind, _), each in sums.items():
            if kind == Kind.PRODUCED:
                _merge(produced, each)
        shown: dict[str, Any] = {"bucket": bucket, "bucket_ms": bucket_ms, "produced": produced.shown()}
        shown["producers"] = _by_client(sums, Kind.PRODUCED)
        shown["groups"] = []
        for group in groups:
            each = sums.get((Kind.COMMITTED, (group, "", "")), _Sum())
            shown["groups"].append(
                {"group": group, "difference": produced.records - each.records, **each.shown()}
            )
        shown["fetched"] = _by_client(sums, Kind.FETCHED)
        return shown

    def _shown_findings(self) -> Iterable[dict[str, Any]]:
        for found in self._findings:
            ranges = [(found.first, found.last)]
            if found.kind == Kind.MISSING:
                ranges = without(ranges, self._late.get((found.partition, found.source), []))
            for first, last in ranges:
                yield {
                    "kind": found.kind,
                    "partition": found.partition,
                    "bucket": found.bucket,
                    "source": found.source,
                    "group": found.group,
                    "first": first,
                    "last": last,
                    "offset": found.offset,
                }


def without(ranges: _Ranges, taken: _Ranges) -> _Ranges:
    """Return `ranges` without what is in `taken`; first and last are included in both."""
    for first, last in sorted(taken):
        left: _Ranges = []
        for low, high in ranges:
            if last < low or high < first:
                left.append((low, high))
                continue
            if low < first:
                left.append((low, first - 1))
            if last < high:
                left.append((last + 1, high))
        ranges = left
    return ranges


def _merge(into: _Sum, other: _Sum) -> None:
    into.records += other.records
    into.bytes += other.bytes
    into.delays.merge(other.delays.counts, sum_ms=other.delays.sum_ms, max_ms=other.delays.max_ms)


def _by_client(sums: dict[tuple[str, _Who], _Sum], wanted: Kind) -> list[dict[str, Any]]:
    return [
        {"client": client, "principal": principal, **each.shown()}
        for (kind, (_, client, principal)), each in sorted(sums.items())
        if kind == wanted
    ]
