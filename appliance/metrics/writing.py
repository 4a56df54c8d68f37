"""What the writers of pages share: one sample, one histogram, sums over processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.channels.roles import RoleKind
from appliance.channels.traffic_table import BUCKETS_NS, HISTOGRAM_WORDS
from appliance.metrics.exposition import Family, FamilyWriter, Value
from appliance.metrics.snapshot import Snapshot

NS_PER_S: Final = 1e9
MS_PER_S: Final = 1000.0
BUCKETS: Final = len(BUCKETS_NS) + 1
"""Buckets of a histogram, with the one above the last bound."""
_BOUNDS: Final = tuple(repr(bound_ns / NS_PER_S) for bound_ns in BUCKETS_NS)

assert 1 + BUCKETS <= HISTOGRAM_WORDS


def write_one(page: FamilyWriter, family: Family, value: Value, *labels: str) -> None:
    """Write a family that has one sample."""
    page.begin(family)
    page.add(value, *labels)


def write_histogram(page: FamilyWriter, words: Sequence[int], *labels: str) -> None:
    """Write a histogram of the family that `begin` named last, from its words (`channels.traffic_table`)."""
    page.histogram(labels, bounds=_BOUNDS, counts=words[1 : 1 + BUCKETS], total=words[0] / NS_PER_S)


def counted(now: Snapshot, kind: RoleKind, name: str) -> int:
    """Return the sum of a counter over all processes of a kind and all of their lives."""
    return sum(each.counted[name] for each in now.of_kind(kind))


def shown(now: Snapshot, kind: RoleKind, name: str) -> int:
    """Return the sum of what the running processes of a kind have now."""
    return sum(each.counters[name] for each in now.of_kind(kind) if each.usage.is_running)
