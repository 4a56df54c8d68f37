from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.errors import CorruptFile
from appliance.log.chunks import HEADERS_BYTES, SMALL_BYTES, read_chunks, read_headers
from appliance.protocol.records.record import Record, encode_batch

SIZES = (1, 300, SMALL_BYTES - 100, SMALL_BYTES, HEADERS_BYTES - 130, HEADERS_BYTES, 3 * HEADERS_BYTES)


def written(path: Path, sizes: list[int]) -> list[int]:
    """Write a batch of each size; return where each begins, and the end."""
    ends = [0]
    with path.open("wb") as file:
        for offset, size in enumerate(sizes):
            ends.append(ends[-1] + file.write(encode_batch([Record(bytes(size))], base_offset=offset)))
    return ends


@given(
    st.lists(st.sampled_from(SIZES), max_size=40), st.integers(0, 40), st.integers(-1, 1), st.integers(1, 50)
)
def test_headers_are_those_of_the_batches_however_large_they_are(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], first: int, beside: int, count_max: int
) -> None:
    path = tmp_path_factory.mktemp("chunks") / "log"
    ends = written(path, sizes)
    start = ends[min(first, len(ends) - 1)]
    end = max(start, ends[-1] + min(beside, 0))
    wanted = [
        batch.header for chunk in read_chunks(path, start, end, may_be_cut=True) for batch in chunk.batches
    ]
    assert read_headers(path, start, end, count_max=count_max) == wanted[:count_max]


def test_zeros_end_the_headers_and_other_bytes_are_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "log"
    (*_, end) = written(path, [10, 10])
    with path.open("ab") as file:
        file.write(bytes(500))
    assert len(read_headers(path, 0, end + 500, count_max=9)) == 2
    with path.open("r+b") as file:
        file.seek(end)
        file.write(b"x" * 100)
    with pytest.raises(CorruptFile):
        read_headers(path, 0, end + 500, count_max=9)
