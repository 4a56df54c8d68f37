"""Fetch and Produce as the console speaks them: one partition a request, in the oldest versions that are served.

These two APIs have codecs of their own in the broker, which read requests and write responses. This is the other side,
for one partition only.

    Fetch v4     request   replica id int32 · max wait ms int32 · min bytes int32 · max bytes int32 · isolation int8
                           · topics [name · partitions [index int32 · offset int64 · max bytes int32]]
                 response  throttle int32 · topics [name · partitions [index int32 · error int16 · high watermark int64
                           · last stable offset int64 · aborted [producer id int64, first offset int64] · records]]
    Produce v3   request   transactional id · acks int16 · timeout ms int32 · topics [name · partitions [index int32
                           · records]]
                 response  topics [name · partitions [index int32 · error int16 · offset int64 · time int64]] · throttle

Source: FetchRequest.json, FetchResponse.json, ProduceRequest.json and ProduceResponse.json of Apache Kafka 4.3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.framing import SIZE
from appliance.protocol.headers import REQUEST_START
from appliance.protocol.primitives import string_bytes
from appliance.protocol.records.batch import CONTROL, TRANSACTIONAL, batches
from appliance.protocol.records.errors import BatchFault
from appliance.protocol.records.record import Record, iterate_records

FETCH_VERSION: Final = 4
PRODUCE_VERSION: Final = 3
READ_COMMITTED: Final = 1
DECODED_BYTES_MAX: Final = 32 << 20

_FETCH_HEAD: Final = struct.Struct(">iiiib")
_FETCH_PARTITION: Final = struct.Struct(">iqi")
_FETCHED: Final = struct.Struct(">ihqqi")
_ABORTED: Final = struct.Struct(">qq")
_PRODUCED: Final = struct.Struct(">ihqq")
_INT32: Final = struct.Struct(">i")
_INT16: Final = struct.Struct(">h")
_CLIENT_ID: Final = b"appliance-console"
_RESPONSE_BODY: Final = 8
"""Behind the size and the correlation id."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a partition answered."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    aborted: tuple[tuple[int, int], ...]
    """Producer id and first offset of each aborted transaction."""
    records: bytes


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record and where it was."""

    partition: int
    offset: int
    record: Record
    batch_bytes: int
    codec: int
    is_transactional: bool


def size_of(record: Record) -> int:
    """Return the bytes of key, value and headers."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.value or b"") + len(record.key or b"") + headers


def fetch_request(
    topic: str, partition: int, offset: int, *, bytes_max: int, wait_ms: int, isolation: int = READ_COMMITTED
) -> bytes:
    """Return the frame of a fetch of one partition."""
    return _frame(
        ApiKey.FETCH,
        FETCH_VERSION,
        _FETCH_HEAD.pack(-1, wait_ms, 1, bytes_max, isolation)
        + _INT32.pack(1)
        + string_bytes(topic)
        + _INT32.pack(1)
        + _FETCH_PARTITION.pack(partition, offset, bytes_max),
    )


def fetched(frame: bytes) -> Fetched:
    """Return what the answer to `fetch_request` says.

    Raises:
        MalformedFrame: it is no answer to it.
    """
    try:
        (name_bytes,) = _INT16.unpack_from(frame, _RESPONSE_BODY + 8)
        at = _RESPONSE_BODY + 10 + name_bytes + 4
        _, error_code, high_watermark, last_stable, aborted_count = _FETCHED.unpack_from(frame, at)
        at += _FETCHED.size
        aborted: list[tuple[int, int]] = []
        for _ in range(max(0, aborted_count)):
            producer_id, first_offset = _ABORTED.unpack_from(frame, at)
            aborted.append((producer_id, first_offset))
            at += _ABORTED.size
        (length,) = _INT32.unpack_from(frame, at)
    except struct.error:
        raise MalformedFrame("the answer to a fetch ends too early") from None
    records = frame[at + 4 : at + 4 + max(0, length)]
    return Fetched(error_code, high_watermark, last_stable, tuple(aborted), records)


def read_records(
    answer: Fetched, partition: int, *, from_offset: int, unreadable: list[int] | None = None
) -> Iterator[ReadRecord]:
    """Yield the records of an answer from an offset on, without markers and aborted transactions.

    Records are decoded one by one, as the reader takes them: a batch of 32 MiB may hold millions of records, which
    take gigabytes as values of Python.

    A batch that is larger than DECODED_BYTES_MAX, or that cannot be decompressed, is left out. One whose records do
    not add up yields those before the defect. Its base offset is appended to `unreadable`, and a reader goes on behind
    it (`next_offset`).
    """
    open_aborts = sorted(answer.aborted, key=lambda each: each[1])
    aborting: set[int] = set()
    for at, header in batches(answer.records):
        while open_aborts and open_aborts[0][1] <= header.last_offset:
            aborting.add(open_aborts.pop(0)[0])
        if header.attributes & CONTROL:
            # A marker ends the transaction of its producer.
            aborting.discard(header.producer_id)
            continue
        if header.attributes & TRANSACTIONAL and header.producer_id in aborting:
            continue
        if header.next_offset <= from_offset:
            continue
        try:
            for record in iterate_records(
                answer.records, at, from_offset=from_offset, decompressed_bytes_max=DECODED_BYTES_MAX
            ):
                yield ReadRecord(
                    partition,
                    record.offset,
                    record,
                    header.size_bytes,
                    header.codec,
                    bool(header.attributes & TRANSACTIONAL),
                )
        except BatchFault:
            if unreadable is not None:
                unreadable.append(header.base_offset)


def next_offset(answer: Fetched, *, from_offset: int) -> int:
    """Return the offset behind all batches of an answer; `from_offset` if there is no batch."""
    last = from_offset
    for _, header in batches(answer.records):
        last = max(last, header.next_offset)
    return last


def produce_request(topic: str, partition: int, batch: bytes, *, timeout_ms: int) -> bytes:
    """Return the frame of a produce of one batch with acks=all."""
    return _frame(
        ApiKey.PRODUCE,
        PRODUCE_VERSION,
        _INT16.pack(-1)
        + _INT16.pack(-1)
        + _INT32.pack(timeout_ms)
        + _INT32.pack(1)
        + string_bytes(topic)
        + _INT32.pack(1)
        + _INT32.pack(partition)
        + _INT32.pack(len(batch))
        + batch,
    )


def produced(frame: bytes) -> tuple[int, int]:
    """Return error code and offset of the answer to `produce_request`.

    Raises:
        MalformedFrame: it is no answer to it.
    """
    try:
        (name_bytes,) = _INT16.unpack_from(frame, _RESPONSE_BODY + 4)
        _, error_code, offset, _ = _PRODUCED.unpack_from(frame, _RESPONSE_BODY + 6 + name_bytes + 4)
    except struct.error:
        raise MalformedFrame("the answer to a produce ends too early") from None
    return int(error_code), int(offset)


def _frame(api: ApiKey, version: int, body: bytes) -> bytes:
    head = REQUEST_START.pack(api, version, 1, len(_CLIENT_ID)) + _CLIENT_ID
    return SIZE.pack(len(head) + len(body)) + head + body
