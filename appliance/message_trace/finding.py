"""Finds the records of a batch that are traced, and gives each its trace id.

    traceparent = version "-" trace id (32 hex digits) "-" parent id (16) "-" flags (2)         W3C Trace Context

A record is traced if it has a `traceparent` header whose flags say `sampled`. With `trace.sample` = N, so is each
record whose key has a checksum (CRC-32) that N divides: all records of a key, or none. Of records without a key, those
are whose offset N divides. The trace id then comes from where the record was first: topic, partition and offset, which
a retried or dead record still has in its headers.

`candidates` steps over the records, and only those that it finds are decoded. Where it is not compiled, a batch without
`trace.sample` and without the name `traceparent` in its bytes is not walked: to search memory is faster there.
"""

from __future__ import annotations

import re
from binascii import crc32
from collections.abc import Iterator
from types import FunctionType
from typing import Final, NamedTuple

from appliance.errors import ApplianceError
from appliance.message_trace.candidates import NAME, candidates
from appliance.protocol.records.batch import (
    CODEC_MASK,
    H_ATTRIBUTES,
    H_BASE_OFFSET,
    H_BATCH_LENGTH,
    H_RECORDS_COUNT,
    LOG_OVERHEAD,
    RECORDS,
    BatchHeader,
)
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from appliance.protocol.records.record import decode_one

TRACEPARENT: Final = NAME.decode()
_IS_COMPILED: Final = not isinstance(candidates, FunctionType)
_PARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
DELIVERED: Final = "delivery.timestamp"
"""The header of a record that was delivered late: the timestamp that its producer gave it."""
_LENGTH_MAX: Final = 512
_SAMPLED: Final = 1
_DIGITS_MAX: Final = 18

Headers = tuple[tuple[str, bytes | None], ...]


class Context(NamedTuple):
    """`trace`: 32 hex digits; `parent`: 16, or empty; `is_sampled`: whether its sender wants a trace."""

    trace: str
    parent: str
    is_sampled: bool


class Origin(NamedTuple):
    """Where a record was before it was retried or became a dead letter."""

    topic: str
    partition: int
    offset: int
    step: str
    detail: str


def parse_traceparent(value: bytes | None) -> Context | None:
    """Return what a header says; None if it is not valid, as the W3C says. Later versions may have more fields."""
    if value is None or len(value) > _LENGTH_MAX:
        return None
    found = _PARENT.fullmatch(value)
    if found is None:
        return None
    version, trace, parent, flags, more = found.groups()
    if version == b"ff" or (version == b"00" and more) or not trace.strip(b"0") or not parent.strip(b"0"):
        return None
    return Context(trace.decode(), parent.decode(), bool(int(flags, 16) & _SAMPLED))


def context_of(headers: Headers) -> Context | None:
    """Return the first valid `traceparent` of a record."""
    for name, value in headers:
        if name == TRACEPARENT:
            found = parse_traceparent(value)
            if found is not None:
                return found
    return None


def derived_trace(topic: str, partition: int, offset: int) -> str:
    """Return the trace id of a record that has none: always the same for the same record."""
    # Loaded where it is used: it brings OpenSSL along.
    from hashlib import sha256

    return sha256(f"{topic}\0{partition}\0{offset}".encode()).hexdigest()[:32]


def is_sampled(key: bytes | None, offset: int, sample: int) -> bool:
    """Return whether `trace.sample` chooses a record: by its key, or by its first offset if it has no key."""
    return sample > 0 and (offset if key is None else crc32(key)) % sample == 0


def origin_of(headers: Headers) -> Origin | None:
    """Return where a retried or dead record was first; None for any other record.

    Dead letters have `__dlq.errors.topic`, `.partition` and `.offset` (KIP-1191), retried records `retry.topic` etc.
    """
    for step, prefix in (("dead", "__dlq.errors."), ("retried", "retry.")):
        found = {
            name.removeprefix(prefix): value
            for name, value in headers
            if value is not None and len(value) <= _LENGTH_MAX and name.startswith(prefix)
        }
        topic, partition, offset = (
            _text(found.get("topic")),
            _number(found.get("partition")),
            _number(found.get("offset")),
        )
        if topic and partition is not None and offset is not None:
            names = ("attempts", "delivery.count", "group")
            detail = " ".join(f"{name}={text}" for name in names if (text := _text(found.get(name))))
            return Origin(topic, partition, offset, step, detail)
    return None


def produced_before(headers: Headers) -> int | None:
    """Return when a record was produced that the broker has delivered late (docs/delayed-delivery.md); else None."""
    return next((_number(value) for name, value in reversed(headers) if name == DELIVERED), None)


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _number(value: bytes | None) -> int | None:
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        return None
    return int(value)


class Found(NamedTuple):
    """A traced record, without its value. `origin` is None for one that is neither retried nor dead.

    `produced_ms`: if the broker has delivered it late, when it was produced; then it was appended at its timestamp.
    """

    offset: int
    timestamp_ms: int
    produced_ms: int | None
    trace: str
    parent: str
    origin: Origin | None


def traced(
    data: bytes, position: int, header: tuple[int, ...], *, topic: str, partition: int, sample: int
) -> Iterator[Found]:
    """Return the traced records of a batch, in order; none of a batch that cannot be read.

    Args:
        data: the batch begins at `position` of it.
        header: what the batch's header says, unpacked (`batch.HEADER`).
        sample: the topic's `trace.sample`.
    """
    try:
        at, end = position + RECORDS, position + header[H_BATCH_LENGTH] + LOG_OVERHEAD
        codec = header[H_ATTRIBUTES] & CODEC_MASK
        if codec:
            data = bytes(decompress(codec, memoryview(data)[at:end], DECOMPRESSED_BYTES_MAX))
            at, end = 0, len(data)
        if not sample and not _IS_COMPILED and data.find(NAME, at, end) < 0:
            return
        found = candidates(data, at, end, header[H_RECORDS_COUNT], first=header[H_BASE_OFFSET], sample=sample)
        if not found:
            return
        fields = BatchHeader(*header)
        for place in found:
            record = decode_one(data, place, fields)
            context, origin = context_of(record.headers), origin_of(record.headers)
            wants = context is not None and context.is_sampled
            first = record.offset if origin is None else origin.offset
            if not wants and not is_sampled(record.key, first, sample):
                continue
            if context is None:
                was = (topic, partition, record.offset) if origin is None else origin[:3]
                context = Context(derived_trace(*was), "", is_sampled=True)
            produced_ms = produced_before(record.headers)
            yield Found(
                record.offset, record.timestamp_ms, produced_ms, context.trace, context.parent, origin
            )
    except (ApplianceError, IndexError):
        return
