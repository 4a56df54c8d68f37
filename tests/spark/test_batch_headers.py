"""Headers of many batches: what a walk tells of bytes that are right, cut, zero or nonsense."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from appliance.protocol.columns.batch_headers import Stop, Walk, walk_headers, walk_interpreted
from appliance.protocol.records import batch as b
from appliance.protocol.records.record import frame_batch

INT16 = st.integers(-(2**15), 2**15 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)

framed = st.builds(
    frame_batch,
    st.binary(max_size=80),
    count=INT32,
    base_offset=INT64.filter(bool),
    last_offset_delta=INT32,
    leader_epoch=INT32,
    attributes=INT16,
    base_timestamp_ms=INT64,
    max_timestamp_ms=INT64,
    producer_id=INT64,
    producer_epoch=INT16,
    base_sequence=INT32,
)


def both(data: bytes, begin: int = 0, end: int | None = None, *, file_position: int = 0) -> Walk:
    """The walk, after the compiled and the interpreted one have agreed about it."""
    limit = len(data) if end is None else end
    one = walk_headers(data, begin, limit, file_position=file_position)
    other = walk_interpreted(data, begin, limit, file_position=file_position)
    assert np.array_equal(one.batches, other.batches)
    assert one[1:] == other[1:]
    return one


@settings(deadline=None)
@given(st.lists(framed, min_size=1, max_size=4))
def test_every_field_of_every_header_is_told(batches: list[bytes]) -> None:
    walk = both(b"".join(batches), file_position=1 << 40)
    assert (walk.stop, walk.position) == (Stop.END, sum(map(len, batches)))
    at = 0
    for row, batch in zip(walk.batches, batches, strict=True):
        header = b.read_header(batch)
        assert (row["position"], row["file_position"], row["length_bytes"]) == (
            at,
            (1 << 40) + at,
            len(batch),
        )
        assert (row["base_offset"], row["records"]) == (header.base_offset, header.records_count)
        assert int(row["last_offset"]) % 2**64 == header.last_offset % 2**64
        assert (row["base_timestamp_ms"], row["max_timestamp_ms"]) == (
            header.base_timestamp_ms,
            header.max_timestamp_ms,
        )
        assert (row["producer_id"], row["producer_epoch"], row["base_sequence"]) == (
            header.producer_id,
            header.producer_epoch,
            header.base_sequence,
        )
        assert (row["attributes"], row["leader_epoch"], row["crc"]) == (
            header.attributes,
            header.partition_leader_epoch,
            header.crc,
        )
        at += len(batch)


@settings(deadline=None)
@given(st.binary(max_size=200))
@example(bytes(200))
@example(b"\x01" + bytes(15) + b"\x02" + bytes(100))
def test_bytes_that_are_no_batch_end_the_walk_at_their_place(data: bytes) -> None:
    walk = both(data)
    assert len(walk.batches) == 0
    assert walk.position == 0


@settings(deadline=None)
@given(framed, st.integers(1, 300))
def test_a_batch_that_is_cut_says_how_many_bytes_it_takes(batch: bytes, missing: int) -> None:
    data = batch + batch[: max(12, len(batch) - missing)]
    walk = both(data)
    assert (len(walk.batches), walk.position, walk.stop) == (1, len(batch), Stop.CUT)
    assert walk.needed_bytes == (len(batch) if len(data) - len(batch) >= b.HEADER_BYTES else b.HEADER_BYTES)


def test_zeros_after_the_last_batch_are_the_end() -> None:
    batch = frame_batch(b"", count=0, base_offset=7)
    for zeros in (1, 11, 12, 60, 61, 500):
        walk = both(batch + bytes(zeros))
        assert (len(walk.batches), walk.position, walk.stop) == (1, len(batch), Stop.ZEROS)


def test_another_format_and_a_short_length_are_told_apart() -> None:
    old = bytearray(frame_batch(b"", count=0, base_offset=7))
    old[b.MAGIC] = 1
    assert both(bytes(old)).stop is Stop.BAD_MAGIC
    short = bytearray(frame_batch(b"", count=0, base_offset=7))
    short[b.BATCH_LENGTH + 3] -= 1
    assert both(bytes(short)).stop is Stop.BAD_LENGTH
    negative = bytearray(frame_batch(b"", count=0, base_offset=7))
    negative[b.BATCH_LENGTH] = 0xFF
    assert both(bytes(negative)).stop is Stop.BAD_LENGTH


def test_bounds_outside_of_the_buffer_are_refused() -> None:
    with pytest.raises(ValueError, match="is not inside"):
        walk_headers(b"abc", 0, 4)
