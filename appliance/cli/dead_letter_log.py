"""The dead-letter topic of a group as the commands see it: which records are dead letters, and which were moved out.

A log does not forget a record in the middle. So a command that moves dead letters out appends a record to the same
partition, with the header `__dlq.removed`. Its value names the offsets, as ranges with both ends included:

    {"v": 1, "removed": [[3, 3], [7, 12]]}

Then everything up to the first dead letter that is left is deleted from the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from appliance.cli.client import admin_client, answer_of, asked, consumer, producer, refusal
from appliance.cli.connecting import REQUEST_TIMEOUT_S, BrokerError
from appliance.protocol import retry_names as names
from appliance.retries.history import Headers, History, history_of, without_history

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message

BATCH: Final = 500
POLL_S: Final = 0.5
STALL_S: Final = 30.0
MARKER_RANGES_MAX: Final = 10_000
_END_OF_PARTITION: Final = -191
_NO_GROUP: Final = 30
"""GROUP_AUTHORIZATION_FAILED. librdkafka asks for a coordinator although the command uses no group."""
_VERSION: Final = 1
_REPLAY_OPTIONS: Final = {"enable.idempotence": True, "linger.ms": 5, "message.max.bytes": 8 << 20}


class _Marker(msgspec.Struct):
    v: int
    removed: list[tuple[int, int]]


_decoder: Final = msgspec.json.Decoder(_Marker)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record of the dead-letter topic."""

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    history: History

    @property
    def identity(self) -> str:
        """What the commands call it: `PARTITION-OFFSET`."""
        return f"{self.partition}-{self.offset}"

    @property
    def is_marker(self) -> bool:
        """Whether it names dead letters that were moved out, and is none itself."""
        return any(name == names.REMOVED for name, _ in self.headers)


class DeadLetterLog:
    """One dead-letter topic, up to the ends that its partitions had when this was made.

    Raises:
        BrokerError: nobody answers, or the topic may not be read.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.topic = topic
        self._bootstrap = bootstrap
        self._client = consumer(
            bootstrap,
            {
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,  # the next partition waits for the fetch of the one before
                "isolation.level": "read_committed",
            },
        )
        self._spans = self._read_spans()
        self._removed: dict[int, set[int]] | None = None

    def close(self) -> None:
        self._client.close()

    def _read_spans(self) -> dict[int, tuple[int, int]]:
        from confluent_kafka import TopicPartition

        client = self._client
        found = asked(lambda: client.list_topics(self.topic, REQUEST_TIMEOUT_S)).topics[self.topic]
        if found.error is not None:
            raise BrokerError(f"{self.topic}: {refusal(found.error)}")
        return {
            partition: asked(
                lambda partition=partition: client.get_watermark_offsets(  # type: ignore[misc]
                    TopicPartition(self.topic, partition), REQUEST_TIMEOUT_S
                )
            )
            for partition in sorted(found.partitions)
        }

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield the dead letters that were not moved out, by partition and offset. Reads the topic twice."""
        removed = self._read_removed()
        for found in self._messages():
            if not found.is_marker and found.offset not in removed.get(found.partition, ()):
                yield found

    def _read_removed(self) -> dict[int, set[int]]:
        if self._removed is None:
            self._removed = {}
            for found in self._messages():
                if not found.is_marker:
                    continue
                start, end = self._spans[found.partition]
                for low, high in _ranges_of(found.value):
                    offsets = range(max(low, start), min(high + 1, end))
                    self._removed.setdefault(found.partition, set()).update(offsets)
        return self._removed

    def _messages(self) -> Iterator[DeadLetter]:
        from confluent_kafka import TopicPartition

        client = self._client
        for partition, (start, end) in self._spans.items():
            if start >= end:
                continue
            client.assign([TopicPartition(self.topic, partition, start)])
            for message in _read(client, end):
                headers: Any = tuple(message.headers() or ())
                yield DeadLetter(
                    partition,
                    message.offset() or 0,
                    message.timestamp()[1],
                    message.key(),
                    message.value(),
                    headers,
                    history_of(headers),
                )
        client.unassign()

    # Moving out

    def remove(self, letters: Iterable[DeadLetter]) -> None:
        """Have these count as moved out, and delete what lies before the first one that is left."""
        offsets: dict[int, list[int]] = {}
        for letter in letters:
            offsets.setdefault(letter.partition, []).append(letter.offset)
        sender = _Sender(self._bootstrap)
        for partition, each in offsets.items():
            ranges = _ranges(sorted(each))
            for at in range(0, len(ranges), MARKER_RANGES_MAX):
                value = msgspec.json.encode(_Marker(_VERSION, ranges[at : at + MARKER_RANGES_MAX]))
                sender.send(self.topic, value, None, [(names.REMOVED, b"1")], partition=partition)
        sender.finish()
        removed = self._read_removed()
        for partition, each in offsets.items():
            removed.setdefault(partition, set()).update(each)

    def trim(self) -> None:
        """Delete what lies before the first dead letter that is left in each partition."""
        from confluent_kafka import TopicPartition

        starts = {partition: end for partition, (start, end) in self._spans.items() if start < end}
        for letter in self:
            starts[letter.partition] = min(starts[letter.partition], letter.offset)
        places = [
            TopicPartition(self.topic, partition, start)
            for partition, start in starts.items()
            if start > self._spans[partition][0]
        ]
        if not places:
            return
        client = admin_client(self._bootstrap)
        pending = asked(lambda: client.delete_records(places, operation_timeout=REQUEST_TIMEOUT_S))
        for future in pending.values():
            answer_of(future)


class Replay:
    """Moves dead letters to the retry topic of their group.

    A record is first acknowledged there, and moved out of the dead-letter topic then. If the command is interrupted
    between the two, the next replay sends the record again, and the broker recognizes it: it has the same first place
    and the same number of replays.
    """

    def __init__(self, bootstrap: str, log: DeadLetterLog, retry_topic: str) -> None:
        self._log = log
        self._retry_topic = retry_topic
        self._sender = _Sender(bootstrap)
        self._pending: list[DeadLetter] = []
        self.moved = 0

    def add(self, letter: DeadLetter) -> None:
        """Send one; BATCH of them are moved out together."""
        history = letter.history
        first = history.first
        place = (
            (self._log.topic, letter.partition, letter.offset)
            if first is None or not first.topic
            else (first.topic, first.partition, first.offset)
        )
        said: list[tuple[str, object]] = [
            *zip((names.TOPIC, names.PARTITION, names.OFFSET), place, strict=True),
            (names.REPLAY, 1),
            (names.REPLAYS, history.replays + 1),
        ]
        if history.topic_id:
            said.append((names.TOPIC_ID, history.topic_id))
        if history.timestamp_ms >= 0:
            said.append((names.TIMESTAMP, history.timestamp_ms))
        headers = [
            *without_history(letter.headers),
            *((name, str(value).encode()) for name, value in said),
        ]
        self._sender.send(self._retry_topic, letter.value, letter.key, headers)
        self._pending.append(letter)
        if len(self._pending) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Wait for the acknowledgements, and move out what was sent.

        Raises:
            BrokerError: a record was refused. Those that were acknowledged are recognized when they are sent again.
        """
        if not self._pending:
            return
        self._sender.finish()
        self._log.remove(self._pending)
        self.moved += len(self._pending)
        self._pending.clear()


class _Sender:
    """A producer that raises what was refused."""

    def __init__(self, bootstrap: str) -> None:
        self._client = producer(bootstrap, _REPLAY_OPTIONS)
        self._error: KafkaError | None = None

    def _delivered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None and self._error is None:
            self._error = error

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: list[tuple[str, bytes | None]],
        *,
        partition: int = -1,
    ) -> None:
        while True:
            try:
                self._client.produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=self._delivered,
                    headers=headers,  # type: ignore[arg-type]
                )
            except BufferError:
                self._client.poll(POLL_S)
            else:
                self._client.poll(0)
                return

    def finish(self) -> None:
        left = self._client.flush(STALL_S)
        if self._error is not None:
            raise BrokerError(refusal(self._error))
        if left:
            raise BrokerError(f"{left} records were not acknowledged within {STALL_S:.0f} s")


def _ranges_of(value: bytes | None) -> list[tuple[int, int]]:
    """Return what a marker names; nothing of one that cannot be read."""
    try:
        marker = _decoder.decode(value or b"")
    except (msgspec.DecodeError, msgspec.ValidationError):
        return []
    return marker.removed if marker.v == _VERSION else []


def _ranges(offsets: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for offset in offsets:
        if ranges and offset == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], offset
        else:
            ranges.append((offset, offset))
    return ranges


def _read(client: Consumer, end: int) -> Iterator[Message]:
    """Yield the records of the assigned partition below `end`.

    Raises:
        BrokerError: the broker refuses, or says nothing for STALL_S.
    """
    until_s = time.monotonic() + STALL_S
    while True:
        message = asked(lambda: client.poll(POLL_S))
        if message is None:
            if time.monotonic() > until_s:
                raise BrokerError(f"no record came within {STALL_S:.0f} s")
            continue
        error = message.error()
        if error is None:
            if (message.offset() or 0) >= end:
                return
            until_s = time.monotonic() + STALL_S
            yield message
            if (message.offset() or 0) == end - 1:
                return
        elif error.code() == _END_OF_PARTITION:
            return
        elif error.code() == _NO_GROUP:
            continue
        elif error.fatal() or not error.retriable():
            raise BrokerError(refusal(error))


Choose = Callable[[DeadLetter], bool]
