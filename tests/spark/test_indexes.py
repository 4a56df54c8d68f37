"""Indexes as arrays: what an active segment's have behind their entries is no entry."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from spark_connector.indexes import offset_entries, time_entries

ROOM_BYTES = 1 << 20
"""What is taken ahead for entries to come; zeros."""


@pytest.mark.parametrize("count", [0, 1, 4095, 4096, 4097, 9000])
def test_entries_end_where_the_room_ahead_begins(tmp_path: Path, count: int) -> None:
    name = f"{100:020d}"
    offsets = b"".join(struct.pack(">ii", number + 1, 20 * (number + 1)) for number in range(count))
    times = b"".join(struct.pack(">qi", 1_000 + number, number + 1) for number in range(count))
    (tmp_path / f"{name}.index").write_bytes(offsets + bytes(ROOM_BYTES))
    (tmp_path / f"{name}.timeindex").write_bytes(times + bytes(ROOM_BYTES))
    found = offset_entries(str(tmp_path), 100, size_bytes=1 << 30)
    assert found.offsets.tolist() == [101 + number for number in range(count)]
    assert found.positions.tolist() == [20 * (number + 1) for number in range(count)]
    late = time_entries(str(tmp_path), 100)
    assert late.timestamps_ms.tolist() == [1_000 + number for number in range(count)]
    assert late.offsets.tolist() == found.offsets.tolist()


def test_an_index_that_is_not_there_has_no_entries(tmp_path: Path) -> None:
    assert not len(offset_entries(str(tmp_path), 0, size_bytes=1 << 30).offsets)
    assert not len(time_entries(str(tmp_path), 0).offsets)
