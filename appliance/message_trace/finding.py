"""Finds the records of a batch that are traced, and gives each its trace id.

    traceparent = version "-" trace id (32 hex digits) "-" parent id (16) "-" flags (2)         W3C Trace Context

A record is traced if it has a `traceparent` header whose flags say `sampled`. With `trace.sample` = N, so is each
record whose key has a checksum (CRC-32) that N divides: all records of a key, or none. Its trace id then comes from
where it was first: topic, partition and offset, which a retried or dead record still has in its headers.

Values are stepped over. A batch without the name `traceparent` in its bytes and without `trace.sample` is not walked.
"""

from __future__ import annotations

import re
from binascii import crc32
from collections.abc import Iterator
from typing import Final, NamedTuple

from appliance.errors import ApplianceError
from appliance.protocol.records.batch import RECORDS, BatchHeader, read_header
from appliance.protocol.records.compression import DECOMPRESSED_BYTES_MAX, decompress
from appliance.protocol.records.record import Record, decode_one
from appliance.protocol.records.varint import read_varint, read_varlong

TRACEPARENT: Final = "traceparent"
_NAME: Final = TRACEPARENT.encode()
_PARENT: Final = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
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
    from hashlib import sha256  # OpenSSL's: loaded only where something is traced

    return sha256(f"{topic}\0{partition}\0{offset}".encode()).hexdigest()[:32]


def is_sampled(key: bytes | None, sample: int) -> bool:
    """Return whether `trace.sample` chooses a key. A record without a key is never chosen."""
    return sample > 0 and key is not None and crc32(key) % sample == 0


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


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _number(value: bytes | None) -> int | None:
    if value is None or not value.isdigit() or len(value) > _DIGITS_MAX:
        return None
    return int(value)


class Found(NamedTuple):
    """A traced record, without its value. `origin` is None for one that is neither retried nor dead."""

    offset: int
    timestamp_ms: int
    trace: str
    parent: str
    origin: Origin | None


def traced(batch: memoryview, topic: str, partition: int, *, sample: int) -> Iterator[Found]:
    """Return the traced records of a batch, in order; none of a batch that cannot be read."""
    try:
        header = read_header(batch)
        payload = bytes(batch[RECORDS : header.size_bytes])
        if header.codec:
            payload = bytes(decompress(header.codec, payload, DECOMPRESSED_BYTES_MAX))
        if not sample and _NAME not in payload:
            return
        for record in _candidates(payload, header, sample=sample):
            context = context_of(record.headers)
            wants = context is not None and context.is_sampled
            if not wants and not is_sampled(record.key, sample):
                continue
            origin = origin_of(record.headers)
            if context is None:
                first = (topic, partition, record.offset) if origin is None else origin[:3]
                context = Context(derived_trace(*first), "", is_sampled=True)
            yield Found(record.offset, record.timestamp_ms, context.trace, context.parent, origin)
    except (ApplianceError, IndexError):
        return


def _candidates(payload: bytes, header: BatchHeader, *, sample: int) -> Iterator[Record]:
    """Return the records that may be traced: those that have the name in them, or whose key is chosen."""
    at = 0
    for _ in range(header.records_count):
        length, begin = read_varint(payload, at)
        end = begin + length
        if length < 0 or end > len(payload):
            return
        if payload.find(_NAME, begin, end) >= 0 or (sample and is_sampled(_key(payload, begin), sample)):
            yield decode_one(payload, at, header)
        at = end


def _key(payload: bytes, begin: int) -> bytes | None:
    _, at = read_varlong(payload, begin + 1)
    _, at = read_varint(payload, at)
    length, at = read_varint(payload, at)
    return payload[at : at + length] if length >= 0 else None
