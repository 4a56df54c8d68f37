"""The record batch, format v2 (magic 2), and its header.

    byte   0        8        12          16      17      21           23
           ┌────────┬────────┬───────────┬───────┬───────┬────────────┬─────────────────┐
           │ base   │ batch  │ partition │ magic │ crc   │ attributes │ last            │
           │ offset │ length │ leader    │  = 2  │       │            │ offset          │
           │        │        │ epoch     │       │       │            │ delta           │
           └────────┴────────┴───────────┴───────┴───────┴────────────┴─────────────────┘
    byte  27          35         43         51         53         57         61
           ┌──────────┬──────────┬──────────┬──────────┬──────────┬──────────┬───────────
           │ base     │ max      │ producer │ producer │ base     │ records  │ records,
           │ timestamp│ timestamp│ id       │ epoch    │ sequence │ count    │ one after another
           └──────────┴──────────┴──────────┴──────────┴──────────┴──────────┴───────────

All integers are big-endian. `batch length` counts what follows it, so a batch takes 12 bytes more. The
CRC-32C covers everything from `attributes` to the end: base offset and leader epoch can be written by the
broker without touching the checksum; the timestamps cannot.

    attributes   bits 0-2 codec · 3 timestamp type (1 = LogAppendTime) · 4 transactional · 5 control
                 · 6 base timestamp is a delete horizon (KIP-534)

Source: `clients/.../common/record/DefaultRecordBatch.java`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

from appliance.protocol.records.crc32c import checksum
from appliance.protocol.records.errors import CorruptBatch

Buffer = bytes | bytearray | memoryview

BASE_OFFSET = 0
BATCH_LENGTH = BASE_OFFSET + 8
PARTITION_LEADER_EPOCH = BATCH_LENGTH + 4
MAGIC = PARTITION_LEADER_EPOCH + 4
CRC = MAGIC + 1
ATTRIBUTES = CRC + 4
LAST_OFFSET_DELTA = ATTRIBUTES + 2
BASE_TIMESTAMP = LAST_OFFSET_DELTA + 4
MAX_TIMESTAMP = BASE_TIMESTAMP + 8
PRODUCER_ID = MAX_TIMESTAMP + 8
PRODUCER_EPOCH = PRODUCER_ID + 8
BASE_SEQUENCE = PRODUCER_EPOCH + 2
RECORDS_COUNT = BASE_SEQUENCE + 4
RECORDS = RECORDS_COUNT + 4

HEADER_BYTES = RECORDS
LOG_OVERHEAD = PARTITION_LEADER_EPOCH
"""Bytes of a batch that its own length does not count."""
MAGIC_V2 = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
NO_LEADER_EPOCH = -1
SEQUENCE_MAX = 0x7FFFFFFF

HEADER = Struct(">qiibIhiqqqhii")

# Positions of the fields in what `HEADER` unpacks: `header[H_PRODUCER_ID]`. The names without H_ are byte offsets.
H_BASE_OFFSET: Final = 0
H_BATCH_LENGTH: Final = 1
H_PARTITION_LEADER_EPOCH: Final = 2
H_MAGIC: Final = 3
H_CRC: Final = 4
H_ATTRIBUTES: Final = 5
H_LAST_OFFSET_DELTA: Final = 6
H_BASE_TIMESTAMP: Final = 7
H_MAX_TIMESTAMP: Final = 8
H_PRODUCER_ID: Final = 9
H_PRODUCER_EPOCH: Final = 10
H_BASE_SEQUENCE: Final = 11
H_RECORDS_COUNT: Final = 12

PLACEMENT = Struct(">qiib")
"""The part before the checksum: base offset, batch length, leader epoch, magic."""
PLACEMENT_BYTES = PLACEMENT.size
OFFSET_AND_LENGTH = Struct(">qi")
_UINT32 = Struct(">I")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The 61 bytes before the records, as values. Timestamps in milliseconds since the epoch."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, its length field included."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record; wraps from 2^31 - 1 to 0. -1 without a producer."""
        if self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`.

    Raises:
        CorruptBatch: fewer than 61 bytes are there, or the format is not v2.
    """
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"a batch header takes {HEADER_BYTES} bytes, {len(buffer) - position} are there")
    header = BatchHeader(*HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC_V2:
        raise CorruptBatch(f"message format v{header.magic} is not spoken here, only v{MAGIC_V2}")
    if header.batch_length < HEADER_BYTES - LOG_OVERHEAD:
        raise CorruptBatch(f"a batch length of {header.batch_length} bytes is shorter than its header")
    return header


def batches(buffer: Buffer, position: int = 0, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
    """Walks the headers: (position, header) of every batch that lies wholly inside of [position, end).

    A batch that is cut by the end is left out, because a fetch may cut its last batch anywhere. Preallocated
    zeros read as the end too.

    Raises:
        CorruptBatch: bytes that are no batch of format v2.
    """
    stop = len(buffer) if end is None else end
    while stop - position >= HEADER_BYTES:
        if OFFSET_AND_LENGTH.unpack_from(buffer, position) == (0, 0):
            return
        header = read_header(buffer, position)
        if position + header.size_bytes > stop:
            return
        yield position, header
        position += header.size_bytes


def crc_holds(batch: memoryview) -> bool:
    """Whether the stored checksum is that of the bytes. `batch` is exactly one batch."""
    stored: int = _UINT32.unpack_from(batch, CRC)[0]
    return checksum(batch[ATTRIBUTES:]) == stored


def place(batch: bytearray | memoryview, base_offset: int, *, leader_epoch: int) -> None:
    """Writes what the broker decides into a batch, in place; the checksum does not cover it."""
    length: int = OFFSET_AND_LENGTH.unpack_from(batch)[1]
    PLACEMENT.pack_into(batch, 0, base_offset, length, leader_epoch, MAGIC_V2)


def restamp(batch: bytearray, attributes: int, *, max_timestamp_ms: int) -> None:
    """Rewrites attributes and max timestamp in place, then the checksum that covers them."""
    _ATTRIBUTES.pack_into(batch, ATTRIBUTES, attributes)
    _TIMESTAMP.pack_into(batch, MAX_TIMESTAMP, max_timestamp_ms)
    _UINT32.pack_into(batch, CRC, checksum(memoryview(batch)[ATTRIBUTES:]))
