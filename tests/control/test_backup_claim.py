"""One backup or prune at a time writes into an object store. Here it is pyarrow's file system of a directory."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from pathlib import Path

import pytest

from appliance.control.backup.claim import BEAT_S, STALE_S, WRITERS, Claim, boot_time_s
from appliance.control.backup.manifest import Manifest, encode, manifest_path
from appliance.control.backup.target import ObjectTarget
from appliance.control.backup.upkeep import prune
from appliance.errors import OperatorFault, StorageFault

fs = pytest.importorskip("pyarrow.fs")


def claims(place: Path) -> list[Path]:
    return sorted((place / WRITERS).iterdir()) if (place / WRITERS).is_dir() else []


def claim(place: Path, *, beat_s: float = BEAT_S, stale_s: float = STALE_S) -> Claim:
    return Claim(fs.LocalFileSystem(), str(place), f"file://{place}", beat_s=beat_s, stale_s=stale_s)


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_second_writer_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    place = f"file://{tmp_path}"
    first = ObjectTarget(place, writes=True)
    with pytest.raises(OperatorFault, match=f"process {os.getpid()} on host"):
        ObjectTarget(place, writes=True)
    assert len(claims(tmp_path)) == 1, "the refused one has left nothing"
    ObjectTarget(place, writes=False).close()
    first.close()
    first.close()
    assert not claims(tmp_path)
    ObjectTarget(place, writes=True).close()


def test_of_many_at_the_same_time_at_most_one_writes(tmp_path: Path) -> None:
    def attempt(_: int) -> Claim | None:
        try:
            return claim(tmp_path)
        except OperatorFault:
            return None

    with ThreadPoolExecutor(8) as pool:
        for _ in range(20):
            won = [each for each in pool.map(attempt, range(8)) if each is not None]
            assert len(won) <= 1
            for each in won:
                each.release()
    assert not claims(tmp_path)


def test_claim_of_a_dead_process_is_taken_over_when_it_is_old(tmp_path: Path) -> None:
    (tmp_path / WRITERS).mkdir()
    dead = tmp_path / WRITERS / "gone-1-00.json"
    dead.write_text('{"host": "gone", "pid": 1, "since": "yesterday"}')
    aged(dead, 250)
    with pytest.raises(OperatorFault, match=r"process 1 on host 'gone' since yesterday, heard of 25. s ago"):
        claim(tmp_path)
    assert claims(tmp_path) == [dead]
    aged(dead, 400)
    taken = claim(tmp_path, beat_s=0.01)
    assert dead not in claims(tmp_path)
    taken.check()
    taken.release()


@pytest.mark.parametrize("step_s", [-1000.0, 1000.0])
def test_claim_that_looks_old_after_a_step_of_the_clock_counts_if_it_is_renewed(
    tmp_path: Path, step_s: float
) -> None:
    """The clock that dates files goes forward or back; the holder renews its claim in between."""
    held = claim(tmp_path, beat_s=3600)
    (path,) = claims(tmp_path)
    aged(path, step_s)
    said: list[str] = []

    def renewed(text: str) -> None:
        said.append(text)
        os.utime(path)

    with pytest.raises(OperatorFault, match=f"process {os.getpid()} on host"):
        Claim(fs.LocalFileSystem(), str(tmp_path), "there", beat_s=0.01, say=renewed)
    assert f"process {os.getpid()} on host" in said[0]
    assert claims(tmp_path) == [path]
    held.check()
    held.release()


def test_dead_claim_in_the_future_does_not_block_for_ever(tmp_path: Path) -> None:
    (tmp_path / WRITERS).mkdir()
    dead = tmp_path / WRITERS / "gone-1-00.json"
    dead.touch()
    aged(dead, -86_400)
    taken = claim(tmp_path, beat_s=0.01)
    assert dead not in claims(tmp_path)
    taken.release()


def test_claim_that_was_renewed_too_late_stays_lost(tmp_path: Path) -> None:
    """Another command may have removed it after the look at it, and the renewal has put it there again."""
    now_s = 0.0
    held = Claim(
        fs.LocalFileSystem(), str(tmp_path), "there", beat_s=0.01, stale_s=300, monotonic_s=lambda: now_s
    )
    now_s = 299.999
    deadline = time.monotonic() + 10
    while True:
        try:
            held.check()
        except StorageFault as fault:
            if "may have written" in str(fault):
                break
        assert time.monotonic() < deadline
        time.sleep(0.01)
    held.release()


def test_sleep_of_the_host_counts_as_silence() -> None:
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    assert boot_time_s() - time.monotonic() == pytest.approx(asleep_s, abs=1)
    assert signature(Claim).parameters["monotonic_s"].default is boot_time_s


def test_claim_that_cannot_be_written_whole_is_removed(tmp_path: Path) -> None:
    class Full(Claim):
        def _write(self) -> None:
            super()._write()
            raise OSError(28, "No space left on device")

    with pytest.raises(StorageFault, match="No space"):
        Full(fs.LocalFileSystem(), str(tmp_path), "there")
    assert not claims(tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"pid": "x"}', b"\xff" * 10_000])
def test_claim_that_says_nothing_is_named_by_its_object(tmp_path: Path, content: bytes) -> None:
    (tmp_path / WRITERS).mkdir()
    (tmp_path / WRITERS / "odd.json").write_bytes(content)
    with pytest.raises(OperatorFault, match=r"odd\.json"):
        claim(tmp_path)


def test_claim_is_renewed_while_its_process_lives(tmp_path: Path) -> None:
    held = claim(tmp_path, beat_s=0.01, stale_s=60)
    (path,) = claims(tmp_path)
    aged(path, 1000)
    deadline = time.monotonic() + 10
    while time.time() - path.stat().st_mtime > 500:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    held.release()
    assert not claims(tmp_path), "and is not written again after its end"


def test_process_that_was_suspended_stops_before_others_count_it_as_dead(tmp_path: Path) -> None:
    now_s = 0.0
    held = Claim(
        fs.LocalFileSystem(), str(tmp_path), "there", beat_s=3600, stale_s=300, monotonic_s=lambda: now_s
    )
    now_s = 140
    held.check()
    now_s = 160
    with pytest.raises(StorageFault, match="160 s"):
        held.check()
    held.release()


def test_prune_removes_nothing_after_its_claim_was_taken_over(tmp_path: Path) -> None:
    target = ObjectTarget(f"file://{tmp_path}", writes=True)
    ids = [f"2026010{day}T000000.000Z" for day in (1, 2)]
    for id in ids:
        target.write(manifest_path(id), [encode(Manifest(id, "cluster", "0.1", 0, (), {0: b"x"}, ()))])
    orphan = f"data/a-0/0.log.0.{ids[0]}"
    target.write(orphan, [b"bytes"])
    (path,) = claims(tmp_path)
    path.unlink()
    with pytest.raises(StorageFault, match="took this command for dead"):
        prune(target, 1)
    assert [each for each in ids if (tmp_path / manifest_path(each)).exists()] == ids
    assert (tmp_path / orphan).exists()
    target.close()
    target = ObjectTarget(f"file://{tmp_path}", writes=True)
    assert prune(target, 1) == ([ids[0]], 1)
    target.close()


def test_store_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageFault, match="writers"):
        claim(tmp_path / "file")
