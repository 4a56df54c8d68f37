"""Headers of large batches, each read by itself: the way from one to the next goes over its records.

    ┌─ header ─┬──────── records ────────┬─ header ─┬──────── records ────────┬─ …
      61 bytes        not read             61 bytes        not read

A read of 61 bytes costs as much as copying some 16 KiB does, and on a disk that was not read lately it spares the
rest. So whoever asks for headers alone hops as long as batches are large (`worth_hopping`), and else walks through
memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from appliance.protocol.columns.batch_headers import BATCH, Stop, Walk, walk_interpreted
from appliance.protocol.records import batch as b
from spark_connector.storage import OpenFile

HOPS_MAX: Final = 512
"""Of one call, so that what it returns is bounded."""
HOP_BYTES_MIN: Final = 32 << 10

_HEADER: Final = np.dtype(
    [
        ("base_offset", ">i8"),
        ("length", ">i4"),
        ("leader_epoch", ">i4"),
        ("magic", "i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp_ms", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("records", ">i4"),
    ]
)
"""A header as it lies in a file; drawn in `appliance.protocol.records.batch`."""
assert _HEADER.itemsize == b.HEADER_BYTES


def worth_hopping(walk: Walk) -> bool:
    """Whether batches as large as these are better hopped over than walked through."""
    return walk.position >= HOP_BYTES_MIN * len(walk.batches)


def hop_headers(file: OpenFile, position: int, byte_end: int) -> Walk:
    """As `walk_headers` over the bytes from `position` up to `byte_end`, or to the file's end, whichever is first.

    At most `HOPS_MAX` batches; `position` in the result counts from where the walk began. Nothing is said about bytes
    between headers, but that the file has them.

    Raises:
        OSError: the file cannot be read.
    """
    end = min(byte_end, file.size_bytes())
    at = position
    taken: list[bytes] = []
    ends: list[int] = []
    stop, needed_bytes = Stop.END, 0
    while at < end and len(taken) < HOPS_MAX:
        header = file.read(b.HEADER_BYTES, at)
        length_bytes = _length_bytes(header)
        if length_bytes is None:
            _, _, stop, needed_bytes = walk_interpreted(header, 0, len(header), file_position=at)
            break
        if at + length_bytes > end:
            stop, needed_bytes = Stop.CUT, length_bytes
            break
        taken.append(header)
        at += length_bytes
        ends.append(at - position)
    return Walk(_batches(taken, ends, position), at - position, stop, needed_bytes)


def _length_bytes(header: bytes) -> int | None:
    """What a batch with this header takes; None where it is none."""
    if len(header) < b.HEADER_BYTES:
        return None
    _, length, _, magic = b.PLACEMENT.unpack_from(header)
    if magic != b.MAGIC_V2 or length < b.HEADER_BYTES - b.LOG_OVERHEAD:
        return None
    return int(length) + b.LOG_OVERHEAD


def _batches(taken: list[bytes], ends: list[int], position: int) -> np.ndarray[tuple[int], np.dtype[np.void]]:
    headers = np.frombuffer(b"".join(taken), _HEADER)
    batches = np.zeros(len(headers), BATCH)
    batches["position"][1:] = ends[:-1]
    batches["file_position"] = batches["position"] + position
    batches["length_bytes"] = headers["length"] + b.LOG_OVERHEAD
    batches["last_offset"] = headers["base_offset"] + headers["last_offset_delta"]
    for name in _SAME:
        batches[name] = headers[name]
    return batches


_SAME: Final = sorted(set(_HEADER.names or ()) & set(BATCH.names or ()))
