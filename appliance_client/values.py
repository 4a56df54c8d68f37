"""The values that callers hand in and get back. Names and fields are those of Kafka's own clients."""

from __future__ import annotations

from operator import index
from typing import NamedTuple

from appliance_client.errors import OptionError
from appliance_client.kernel import ConsumerRecord

__all__ = [
    "ConsumerRecord",
    "GroupMetadata",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "RecordMetadata",
    "TopicPartition",
    "offset_of",
    "time_of",
]


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


class RecordMetadata(NamedTuple):
    """Where an acknowledged record lies. `offset` is -1 with acks=0; `timestamp` in milliseconds since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class OffsetAndMetadata(NamedTuple):
    """The offset of the next record to read, a note of the application's, and the epoch of the last record read."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


def offset_of(given: int | OffsetAndMetadata) -> OffsetAndMetadata:
    """An offset as callers may write it.

    Raises:
        OptionError: it is negative, or no whole number of 64 bits.
    """
    whole = given if isinstance(given, OffsetAndMetadata) else None
    try:
        offset = index(given if whole is None else whole.offset)  # type: ignore[arg-type]
    except TypeError:
        offset = -1
    if not 0 <= offset < 1 << 63:
        raise OptionError(f"no offset: {given!r}; give a whole number from 0 on, or OffsetAndMetadata")
    return OffsetAndMetadata(offset) if whole is None else whole._replace(offset=offset)


def time_of(given: int) -> int:
    """A time to look up, in milliseconds since 1970.

    Raises:
        OptionError: it is negative, by which Kafka means other things, or no whole number of 64 bits.
    """
    try:
        time_ms = index(given)
    except TypeError:
        time_ms = -1
    if not 0 <= time_ms < 1 << 63:
        raise OptionError(f"no time: {given!r}; give milliseconds since 1970, a whole number from 0 on")
    return time_ms


class OffsetAndTimestamp(NamedTuple):
    """A record found by its time, in milliseconds since 1970."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


class GroupMetadata(NamedTuple):
    """Who a consumer is in its group; what `send_offsets_to_transaction` fences a member by (KIP-447)."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None
