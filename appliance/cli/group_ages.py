"""How old what a group reads next is, and when it has last committed.

The age comes from the record itself: a consumer without a group reads one record of each partition in which the group
is behind. So it works at any broker, and needs the right to read the topics. When a group has committed, Kafka's
protocol does not say; a broker of the appliance answers it to a request that asks for it (decision 0134).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from appliance.cli.client import asked, consumer
from appliance.cli.cluster_view import first_that_answers
from appliance.cli.connecting import is_spoken
from appliance.cli.group_lag import Partition
from appliance.cli.request import TooOld, request
from appliance.clock import NS_PER_MS
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.find_coordinator import FindCoordinatorRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest

if TYPE_CHECKING:
    from confluent_kafka import Message

AT_ONCE: Final = 200
"""Partitions that are read at once: each answer has one batch of each."""
PATIENCE_S: Final = 10.0
"""For the ages of one group. Of partitions that were not read by then, no age is known."""
_POLL_S: Final = 0.2
_NO_TIMESTAMP: Final = 0
_GROUP: Final = 0
_FIND_VERSION: Final = 4
_FETCH_VERSION: Final = 8


def next_times(
    bootstrap: str, offsets: Mapping[Partition, int], *, read_committed: bool
) -> dict[Partition, tuple[int, int]]:
    """Return offset and time, in ms since 1970, of the first record at or behind each offset.

    Partitions without such a record, whose record has no time, or that cannot be read are left out.

    Args:
        offsets: below the end of each partition.

    Raises:
        BrokerError: nobody listens at `bootstrap`.
    """
    if not offsets:
        return {}
    reader = consumer(
        bootstrap,
        {
            "auto.offset.reset": "earliest",  # what retention has removed, nobody reads
            "isolation.level": "read_committed" if read_committed else "read_uncommitted",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 1,  # a broker answers with one batch at least
            "queued.min.messages": 1,
        },
    )
    found: dict[Partition, tuple[int, int]] = {}
    until_s = time.monotonic() + PATIENCE_S
    places = sorted(offsets)
    try:
        for first in range(0, len(places), AT_ONCE):
            waiting = set(places[first : first + AT_ONCE])
            _assign(reader, {place: offsets[place] for place in waiting})
            while waiting and time.monotonic() < until_s:
                for message in asked(lambda: reader.consume(AT_ONCE, _POLL_S)):
                    _note(message, waiting, found)
    finally:
        reader.close()
    return found


def _assign(reader: object, offsets: Mapping[Partition, int]) -> None:
    from confluent_kafka import TopicPartition

    wanted = [TopicPartition(topic, number, offset) for (topic, number), offset in offsets.items()]
    asked(lambda: reader.assign(wanted))  # type: ignore[attr-defined]


def _note(message: Message, waiting: set[Partition], found: dict[Partition, tuple[int, int]]) -> None:
    place = (message.topic() or "", message.partition() if message.partition() is not None else -1)
    if place not in waiting:
        return
    waiting.discard(
        place
    )  # an error ends the wait, too: the end of the partition, or a right that is missing
    if message.error() is None:
        kind, timestamp_ms = message.timestamp()
        if kind != _NO_TIMESTAMP:
            found[place] = (message.offset() or 0, timestamp_ms)


def commit_times(bootstrap: str, group: str) -> dict[Partition, int]:
    """Return when each of a group's offsets was committed, in ms since 1970; empty where the broker does not say.

    Raises:
        BrokerError: the coordinator does not answer.
    """
    if not is_spoken():
        return {}
    address = first_that_answers(bootstrap)
    body = FindCoordinatorRequest(key_type=_GROUP, coordinator_keys=(group,))
    try:
        (coordinator,) = request(address, ApiKey.FIND_COORDINATOR, _FIND_VERSION, body).coordinators
        if coordinator.error_code:
            return {}
        answer = request(
            f"{coordinator.host}:{coordinator.port}",
            ApiKey.OFFSET_FETCH,
            _FETCH_VERSION,
            OffsetFetchRequest(groups=(OffsetFetchGroup(group),), with_commit_times=True),
        )
    except TooOld:
        return {}
    return {
        (topic.name, each.partition_index): each.commit_time_ms
        for told in answer.groups
        for topic in told.topics
        for each in topic.partitions
        if each.commit_time_ms >= 0
    }


def add_ages(bootstrap: str, group: str, partitions: list[dict[str, Any]], *, read_committed: bool) -> None:
    """Add `age_ms`, `stable_age_ms` and `commit_time_ms` to each partition of `group_lag.lags`.

    An age is 0 where the group has read everything. None stands for what is not known.

    Raises:
        BrokerError: nobody listens at `bootstrap`, or the coordinator does not answer.
    """
    behind = {(each["topic"], each["partition"]): each["committed"] for each in partitions if each["lag"]}
    read = next_times(bootstrap, behind, read_committed=read_committed)
    now_ms = time.time_ns() // NS_PER_MS
    committed_ms = commit_times(bootstrap, group)
    for each in partitions:
        place = (each["topic"], each["partition"])
        each["age_ms"] = _age_ms(read.get(place), each["lag"], each["end"], now_ms)
        each["stable_age_ms"] = _age_ms(read.get(place), each["stable_lag"], each["stable_end"], now_ms)
        each["commit_time_ms"] = committed_ms.get(place)


def _age_ms(read: tuple[int, int] | None, lag: int | None, end: int | None, now_ms: int) -> int | None:
    if lag == 0:
        return 0
    if read is None or lag is None or end is None:
        return None
    offset, timestamp_ms = read
    return max(0, now_ms - timestamp_ms) if offset < end else 0
