"""The values that callers hand in and get back. Names and fields are those of Kafka's own clients."""

from __future__ import annotations

from operator import index
from typing import Any, Final, NamedTuple

from appliance.protocol.errors import ErrorCode
from appliance_client.errors import BrokerError, OptionError
from appliance_client.kernel import ConsumerRecord

__all__ = [
    "ConsumerRecord",
    "GroupMetadata",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "RecordMetadata",
    "TopicPartition",
    "checked_name",
    "offset_of",
    "place_of",
    "time_of",
]


NAME_CHARACTERS_MAX: Final = 249
"""Of a topic's name. Source: `Topic.java` in Kafka."""


def checked_name(name: Any) -> str:
    """Return a topic's name if a request can carry it. The broker decides whether the name is valid.

    Raises:
        BrokerError: INVALID_TOPIC_EXCEPTION. One such name would make every later metadata request fail.
    """
    if isinstance(name, str) and 0 < len(name) <= NAME_CHARACTERS_MAX:
        try:
            name.encode()
        except UnicodeEncodeError:
            pass
        else:
            return name
    raise BrokerError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"no topic can have the name {repr(name)[:80]}")


class TopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int


def place_of(given: tuple[str, int]) -> TopicPartition:
    """A partition as callers may write it: a TopicPartition, or a pair.

    Raises:
        OptionError: it is no pair, or its number is no whole number from 0 on.
        BrokerError: as `checked_name`.
    """
    try:
        topic, partition = given
        number = index(partition)
    except (TypeError, ValueError):
        number = -1
    if not 0 <= number < 1 << 31:
        raise OptionError(f"no partition: {given!r}; give TopicPartition(topic, number)")
    return TopicPartition(checked_name(topic), number)


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
        OptionError: it is negative, or no whole number of 64 bits; or its note is no text that can be sent.
    """
    whole = given if isinstance(given, OffsetAndMetadata) else None
    try:
        offset = index(given if whole is None else whole.offset)  # type: ignore[arg-type]
    except TypeError:
        offset = -1
    if not 0 <= offset < 1 << 63:
        raise OptionError(f"no offset: {given!r}; give a whole number from 0 on, or OffsetAndMetadata")
    if whole is None:
        return OffsetAndMetadata(offset)
    note = whole.metadata or ""
    try:
        is_text = len(note.encode()) < 1 << 15
    except (AttributeError, UnicodeEncodeError):
        is_text = False
    if not is_text:
        raise OptionError(f"no note of a commit: {repr(note)[:80]}; give a text of up to 32767 bytes")
    return whole._replace(offset=offset, metadata=note)


MAX_TIMESTAMP: Final = -3
"""In the place of a time: the record with the largest one."""


def time_of(given: int) -> int:
    """A time to look up, in milliseconds since 1970, or MAX_TIMESTAMP.

    Raises:
        OptionError: it is another negative number, or no whole number of 64 bits.
    """
    try:
        time_ms = index(given)
    except TypeError:
        time_ms = -1
    if not 0 <= time_ms < 1 << 63 and time_ms != MAX_TIMESTAMP:
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
