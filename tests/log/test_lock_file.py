"""Every wait for a lock ends, and names who holds it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from appliance.errors import StorageFault
from appliance.log import lock_file
from appliance.log.faults import is_lasting
from appliance.log.lock_file import holders_named, lock_within, open_lock_file
from appliance.log.settlement import settling
from appliance.log.shares import one_at_a_time

HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
getattr(fcntl, sys.argv[2])(descriptor, fcntl.LOCK_SH)
print("held", flush=True)
sys.stdin.read()
"""


def holder(path: Path, kind: str = "flock") -> subprocess.Popen[bytes]:
    """A stranger's process that holds a lock on `path` until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    return process


def test_a_lock_that_is_held_ends_the_wait_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    descriptor = open_lock_file(path)
    with holder(path) as stranger:
        begun = time.monotonic()
        with pytest.raises(StorageFault) as caught:
            lock_within(descriptor, path, wait_ms=200)
        assert time.monotonic() - begun < 10
        assert f"{path} has been locked for 200 ms by pid {stranger.pid} ({sys.executable}" in str(
            caught.value
        )
        assert ", user root)" in str(caught.value) or os.geteuid() != 0
        assert not is_lasting(caught.value), "the disk is sound"
        stranger.communicate()
    lock_within(descriptor, path, wait_ms=0)
    os.close(descriptor)


def test_a_lock_of_the_other_kind_names_its_holder_too(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    descriptor = open_lock_file(path)
    with holder(path, "lockf") as stranger:
        assert f"pid {stranger.pid} " in holders_named(descriptor)
        stranger.communicate()
    os.close(descriptor)


def test_a_wait_ends_when_the_holder_lets_go(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    descriptor = open_lock_file(path)
    with holder(path) as stranger:
        stranger.kill()
        lock_within(descriptor, path)
    os.close(descriptor)


@pytest.mark.parametrize("name", ["the whole directory", "a move"])
def test_what_a_stranger_locks_holds_nobody_up_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    defaults = dict(lock_within.__kwdefaults__ or {})
    assert defaults == {"wait_ms": lock_file.WAIT_MAX_MS}
    monkeypatch.setitem(lock_within.__kwdefaults__ or {}, "wait_ms", 100)
    wait: AbstractContextManager[object]
    if name == "a move":
        locked, wait = tmp_path, settling(tmp_path, waits=True)
    else:
        locked, wait = tmp_path / ".lock-checkpoints", one_at_a_time(tmp_path)
        locked.touch(0o600)
    with holder(locked) as stranger:
        with pytest.raises(StorageFault, match=f"pid {stranger.pid} "), wait:
            pass
        stranger.communicate()


def test_a_lock_file_that_others_could_open_is_closed_to_them(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.touch()
    path.chmod(0o666)
    os.close(open_lock_file(path))
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_free_lock_is_taken_at_once(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    descriptor, other = open_lock_file(path), open_lock_file(path)
    lock_within(descriptor, path, wait_ms=0)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    os.close(other)
