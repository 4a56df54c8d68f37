"""Reads records of a topic for a page: from an offset, from a time, or the newest; with conditions.

A page that filters may have to look at many records. Each call has a budget of bytes and time; when it is over, the
page says how far it has come, and a link goes on from there.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from appliance.cluster import NO_LEADER, TopicImage
from appliance.console.kafka_link import BrokerFault, Link, check, exchange
from appliance.console.records import (
    Fetched,
    ReadRecord,
    fetch_request,
    fetched,
    next_offset,
    read_records,
    size_of,
)
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from appliance.protocol.errors import ErrorCode

FETCH_BYTES: Final = 1 << 20
BUDGET_BYTES: Final = 64 << 20
BUDGET_S: Final = 8.0
WINDOW_MIN: Final = 64
"""Offsets in the first window of a search from the end."""
NARROWER: Final = 8
"""A window with more bytes than its share is tried again with an eighth of its offsets."""
LOOK_EVERY: Final = 256
"""Records between two looks at the budget inside of one batch."""
LARGE_BYTES: Final = 64 << 10
"""After a larger record, the bytes that are left are looked at at once: a batch of a kilobyte may hold 32 MiB."""
READ_COMMITTED: Final = 1

Matches = Callable[[ReadRecord], bool]


@dataclass(slots=True)
class Budget:
    """What one page may read."""

    bytes_left: int = BUDGET_BYTES
    until_s: float = field(default_factory=lambda: time.monotonic() + BUDGET_S)
    records: int = 0
    """Records that were looked at."""
    unreadable: list[int] = field(default_factory=list)
    """Base offsets of batches that could not be decoded."""

    @classmethod
    def of(cls, count_bytes: int, seconds: float) -> Budget:
        """Return another budget than that of a page, for a change."""
        return cls(count_bytes, time.monotonic() + seconds)

    def is_over(self) -> bool:
        """Return whether to stop."""
        return self.bytes_left <= 0 or time.monotonic() >= self.until_s

    def take(self, part: Budget, *, began_with: int) -> None:
        """Count what a part of this budget, which began with so many bytes, has used."""
        self.bytes_left -= began_with - part.bytes_left
        self.records += part.records
        self.unreadable += [each for each in part.unreadable if each not in self.unreadable]


@dataclass(frozen=True, slots=True)
class Found:
    """Records of one partition, in order. [`first`, `next`) was looked at."""

    partition: int
    records: list[ReadRecord]
    first: int
    next: int
    is_complete: bool
    """Whether the limit or the end was reached before the budget was over."""


def offsets(
    link: Link,
    topic: TopicImage,
    partitions: Iterable[int],
    timestamp_ms: int,
    *,
    isolation: int = READ_COMMITTED,
) -> dict[int, int]:
    """Return partition → the offset of a time, or of the beginning or the end, for those with a leader.

    Raises:
        BrokerFault: the broker does not answer, or refuses.
    """
    by_leader: dict[int, list[int]] = defaultdict(list)
    for partition in partitions:
        leader = topic.partitions[partition].leader
        if leader != NO_LEADER:
            by_leader[leader].append(partition)
    found: dict[int, int] = {}
    for leader, led in by_leader.items():
        wanted = ListOffsetsTopic(topic.name, tuple(ListOffsetsPartition(each, timestamp_ms) for each in led))
        answer = link.ask(ApiKey.LIST_OFFSETS, 7, ListOffsetsRequest(-1, (wanted,), isolation), slot=leader)
        for each in answer.topics[0].partitions:
            if each.error_code in _NOT_NOW:
                continue
            check(each.error_code, what=f"{topic.name}-{each.partition_index}")
            found[each.partition_index] = each.offset
    return found


_NOT_NOW: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
    }
)
"""A leader is changing; the partition is left out of this page."""


def bounds(link: Link, topic: TopicImage, partitions: Sequence[int]) -> Mapping[int, tuple[int, int]]:
    """Return partition → log start and last stable offset, for those that are served.

    Raises:
        BrokerFault: as `offsets`.
    """
    starts = offsets(link, topic, partitions, EARLIEST_TIMESTAMP)
    ends = offsets(link, topic, partitions, LATEST_TIMESTAMP)
    return {each: (starts[each], ends[each]) for each in partitions if each in starts and each in ends}


def fetch_once(
    link: Link,
    topic: TopicImage,
    partition: int,
    offset: int,
    *,
    bytes_max: int = FETCH_BYTES,
    wait_ms: int = 0,
) -> Fetched:
    """Return what the leader has from an offset on.

    Raises:
        BrokerFault: the broker does not answer, or refuses.
    """
    leader = topic.partitions[partition].leader
    if leader == NO_LEADER:
        raise BrokerFault(f"{topic.name}-{partition} has no leader")
    request = fetch_request(topic.name, partition, offset, bytes_max=bytes_max, wait_ms=wait_ms)
    frame = link.use(lambda connection: exchange(connection, request), slot=leader, is_repeatable=True)
    answer = fetched(frame)
    check(answer.error_code, what=f"{topic.name}-{partition} at offset {offset}")
    return answer


def forward(
    link: Link,
    topic: TopicImage,
    partition: int,
    *,
    start: int,
    end: int,
    limit: int,
    matches: Matches,
    budget: Budget,
    is_last: bool = False,
) -> Found:
    """Return the first records of [start, end) that match; with `is_last` the last ones.

    Raises:
        BrokerFault: as `fetch_once`.
    """
    records: deque[ReadRecord] = deque(maxlen=limit)
    at = start
    while at < end:
        if budget.is_over():
            return Found(partition, list(records), start, at, is_complete=False)
        answer = fetch_once(link, topic, partition, at)
        budget.bytes_left -= len(answer.records) + 1000
        behind = next_offset(answer, from_offset=at)
        for number, each in enumerate(
            read_records(answer, partition, from_offset=at, unreadable=budget.unreadable), 1
        ):
            if each.offset >= end:
                break
            budget.records += 1
            is_over = False
            if each.codec:
                size_bytes = size_of(each.record)
                budget.bytes_left -= size_bytes
                is_over = size_bytes > LARGE_BYTES and budget.bytes_left <= 0
            at = each.offset + 1
            if matches(each):
                records.append(each)
                if len(records) == limit and not is_last:
                    return Found(partition, list(records), start, at, is_complete=True)
            # One batch may hold millions of records. Some are looked at in any case, so that a page gets on.
            if at < end and (is_over or (number % LOOK_EVERY == 0 and budget.is_over())):
                return Found(partition, list(records), start, at, is_complete=False)
        if behind <= at and not answer.records:
            at = end  # nothing readable is left: compaction, or a transaction that is still open
        at = max(at, behind)
    return Found(partition, list(records), start, min(at, end), is_complete=True)


def backward(
    link: Link,
    topic: TopicImage,
    partition: int,
    *,
    start: int,
    end: int,
    limit: int,
    matches: Matches,
    budget: Budget,
) -> Found:
    """Return the last records of [start, end) that match: windows from the end, each twice as long as the one before.

    A window may use half of the bytes that are left. One with more bytes is given up, and tried again with fewer
    offsets: what was read of it is not next to what is there already. Only a window of one offset may use more, so that
    each page gets on, however large its records are.

    Raises:
        BrokerFault: as `fetch_once`.
    """
    records: list[ReadRecord] = []
    high, window = end, max(WINDOW_MIN, limit)
    is_in_vain = budget.is_over()
    while high > start and len(records) < limit:
        is_over = budget.is_over()
        if is_over and (high < end or is_in_vain):
            return Found(partition, records, high, end, is_complete=False)
        low = max(start, high - (1 if is_over else window))
        # One offset is the least that a page can be asked for; its records were fetched before.
        share = Budget() if high - low == 1 else Budget(budget.bytes_left // 2, budget.until_s)
        found = forward(
            link,
            topic,
            partition,
            start=low,
            end=high,
            limit=limit - len(records),
            matches=matches,
            budget=share,
            is_last=True,
        )
        budget.take(share, began_with=BUDGET_BYTES if high - low == 1 else budget.bytes_left // 2)
        if found.is_complete:
            records = found.records + records
            high, window = low, window * 2
        elif high - low == 1:
            return Found(partition, records, high, end, is_complete=False)
        else:
            window = max(1, (high - low) // NARROWER)
    return Found(partition, records, high, end, is_complete=True)
