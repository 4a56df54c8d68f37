"""What groups have committed, and how far behind the end of each partition that is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from appliance.cli.client import answer_of, asked
from appliance.cli.connecting import REQUEST_TIMEOUT_S

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

Partition = tuple[str, int]


def earliest() -> Any:
    """The OffsetSpec of the first record."""
    return _specs().earliest()


def latest() -> Any:
    """The OffsetSpec of the end."""
    return _specs().latest()


def since(timestamp_ms: int) -> Any:
    """The OffsetSpec of the first record at or after a time."""
    return _specs().for_timestamp(timestamp_ms)


def _specs() -> Any:
    from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

    return OffsetSpec


def committed_offsets(client: AdminClient, group: str) -> dict[Partition, int]:
    """(topic, partition) → the group's committed offset.

    Raises:
        BrokerError: the group cannot be asked about.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions

    wanted = [ConsumerGroupTopicPartitions(group)]
    (pending,) = asked(
        lambda: client.list_consumer_group_offsets(wanted, request_timeout=REQUEST_TIMEOUT_S)
    ).values()
    found = answer_of(pending)
    return {(p.topic, p.partition): p.offset for p in found.topic_partitions if p.offset >= 0}


def offsets_at(
    client: AdminClient, partitions: Iterable[Partition], spec: Any, *, read_committed: bool = False
) -> dict[Partition, int]:
    """(topic, partition) → the offset that `spec` (an OffsetSpec) means there; partitions that are gone are left out.

    Raises:
        BrokerError: no broker answers.
    """
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

    level = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
    wanted = {TopicPartition(topic, number): spec for topic, number in partitions}
    if not wanted:
        return {}
    pending = asked(
        lambda: client.list_offsets(wanted, isolation_level=level, request_timeout=REQUEST_TIMEOUT_S)
    )
    found: dict[Partition, int] = {}
    for place, future in pending.items():
        try:
            found[place.topic, place.partition] = future.result(timeout=REQUEST_TIMEOUT_S).offset
        except KafkaException:
            continue
    return found


def lags(
    client: AdminClient, group: str, partitions: Iterable[Partition] = (), *, read_committed: bool
) -> list[dict[str, Any]]:
    """One object a partition that the group has committed in, or that is among `partitions`; the keys are stable.

    `end` is the high watermark, or with `read_committed` the last stable offset; `lag` is counted to it. `stable_end`
    is the last stable offset in both cases, and `stable_lag` is counted to it.
    """
    committed = committed_offsets(client, group)
    every = sorted({*committed, *partitions})
    stable_ends = offsets_at(client, every, latest(), read_committed=True)
    ends = stable_ends if read_committed else offsets_at(client, every, latest())
    return [
        {
            "topic": place[0],
            "partition": place[1],
            "committed": committed.get(place),
            "end": ends.get(place),
            "lag": _lag(ends.get(place), committed.get(place)),
            "stable_end": stable_ends.get(place),
            "stable_lag": _lag(stable_ends.get(place), committed.get(place)),
        }
        for place in every
    ]


def _lag(end: int | None, committed: int | None) -> int | None:
    return None if end is None or committed is None else max(0, end - committed)
