"""The data directory is held on a full disk, too."""

from __future__ import annotations

import resource
from pathlib import Path

from appliance.control.store.reserve import PIECE_BYTES, RESERVE_BYTES, RESERVE_NAME, Reserve
from appliance.control.supervisor.data_directory import LOCK_FILE, RUN_FILE, DataDirectory


def test_directory_is_held_and_given_free_where_nothing_can_be_written(tmp_path: Path) -> None:
    DataDirectory.hold(tmp_path, patience_ms=0).release()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        held = DataDirectory.hold(tmp_path, patience_ms=0)
        held.write_run_file({"pid": 1})
        held.release()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / LOCK_FILE).read_bytes() == b""
    assert not (tmp_path / RUN_FILE).exists()


def test_reserve_is_given_piece_by_piece_and_filled_again(tmp_path: Path) -> None:
    now_s = 0.0
    reserve = Reserve(tmp_path, monotonic_s=lambda: now_s)
    assert not reserve.give()
    now_s += 60
    reserve.fill()
    path = tmp_path / RESERVE_NAME
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES
    given = 0
    while reserve.give():
        given += 1
    assert given == RESERVE_BYTES // PIECE_BYTES
    assert path.stat().st_size == 0
    reserve.fill()
    assert path.stat().st_size == 0, "not at once: others want that room"
    now_s += 60
    reserve.fill()
    assert path.stat().st_blocks * 512 >= RESERVE_BYTES
