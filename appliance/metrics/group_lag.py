"""How far each group is behind in each topic: in records, and in time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from appliance.metrics.ages import Age, Ages
from appliance.metrics.groups import Group, Place
from appliance.metrics.snapshot import Snapshot

_MS_PER_S: Final = 1000
_NO_AGES: Final[Mapping[Place, Age]] = {}


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind in one topic: partition → records, up to the high watermark and the LSO.

    `seconds` and `stable_seconds` say how old the record is that the group reads next, 0 where it has read everything;
    `commit_seconds` when it has committed, since 1970. Partitions of which that is not known are left out.
    """

    group: str
    topic: str
    committed: Mapping[int, int]
    records: dict[int, int]
    stable_records: dict[int, int]
    seconds: dict[int, float]
    stable_seconds: dict[int, float]
    commit_seconds: dict[int, float]


def lags(now: Snapshot, groups: Iterable[Group], ages: Ages, *, now_ms: int) -> list[Lag]:
    """Return the lag of each group in each topic with series. Partitions that nobody serves have none.

    It is the lag of the round that found the group. The end of now less a committed offset of then would count what the
    group has read since.

    Args:
        now_ms: the wall clock, to which ages are counted.
    """
    topics = {topic.name: topic.topic for topic in now.topics}
    columns = now.columns
    found: list[Lag] = []
    for group in groups:
        known = ages.get(group.name, _NO_AGES)
        by_topic: dict[str, dict[int, int]] = {}
        for (name, partition), offset in group.committed.items():
            by_topic.setdefault(name, {})[partition] = offset
        for name, committed in sorted(by_topic.items()):
            topic = topics.get(name)
            if topic is None:
                continue
            lag = Lag(group.name, name, committed, {}, {}, {}, {}, {})
            for partition, offset in committed.items():
                place = (name, partition)
                commit_ms = group.commit_ms.get(place)
                if commit_ms is not None:
                    lag.commit_seconds[partition] = commit_ms / _MS_PER_S
                end = group.ends.get(place)
                if end is None or partition >= len(topic.rows):
                    continue
                incarnation = topic.partitions[partition].incarnation
                if not columns.serving[topic.rows[partition]] == incarnation == end.incarnation:
                    continue
                lag.records[partition] = max(0, end.high_watermark - offset)
                lag.stable_records[partition] = max(0, end.last_stable_offset - offset)
                age = known.get(place)
                for limit, seconds in (
                    (end.high_watermark, lag.seconds),
                    (end.last_stable_offset, lag.stable_seconds),
                ):
                    if offset >= limit:
                        seconds[partition] = 0
                    elif age is not None:
                        value = age.seconds(
                            committed=offset, end=limit, incarnation=incarnation, now_ms=now_ms
                        )
                        if value is not None:
                            seconds[partition] = value
            found.append(lag)
    return found
