"""Hands records back to the broker, which delivers them again later, or keeps them as dead letters (docs/retries.md).

A consumer with `retry.topics` reads the retry topic of each of its topics, too, and gives each record `retry` and
`dead`. Both produce the record to the retry topic of the consumer's group, with the headers that say where it was at
first. What is pure is in `handed_back`; `HandBack` and `AsyncHandBack` add a producer, which they make when it is
needed first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any, Final, NamedTuple

from appliance.protocol import retry_names as names
from appliance_client.kernel import ConsumerRecord, Headers
from appliance_client.options import ConnectionOptions, ConsumerOptions
from appliance_client.values import RecordMetadata

TEXT_BYTES_MAX: Final = 8_192
"""Longer reasons are cut, as the broker cuts them."""
REQUEST_BYTES_MAX: Final = 8 << 20
_REPLACED: Final = frozenset({names.REASON, names.EXCEPTION, names.DEAD, names.REPLAY})

Reason = str | BaseException


class ToSend(NamedTuple):
    """A record for the retry topic."""

    topic: str
    value: Any
    key: Any
    headers: Headers


def handed_back(record: ConsumerRecord, topic: str, *, reason: Reason, is_dead: bool) -> ToSend:
    """Return what to produce to hand a record back.

    Args:
        topic: the retry topic.
        reason: a text, or the exception that was raised.
        is_dead: do not deliver it again.
    """
    said: list[tuple[str, bytes | None]] = [each for each in record.headers if each[0] not in _REPLACED]
    if not any(name == names.TOPIC for name, _ in said):
        said += [
            (names.TOPIC, record.topic.encode()),
            (names.PARTITION, b"%d" % record.partition),
            (names.OFFSET, b"%d" % record.offset),
        ]
        if record.timestamp >= 0:
            said.append((names.TIMESTAMP, b"%d" % record.timestamp))
    if isinstance(reason, BaseException):
        kind = type(reason)
        name = (
            kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        )
        said.append((names.EXCEPTION, _cut(name)))
        reason = str(reason)
    if reason:
        said.append((names.REASON, _cut(reason)))
    if is_dead:
        said.append((names.DEAD, b"true"))
    key, value = getattr(record, "raw", (record.key, record.value))
    return ToSend(topic, value, key, tuple(said))


def _cut(text: str) -> bytes:
    encoded = text.encode("utf-8", "replace")
    return encoded[:TEXT_BYTES_MAX].decode("utf-8", "ignore").encode()


class RetryTopics:
    """The retry topics of a consumer's group: what it reads beside its own topics, and where a record goes back to."""

    __slots__ = ("_back", "_group")

    def __init__(self, group: str) -> None:
        self._group = group
        self._back: dict[str, str] = {}

    def add(self, topics: Iterable[str]) -> tuple[str, ...]:
        """Return the retry topics of these topics."""
        for topic in topics:
            retry = names.retry_topic(self._group, topic)
            self._back[topic] = self._back[retry] = retry
        return tuple(sorted(set(self._back.values())))

    def of(self, topic: str) -> str:
        """Return where records of `topic` go back to."""
        return self._back.get(topic) or names.retry_topic(self._group, topic)


class _Making:
    """Makes the producer, and what it is to send.

    Args:
        make: makes a producer.
        keep: keeps a record, if the group asks for the order, and returns whether it did (`ordered`).
    """

    __slots__ = ("_keep", "_lock", "_make", "_options", "_producer", "_topics")

    def __init__(
        self,
        options: ConsumerOptions,
        topics: RetryTopics,
        make: Callable[..., Any],
        keep: Callable[[ConsumerRecord], Any],
    ) -> None:
        self._options = options
        self._topics = topics
        self._make = make
        self._keep = keep
        self._lock = threading.Lock()
        self._producer: Any = None

    def give_to(self, records: Iterable[ConsumerRecord]) -> None:
        """Have these records be handed back here."""
        for record in records:
            record.source = self

    def producer(self) -> Any:
        with self._lock:  # several workers may hand back at once
            if self._producer is None:
                options = {
                    each.name: getattr(self._options, each.name)
                    for each in fields(ConnectionOptions)
                    if each.init
                }
                self._producer = self._make(
                    **options, acks="all", linger_ms=0, max_request_size=REQUEST_BYTES_MAX
                )
            return self._producer

    def to_send(self, record: ConsumerRecord, reason: Reason, is_dead: bool) -> ToSend:
        return handed_back(record, self._topics.of(record.topic), reason=reason, is_dead=is_dead)


class HandBack(_Making):
    """For the sync consumer."""

    __slots__ = ()

    def hand_back(self, record: ConsumerRecord, reason: Reason, is_dead: bool) -> RecordMetadata | None:
        """Return when the broker has the record; None if it is kept.

        Raises:
            ClientError: it was refused; the record is still the consumer's.
        """
        if not is_dead and self._keep(record):
            return None
        sent: RecordMetadata = self.producer().send(*self.to_send(record, reason, is_dead)).get()
        return sent

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()


class AsyncHandBack(_Making):
    """For the asyncio consumer."""

    __slots__ = ()

    async def hand_back(self, record: ConsumerRecord, reason: Reason, is_dead: bool) -> RecordMetadata | None:
        """As `HandBack.hand_back`."""
        if not is_dead and await self._keep(record):
            return None
        sent = await self.producer().send(*self.to_send(record, reason, is_dead))
        found: RecordMetadata = await sent
        return found

    async def close(self) -> None:
        if self._producer is not None:
            await self._producer.close()
