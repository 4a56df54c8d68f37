"""Delayed records on their way in: from the bytes of a produced batch to those of batches for the internal topics.

    record in the batch   length · attributes · timestamp delta · offset delta · key · value · headers
    tail                                                                        key · value · headers + `__delayed`
    record to store       length · 0          · 0               · number       · tail · the fields of `__delayed`

The key, the value and the headers are copied as they are, without a `Record` for any of them. `waiting.py` says what is
stored; it is the slow way, for one record, and is what this file must agree with.

A record takes the slow way, too, if its headers say when in an unusual manner: twice, together with a cancellation,
with a value that is no number. There the errors are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol
from uuid import UUID

from appliance.delivery.due import AT, CANCEL, DELAY, DIGITS_MAX, ID, ID_BYTES_MAX, TIMESTAMP_NEAR_MS
from appliance.delivery.levels import Levels
from appliance.delivery.waiting import HEADER, VERSION, Origin, Waiting
from appliance.protocol.records.record import Record, record_beginning
from appliance.protocol.records.varint import read_varint, varint_bytes, write_varint

if TYPE_CHECKING:
    from mypy_extensions import i64

STORED_BYTES: Final = 1 << 20
"""The most that the records of a batch for an internal topic take, if it has more than one."""
_AT: Final = AT.encode()
_DELAY: Final = DELAY.encode()
_ID: Final = ID.encode()
_CANCEL: Final = CANCEL.encode()
_HEADER: Final = HEADER.encode()
_NAME_MIN: Final = 9
_NAME_MAX: Final = 15
"""Lengths of the names above: other headers are passed over."""
_ZERO: Final = 0x30
_NINE: Final = 0x39
_UNSET: Final = -2
_NO_NUMBER: Final = -1
_LENGTH_BYTES: Final = 5
"""What the length of a record takes at most."""
_ADDED: Final = varint_bytes(len(_HEADER)) + _HEADER
"""The name of the header that is added, with its length; its value ends the record."""


class Delayed:
    """A delayed record: its place in its batch, when it is due, in ms since the epoch, and how long its level must be.

    `tail` is what is stored of it but for the value of its last header; empty if it is redirected. `level` is set by
    `set_levels`.
    """

    __slots__ = ("at_ms", "index", "is_cancel", "level", "tail", "timestamp_ms", "wait_ms")

    def __init__(  # noqa: PLR0917 - one for each record: keywords cost more
        self, index: i64, at_ms: i64, wait_ms: i64, is_cancel: bool, timestamp_ms: i64, tail: bytes
    ) -> None:
        self.index: i64 = index
        self.at_ms: i64 = at_ms
        self.wait_ms: i64 = wait_ms
        self.timestamp_ms: i64 = timestamp_ms
        self.level: i64 = -1
        self.is_cancel = is_cancel
        self.tail = tail


UNUSUAL: Final = Delayed(-1, 0, 0, False, 0, b"")
"""In the place of a record whose headers must be read the slow way."""


class Redirected(Protocol):
    """A delayed record that is delivered elsewhere than to the partition to which it was produced."""

    @property
    def is_dead(self) -> bool:
        """Whether it goes to a dead-letter topic."""
        ...

    def waiting(self, partition: int, offset: int) -> Waiting:
        """Return it as it waits; it was produced to `partition`, and was answered `offset`."""
        ...


def read_delayed(  # noqa: PLR0912, PLR0917 - one pass over the bytes of each record
    data: bytes,
    at: i64,
    end: i64,
    index: i64,
    timestamp_ms: i64,
    now_ms: i64,
    delay_ms_max: i64,
    needs_key: bool,
) -> Delayed | None:
    """Return a record that `check_records` has proved; None if it is not delayed, UNUSUAL if `due_of` must be asked.

    Args:
        at: where its key begins; `end`: where the record ends.
        timestamp_ms: its own.
        needs_key: a delayed record without a key is unusual.
    """
    key_at: i64 = at
    length, at = read_varint(data, at)
    is_keyless = length < 0
    if length > 0:
        at += length
    length, at = read_varint(data, at)
    if length > 0:
        at += length
    headers_at: i64 = at
    count, at = read_varint(data, at)
    first_at: i64 = at
    at_ms: i64 = _UNSET
    delay_ms: i64 = _UNSET
    has_id = False
    left: i64 = count
    while left > 0:
        left -= 1
        length, name_at = read_varint(data, at)
        value_length, value_at = read_varint(data, name_at + length)
        at = value_at
        if value_length > 0:
            at += value_length
        if length < _NAME_MIN or length > _NAME_MAX:
            continue
        name = data[name_at : name_at + length]
        if name == _AT:
            if at_ms != _UNSET:
                return UNUSUAL
            at_ms = _number(data, value_at, value_length)
            if at_ms == _NO_NUMBER:
                return UNUSUAL
        elif name == _DELAY:
            if delay_ms != _UNSET:
                return UNUSUAL
            delay_ms = _number(data, value_at, value_length)
            if delay_ms == _NO_NUMBER:
                return UNUSUAL
        elif name == _ID:
            if has_id or value_length <= 0 or value_length > ID_BYTES_MAX:
                return UNUSUAL
            has_id = True
        elif name in (_CANCEL, _HEADER):
            return UNUSUAL
    wait_ms: i64 = delay_ms
    if at_ms != _UNSET:
        if at_ms <= timestamp_ms:
            return None
        # The differences of a timestamp that is far away may not fit into 64 bits.
        wait_ms = at_ms - now_ms
        if now_ms - TIMESTAMP_NEAR_MS <= timestamp_ms <= now_ms + TIMESTAMP_NEAR_MS:
            wait_ms = at_ms - timestamp_ms
    elif delay_ms > 0:
        at_ms = now_ms + delay_ms
    else:
        return None
    if at_ms - now_ms > delay_ms_max or (needs_key and is_keyless):
        return UNUSUAL
    tail = b"".join([data[key_at:headers_at], varint_bytes(count + 1), data[first_at:end], _ADDED])
    return Delayed(index, at_ms, wait_ms, False, timestamp_ms, tail)


def _number(data: bytes, at: i64, length: i64) -> i64:
    """Return a decimal number of 1 to 18 digits; _NO_NUMBER if it is none."""
    if length <= 0 or length > DIGITS_MAX:
        return _NO_NUMBER
    end: i64 = at + length
    value: i64 = 0
    while at < end:
        digit: i64 = data[at]
        if digit < _ZERO or digit > _NINE:
            return _NO_NUMBER
        value = value * 10 + digit - _ZERO
        at += 1
    return value


def tail_of(record: Record) -> bytes:
    """Return the tail of a record, the slow way; headers `__delayed` of its own are not part of it."""
    out = bytearray()
    _write_bytes(out, record.key)
    _write_bytes(out, record.value)
    headers = [each for each in record.headers if each[0] != HEADER]
    write_varint(out, len(headers) + 1)
    for name, value in headers:
        _write_bytes(out, name.encode("utf-8", "surrogateescape"))
        _write_bytes(out, value)
    return bytes(out) + _ADDED


def _write_bytes(out: bytearray, content: bytes | None) -> None:
    if content is None:
        write_varint(out, -1)
    else:
        write_varint(out, len(content))
        out += content


def set_levels(delayed: list[Delayed], levels: Levels, *, is_exact: bool, is_transactional: bool) -> set[int]:
    """Set on which level each record waits first; return all these levels."""
    found: set[int] = set()
    last: i64 = -1
    for each in delayed:
        if is_transactional:
            each.level = levels.transactions
        elif each.is_cancel:
            each.level = levels.cancels
        else:
            each.level = levels.of(each.wait_ms, is_exact=is_exact)
        if each.level != last:
            last = each.level
            found.add(last)
    return found


class Pieces:
    """The records for one partition of an internal topic, as (number, encoded records) of each batch."""

    __slots__ = ("_count", "_parts", "_size_bytes", "done")

    def __init__(self) -> None:
        self.done: list[tuple[int, bytes]] = []
        self._parts: list[bytes] = []
        self._size_bytes: i64 = 0
        self._count: i64 = 0

    def add(self, tail: bytes, fields: bytes) -> None:
        """Add a record.

        Args:
            fields: the value of its header `__delayed`.
        """
        fields_bytes = varint_bytes(len(fields))
        beginning = record_beginning(self._count)
        length: i64 = len(beginning) + len(tail) + len(fields_bytes) + len(fields)
        size: i64 = length + _LENGTH_BYTES
        if self._count and self._size_bytes + size > STORED_BYTES:
            self.end()
            beginning = record_beginning(0)
            length = len(beginning) + len(tail) + len(fields_bytes) + len(fields)
        parts = self._parts
        parts.append(varint_bytes(length))
        parts.append(beginning)
        parts.append(tail)
        parts.append(fields_bytes)
        parts.append(fields)
        self._size_bytes += size
        self._count += 1

    def end(self) -> None:
        """End the batch."""
        self.done.append((self._count, b"".join(self._parts)))
        self._parts = []
        self._size_bytes = 0
        self._count = 0


def pieces_of(
    delayed: list[Delayed], topic_id: UUID, partition: int, base_offset: int, origin: Origin
) -> dict[int, Pieces]:
    """Return the records for each level, in the order of the records.

    Args:
        base_offset: of the batch in which they were produced to this partition.
    """
    found: dict[int, Pieces] = {}
    before = b"%b,%b,%d," % (VERSION.encode(), topic_id.hex.encode(), partition)
    behind = b",%d,%d,%d" % origin
    first: i64 = base_offset
    level: i64 = -1
    pieces = Pieces()
    for each in delayed:
        if each.level != level:
            level = each.level
            known = found.get(level)
            if known is None:
                known = found[level] = Pieces()
            pieces = known
        offset: i64 = first + each.index
        pieces.add(each.tail, b"%b%d,%d,%d%b" % (before, offset, each.at_ms, each.timestamp_ms, behind))
    for some in found.values():
        some.end()
    return found


def redirected_pieces_of(
    delayed: list[Delayed], redirected: Sequence[Redirected], partition: int, base_offset: int
) -> dict[tuple[int, UUID, int], Pieces]:
    """Return the records for each (level, topic id, partition) to which they are delivered, in their order.

    Args:
        base_offset: of the batch in which they were produced to `partition`.
    """
    found: dict[tuple[int, UUID, int], Pieces] = {}
    for each, other in zip(delayed, redirected, strict=True):
        waiting = other.waiting(partition, base_offset + each.index)
        pieces = found.setdefault((each.level, waiting.topic_id, waiting.partition), Pieces())
        pieces.add(tail_of(waiting.record), waiting.fields())
    for some in found.values():
        some.end()
    return found
