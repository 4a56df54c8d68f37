"""The dead letters of a group: which records of the dead-letter topic are some, and which were moved out.

A log does not forget a record in the middle. So a client that moves dead letters out appends a record to the same
partition, with the header `__dlq.removed`. Its value names the offsets, as ranges with both ends included:

    {"v": 1, "removed": [[3, 3], [7, 12]]}

Then everything up to the first dead letter that is left is deleted from the log.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from appliance.protocol import retry_names as names
from appliance.retries.history import Headers, History, history_of, without_history
from appliance.views.offset_ranges import OffsetRanges
from appliance.views.topic_access import NotShown, Place, TopicReader, TopicWriter

BATCH: Final = 500
MARKER_RANGES_MAX: Final = 10_000
MARKER_BYTES_MAX: Final = 1 << 20
"""A marker of MARKER_RANGES_MAX ranges has 420 KB at most. Larger ones are of a stranger, and name nothing."""
_DIGITS_MAX: Final = 18
_VERSION: Final = 1


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
        """What people call it: `PARTITION-OFFSET`."""
        return f"{self.partition}-{self.offset}"

    @property
    def is_marker(self) -> bool:
        """Whether it names dead letters that were moved out, and is none itself."""
        return any(name == names.REMOVED for name, _ in self.headers)

    @property
    def attempts(self) -> int | None:
        """How often the group has failed with it; None if nobody has counted."""
        said = next((value for name, value in self.headers if name == names.DEAD_COUNT), None)
        return int(said) if said is not None and said.isdigit() and len(said) <= _DIGITS_MAX else None

    @property
    def source(self) -> str | None:
        """Where the record was at first, for a person; None if nobody says it."""
        first = self.history.first
        return None if first is None else f"{first.topic}-{first.partition} at {first.offset}"

    def as_json(self) -> dict[str, Any]:
        """The keys are stable."""
        history = self.history
        return {
            "id": self.identity,
            "died": _time(self.timestamp_ms),
            "record": self.source,
            "attempts": self.attempts,
            "replays": history.replays,
            "exception": history.exception or None,
            "message": history.reason or None,
            "key": text_of(self.key),
        }


Choose = Callable[[DeadLetter], bool]


@dataclass(frozen=True, slots=True)
class Filter:
    """Which dead letters to choose. All that is set must hold.

    Args:
        ids: as `DeadLetter.identity`.
        key: the key is exactly this text.
        exception: the exception, or its message, contains this text.
        headers: `NAME`, or `NAME=VALUE` with the whole value.
    """

    ids: tuple[str, ...] = ()
    key: str | None = None
    since_ms: int | None = None
    exception: str | None = None
    headers: tuple[str, ...] = ()

    def chooses(self, letter: DeadLetter) -> bool:
        """Return whether a dead letter is chosen."""
        history = letter.history
        return (
            (not self.ids or letter.identity in self.ids)
            and (self.key is None or letter.key == self.key.encode())
            and (self.since_ms is None or letter.timestamp_ms >= self.since_ms)
            and (
                self.exception is None
                or self.exception in history.exception
                or self.exception in history.reason
            )
            and all(_has(letter, each) for each in self.headers)
        )


def _has(letter: DeadLetter, wanted: str) -> bool:
    name, equals, value = wanted.partition("=")
    return any(
        known == name and (not equals or (said or b"").decode("utf-8", "replace") == value)
        for known, said in letter.headers
    )


def text_of(content: bytes | None) -> str | None:
    """Return text as it is, and other bytes in base64."""
    if content is None:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(content).decode()}"


class DeadLetterLog:
    """One dead-letter topic, up to the ends that its partitions had when this was made.

    Args:
        writer: for what changes; None where dead letters are only shown.

    Raises:
        ApplianceError: the reader's, or there is no such topic.
    """

    def __init__(self, reader: TopicReader, topic: str, writer: TopicWriter | None = None) -> None:
        self.topic = topic
        self._reader = reader
        self._writer = writer
        count = reader.topics().get(topic)
        if count is None:
            raise NotShown(f"there is no topic {topic}, or you may not see it")
        places = [(topic, partition) for partition in range(count)]
        starts, ends = reader.starts(places), reader.ends(places, read_committed=True)
        self._spans = {place[1]: (starts[place], end) for place, end in ends.items() if place in starts}
        self._removed: dict[int, OffsetRanges] | None = None

    def __iter__(self) -> Iterator[DeadLetter]:
        """Yield the dead letters that were not moved out, by partition and offset. Reads the topic twice."""
        removed = self._read_removed()
        for found in self._letters():
            if not found.is_marker and found.offset not in removed.get(found.partition, ()):
                yield found

    def _read_removed(self) -> dict[int, OffsetRanges]:
        if self._removed is None:
            removed: dict[int, OffsetRanges] = {}
            for found in self._letters():
                if not found.is_marker:
                    continue
                start, end = self._spans[found.partition]
                for low, high in _ranges_of(found.value):
                    removed.setdefault(found.partition, OffsetRanges()).add(
                        max(low, start), min(high + 1, end)
                    )
            self._removed = removed
        return self._removed

    def _letters(self) -> Iterator[DeadLetter]:
        for partition, (start, end) in sorted(self._spans.items()):
            place = self.topic, partition
            for found in self._reader.records({place: start}, {place: end}):
                record = found.record
                yield DeadLetter(
                    partition,
                    found.offset,
                    record.timestamp_ms,
                    record.key,
                    record.value,
                    record.headers,
                    history_of(record.headers),
                )

    # Moving out

    def remove(self, letters: Iterable[DeadLetter]) -> None:
        """Have these count as moved out."""
        assert self._writer is not None
        offsets: dict[int, list[int]] = {}
        for letter in letters:
            offsets.setdefault(letter.partition, []).append(letter.offset)
        for partition, each in offsets.items():
            ranges = _ranges(sorted(each))
            for at in range(0, len(ranges), MARKER_RANGES_MAX):
                value = msgspec.json.encode(_Marker(_VERSION, ranges[at : at + MARKER_RANGES_MAX]))
                self._writer.send(self.topic, value, None, [(names.REMOVED, b"1")], partition=partition)
        self._writer.finish()
        removed = self._read_removed()
        for partition, each in offsets.items():
            for low, high in _ranges(sorted(each)):
                removed.setdefault(partition, OffsetRanges()).add(low, high + 1)

    def trim(self) -> None:
        """Delete what lies before the first dead letter that is left in each partition."""
        assert self._writer is not None
        firsts = {partition: end for partition, (start, end) in self._spans.items() if start < end}
        for letter in self:
            firsts[letter.partition] = min(firsts[letter.partition], letter.offset)
        places: dict[Place, int] = {
            (self.topic, partition): first
            for partition, first in firsts.items()
            if first > self._spans[partition][0]
        }
        if places:
            self._writer.delete_before(places)


class Replay:
    """Moves dead letters to the retry topic of their group.

    A record is first acknowledged there, and moved out of the dead-letter topic then. If the client is interrupted
    between the two, the next replay sends the record again, and the broker recognizes it: it has the same first place
    and the same number of replays.
    """

    def __init__(self, log: DeadLetterLog, retry_topic: str, writer: TopicWriter) -> None:
        self._log = log
        self._retry_topic = retry_topic
        self._writer = writer
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
        self._writer.send(self._retry_topic, letter.value, letter.key, headers)
        self._pending.append(letter)
        if len(self._pending) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Wait for the acknowledgements, and move out what was sent.

        Raises:
            ApplianceError: a record was refused. Those that were acknowledged are recognized when they are sent again.
        """
        if not self._pending:
            return
        self._writer.finish()
        self._log.remove(self._pending)
        self.moved += len(self._pending)
        self._pending.clear()


def _time(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)  # of a client that lies


def _ranges_of(value: bytes | None) -> list[tuple[int, int]]:
    """Return what a marker names; nothing of one that cannot be read."""
    if value is not None and len(value) > MARKER_BYTES_MAX:
        return []
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
