from __future__ import annotations

import pytest

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.errors import CorruptBatch
from appliance.protocol.records.record import Record, decode_records, encode_batch


def three_batches() -> bytes:
    return b"".join(
        encode_batch([Record(b"v" * (offset + 1), timestamp_ms=offset)] * 2, base_offset=offset)
        for offset in (0, 2, 4)
    )


def test_header_fields_lie_where_the_drawing_says() -> None:
    assert (b.MAGIC, b.CRC, b.ATTRIBUTES, b.RECORDS_COUNT, b.RECORDS) == (16, 17, 21, 57, 61)
    assert b.HEADER.size == b.HEADER_BYTES == 61
    assert b.PLACEMENT_BYTES == b.CRC


def test_walking_a_buffer_meets_every_batch() -> None:
    data = three_batches()
    found = list(b.batches(data))
    assert [header.base_offset for _, header in found] == [0, 2, 4]
    assert [header.next_offset for _, header in found] == [2, 4, 6]
    assert found[-1][0] + found[-1][1].size_bytes == len(data)


@pytest.mark.parametrize("cut", [1, 12, 60, 61])
def test_a_batch_cut_by_the_end_is_left_out(cut: int) -> None:
    data = three_batches()
    last = list(b.batches(data))[-1][0]
    assert [header.base_offset for _, header in b.batches(data[: last + cut])] == [0, 2]


def test_zeros_read_as_the_end() -> None:
    assert len(list(b.batches(three_batches() + bytes(4096)))) == 3


def test_bytes_that_are_no_batch_are_refused() -> None:
    data = bytearray(three_batches())
    data[b.MAGIC] = 1
    with pytest.raises(CorruptBatch) as refused:
        list(b.batches(data))
    assert refused.value.code == ErrorCode.CORRUPT_MESSAGE


def test_placing_a_batch_leaves_its_checksum_valid() -> None:
    data = bytearray(encode_batch([Record(b"v", timestamp_ms=7)]))
    b.place(data, 4711, leader_epoch=3)
    assert b.crc_holds(memoryview(data))
    header = b.read_header(data)
    assert (header.base_offset, header.partition_leader_epoch) == (4711, 3)
    assert decode_records(data)[0].offset == 4711


def test_restamping_a_batch_writes_a_new_checksum() -> None:
    data = bytearray(encode_batch([Record(b"v", timestamp_ms=7)]))
    before = b.read_header(data).crc
    b.restamp(data, b.LOG_APPEND_TIME, max_timestamp_ms=99)
    assert b.crc_holds(memoryview(data))
    assert b.read_header(data).crc != before
    assert decode_records(data)[0].timestamp_ms == 99


def test_any_flipped_bit_after_the_checksum_is_noticed() -> None:
    data = encode_batch([Record(b"value", b"key", timestamp_ms=7)])
    for position in range(b.ATTRIBUTES, len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x10
        assert not b.crc_holds(memoryview(damaged)), position


def test_sequence_numbers_wrap_to_zero() -> None:
    data = encode_batch([Record(b"v")] * 3, producer_id=1, producer_epoch=0, base_sequence=b.SEQUENCE_MAX)
    assert b.read_header(data).last_sequence == 1
