"""Memory that is used again, and never while anybody looks at it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from appliance.log.config import LogSettings
from appliance.protocol.columns.memory import LARGE_BYTES, PIECES_MAX, SMALL_BYTES, Reserve
from spark_connector.record_batches import record_batches
from tests.log.batches import NOW_MS, batch_of
from tests.spark.logs import make_log, publish, tasks_of

SOME_BYTES = 3 << 20


def test_a_piece_that_nobody_holds_is_given_out_again() -> None:
    reserve = Reserve()
    place = reserve.take(SOME_BYTES).ctypes.data
    assert reserve.statistics()["pieces"] == 1
    again = reserve.take(SOME_BYTES - 5_000)
    assert again.ctypes.data == place
    assert len(again) == SOME_BYTES - 5_000
    assert reserve.statistics() == {"pieces": 0, "bytes": 0}


@pytest.mark.parametrize(
    "look",
    [
        lambda array: array[10:20],
        lambda array: array[10:20][2:4],
        lambda array: array.view(np.int64)[:3],
        lambda array: array.data,
        lambda array: array.data[5:9],
        lambda array: np.frombuffer(array.data[5:9], np.uint8),
        lambda array: pa.py_buffer(array[:7]),
        lambda array: pa.Array.from_buffers(pa.uint8(), 9, [None, pa.py_buffer(array)])[3:5],
    ],
    ids=[
        "slice",
        "slice of a slice",
        "numbers",
        "memoryview",
        "part of it",
        "array over it",
        "Arrow's",
        "column",
    ],
)
def test_a_piece_is_lent_as_long_as_anything_looks_at_it(look: Callable[[Any], Any]) -> None:
    reserve = Reserve()
    array = reserve.take(SOME_BYTES)
    seen = look(array)
    del array
    assert reserve.statistics()["pieces"] == 0
    del seen
    assert reserve.statistics()["pieces"] == 1


def test_a_piece_that_is_far_too_large_is_not_given_out() -> None:
    reserve = Reserve()
    reserve.take(LARGE_BYTES)
    small = reserve.take(SMALL_BYTES + 1)
    assert len(small) == SMALL_BYTES + 1
    assert reserve.statistics()["bytes"] == LARGE_BYTES


@pytest.mark.parametrize("size_bytes", [0, 1, SMALL_BYTES, LARGE_BYTES + 1])
def test_what_is_small_or_huge_is_not_kept(size_bytes: int) -> None:
    reserve = Reserve()
    assert len(reserve.take(size_bytes)) == size_bytes
    assert reserve.statistics()["pieces"] == 0


def test_no_more_is_kept_than_so_many_pieces() -> None:
    reserve = Reserve()
    lent = [reserve.take(SOME_BYTES) for _ in range(2 * PIECES_MAX)]
    del lent
    assert reserve.statistics()["pieces"] == PIECES_MAX


def test_no_two_threads_have_the_same_piece() -> None:
    reserve = Reserve()
    broken: list[str] = []

    def work(mark: int) -> None:
        held: list[Any] = []
        for turn in range(200):
            array = reserve.take(SMALL_BYTES + 1 + turn)
            array[:] = mark
            held.append(array)
            if len(held) > 3 and (held.pop(0) != mark).any():
                broken.append(f"{mark} at {turn}")

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broken


def test_record_batches_that_are_kept_stay_as_they_were(tmp_path: Path) -> None:
    log, state_file = make_log(tmp_path, settings=LogSettings())
    for number in range(12):
        values = [b"%d " % number * 70_000] * 4
        log.append(batch_of(values, timestamp_ms=NOW_MS + number, key=b"k"), leader_epoch=0)
    publish(log, state_file)
    kept = [
        batch
        for task in tasks_of(tmp_path)
        for batch in record_batches(task, ("value", "offset", "timestamp", "partition"))
    ]
    rows = [row for batch in kept for row in batch.to_pylist()]
    assert len(rows) == 48
    for index, row in enumerate(rows):
        assert row["offset"] == index
        assert row["value"] == b"%d " % (index // 4) * 70_000
        assert round(row["timestamp"].timestamp() * 1000) == NOW_MS + index // 4
