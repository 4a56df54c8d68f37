"""Reads the history of a record that a consumer hands back, from its headers.

Our own headers (`protocol.retry_names`) come first. What they do not say is taken from those that other libraries
write: Kafka 4.4's dead letters, Spring, Kafka Connect, Kafka Streams.

    topic, partition, offset   retry.*           __dlq.errors.*, __connect.errors.*, __streams.errors.*,
                                                 kafka_dlt-original-*, kafka_original-* (Spring)
    topic id                   retry.topic.id    __dlq.errors.topic.id
    timestamp                  retry.timestamp   __dlq.errors.timestamp, retry_topic-original-timestamp,
                                                 kafka_dlt-original-timestamp, kafka_original-timestamp (Spring)
    attempts                   retry.attempts    retry_topic-attempts (Spring)
    exception                  retry.exception   __dlq.errors.exception, kafka_dlt-exception-fqcn,
                                                 kafka_exception-fqcn, __connect.errors.exception.class.name,
                                                 __streams.errors.exception
    reason                     retry.reason      __dlq.errors.message, kafka_dlt-exception-message,
                                                 kafka_exception-message, __connect.errors.exception.message,
                                                 __streams.errors.message

Spring's numbers are big-endian integers of 4 or 8 bytes, all others are decimal text. Spring counts the delivery that
is to come, and we count those that have failed. A foreign header that cannot be read counts as missing. An own one
makes the record a dead letter, because a count that is lost must not begin at zero for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from appliance.protocol import retry_names as names

TEXT_BYTES_MAX: Final = 8_192
"""Longer reasons and exceptions are cut."""
_DIGITS_MAX: Final = 18
_NAME_LENGTH_MAX: Final = 249
_ID_LENGTH_MAX: Final = 36
_INTEGER_BYTES: Final = frozenset({4, 8})
_PARTITION_MAX: Final = (1 << 31) - 1

Headers = Sequence[tuple[str, bytes | None]]

_TOPICS: Final = (
    names.DEAD_TOPIC,
    "kafka_dlt-original-topic",
    "kafka_original-topic",
    "__connect.errors.topic",
    "__streams.errors.topic",
)
_SPRING: Final = ("kafka_dlt-original-topic", "kafka_original-topic")
_EXCEPTIONS: Final = (
    names.DEAD_EXCEPTION,
    "kafka_dlt-exception-fqcn",
    "kafka_exception-fqcn",
    "__connect.errors.exception.class.name",
    "__streams.errors.exception",
)
_REASONS: Final = (
    names.DEAD_MESSAGE,
    "kafka_dlt-exception-message",
    "kafka_exception-message",
    "__connect.errors.exception.message",
    "__streams.errors.message",
)
_SPRING_TIMES: Final = (
    "retry_topic-original-timestamp",
    "kafka_dlt-original-timestamp",
    "kafka_original-timestamp",
)
_SPRING_ATTEMPTS: Final = "retry_topic-attempts"
_OURS: Final = frozenset(
    {
        names.TOPIC,
        names.PARTITION,
        names.OFFSET,
        names.TIMESTAMP,
        names.TOPIC_ID,
        names.ATTEMPTS,
        names.REASON,
        names.EXCEPTION,
        names.DEAD,
        names.GROUP,
        names.FIRST_FAILED,
        names.LAST_FAILED,
        names.REPLAYS,
        names.REPLAY,
    }
)


class Place(NamedTuple):
    """A record by topic, partition and offset. It names where a record was, and never where one goes."""

    topic: str
    partition: int
    offset: int


class History(NamedTuple):
    """What the headers say. Times in ms since 1970; -1: not known.

    `first`: None where nobody says it; its topic is empty where only the partition and the offset are named.

    `attempts`: how often the record was handed back before.
    `topic_id`: the id of the first topic, as the broker has written it; "" if nobody says it.
    `fault`: an own header that cannot be read, and what it should be; "" if there is none.
    """

    first: Place | None
    timestamp_ms: int
    attempts: int
    reason: str
    exception: str
    first_failed_ms: int
    replays: int
    is_replay: bool
    is_dead: bool
    fault: str
    topic_id: str = ""


def history_of(headers: Headers) -> History:
    """Return the history of a record. Raises nothing: see `History.fault`."""
    reader = _Reader(headers)
    first = _first(reader)
    attempts = reader.largest(names.ATTEMPTS)
    if attempts < 0:
        attempts = max(reader.integer(_SPRING_ATTEMPTS) - 2, 0)
    timestamp_ms = reader.number(names.TIMESTAMP)
    if timestamp_ms < 0:
        times = (reader.foreign_number(names.DEAD_TIMESTAMP), *map(reader.integer, _SPRING_TIMES))
        timestamp_ms = next((each for each in times if each >= 0), -1)
    said_dead = reader.text(names.DEAD)
    return History(
        first,
        timestamp_ms,
        attempts,
        _either(reader.last_text(names.REASON), reader, _REASONS),
        _either(reader.last_text(names.EXCEPTION), reader, _EXCEPTIONS),
        reader.number(names.FIRST_FAILED),
        max(reader.number(names.REPLAYS), reader.foreign_number(names.DEAD_REPLAYS), 0),
        reader.has(names.REPLAY),
        said_dead is not None and said_dead.strip().lower() == "true",
        reader.fault,
        (reader.text(names.TOPIC_ID) or reader.text(names.DEAD_TOPIC_ID) or "")[:_ID_LENGTH_MAX],
    )


def without_history(headers: Headers) -> list[tuple[str, bytes | None]]:
    """Return the headers that are not ours, in order."""
    return [each for each in headers if each[0] not in _OURS and not each[0].startswith(names.DEAD_PREFIX)]


def last_value(headers: Headers, name: str) -> bytes | None:
    """Return the value of the last header with this name; None without one."""
    return next((value for known, value in reversed(headers) if known == name), None)


def cut(text: str) -> bytes:
    """Return the text in UTF-8, with at most TEXT_BYTES_MAX bytes."""
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= TEXT_BYTES_MAX:
        return encoded
    return encoded[: TEXT_BYTES_MAX - 3].decode("utf-8", "ignore").encode() + "…".encode()


def _either(ours: str, reader: _Reader, others: Sequence[str]) -> str:
    if ours:
        return ours
    return next((text for name in others if (text := reader.last_text(name))), "")


def _first(reader: _Reader) -> Place | None:
    """Return where the record was at first: what ours say, if all three are there, else what others say."""
    topic = reader.text(names.TOPIC)
    partition, offset = reader.number(names.PARTITION), reader.number(names.OFFSET)
    if topic is not None or reader.has(names.PARTITION) or reader.has(names.OFFSET):
        is_whole = (
            topic and len(topic) <= _NAME_LENGTH_MAX and 0 <= partition <= _PARTITION_MAX and offset >= 0
        )
        if topic is not None and is_whole:
            return Place(topic, partition, offset)
        if topic is None and 0 <= partition <= _PARTITION_MAX and offset >= 0:
            return Place("", partition, offset)
        if topic is not None and not (topic and len(topic) <= _NAME_LENGTH_MAX):
            reader.report(names.TOPIC, "the name of a topic")
        elif partition > _PARTITION_MAX:
            reader.report(names.PARTITION, "the number of a partition")
        return None
    for name in _TOPICS:
        topic = reader.text(name)
        if topic is None:
            continue
        stem = name.removesuffix("topic")
        number = reader.integer if name in _SPRING else reader.foreign_number
        place = Place(topic, number(f"{stem}partition"), number(f"{stem}offset"))
        if (
            topic
            and len(topic) <= _NAME_LENGTH_MAX
            and 0 <= place.partition <= _PARTITION_MAX
            and place.offset >= 0
        ):
            return place
    return None


class _Reader:
    """Headers by name, and the first fault in an own one (`retry.*`)."""

    __slots__ = ("_values", "fault")

    def __init__(self, headers: Headers) -> None:
        self._values: dict[str, list[bytes | None]] = {}
        for name, value in headers:
            self._values.setdefault(name, []).append(value)
        self.fault = ""

    def has(self, name: str) -> bool:
        return name in self._values

    def report(self, name: str, wanted: str) -> None:
        if not self.fault:
            self.fault = f"the header {name} is not {wanted}"

    def text(self, name: str) -> str | None:
        """Return the first value, because later ones are what a consumer has added to copied headers."""
        values = self._values.get(name)
        if not values or values[0] is None:
            return None
        return values[0].decode("utf-8", "replace")

    def last_text(self, name: str) -> str:
        """Return the last value, because it says why the record failed now."""
        values = self._values.get(name)
        return "" if not values or values[-1] is None else values[-1].decode("utf-8", "replace")

    def number(self, name: str) -> int:
        """Return the first value of an own header; -1 without it, or with a fault."""
        values = self._values.get(name)
        return -1 if not values else self._own(name, values[0])

    def largest(self, name: str) -> int:
        """Return the largest value of an own header; -1 without it, or with a fault."""
        return max((self._own(name, value) for value in self._values.get(name, ())), default=-1)

    def _own(self, name: str, value: bytes | None) -> int:
        found = _decimal(value)
        if found < 0:
            self.report(name, "a decimal number")
        return found

    def foreign_number(self, name: str) -> int:
        """Return a decimal number that another library wrote; -1 where there is none."""
        values = self._values.get(name)
        return -1 if not values else _decimal(values[0])

    def integer(self, name: str) -> int:
        """Return a big-endian integer that Spring wrote; -1 where there is none."""
        values = self._values.get(name)
        value = values[-1] if values else None
        if value is None or len(value) not in _INTEGER_BYTES:
            return -1
        return max(int.from_bytes(value, "big", signed=True), -1)


def _decimal(value: bytes | None) -> int:
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        return -1
    return int(value)
