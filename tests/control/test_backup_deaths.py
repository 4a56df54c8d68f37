"""Backup, prune and restore die before any of their calls to the system: what was whole stays whole, and says so."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.control.backup.marker import refuse_unfinished_restore
from appliance.control.backup.restore import restore
from appliance.control.backup.take import take_backup
from appliance.control.backup.target import DirectoryTarget
from appliance.control.backup.upkeep import ids, prune, read_manifest, verify
from appliance.errors import OperatorFault
from tests.control.test_backup_take import data_dir, segments, take

__all__ = ["data_dir"]

CALLS: Final = ("open", "write", "rename", "unlink", "mkdir", "rmdir", "close", "fdatasync", "fsync", "link")


def dies_before(number: int, work: Callable[[], object]) -> bool:
    """Whether `work`, in a child, was killed before its call `number`. False: it had fewer, and has ended well."""
    child = os.fork()
    if child == 0:
        try:
            left = [number]

            def counted(call: Callable[..., Any]) -> Callable[..., Any]:
                def counting(*arguments: Any, **named: Any) -> Any:
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return call(*arguments, **named)

                return counting

            for name in CALLS:
                setattr(os, name, counted(getattr(os, name)))
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), "it failed by itself"
    return bool(status)


def deaths(work: Callable[[], object]) -> Iterator[int]:
    """Every number of a call before which `work` can die; it dies there first."""
    for number in count(1):
        if not dies_before(number, work):
            assert number > 10, "the calls are counted"
            return
        yield number


@pytest.fixture
def target(data_dir: Path, tmp_path: Path) -> Path:
    """A target with one backup, of which the next one must copy both segments again."""
    take(data_dir, tmp_path / "target")
    for log in (data_dir / "slot-0").glob("a-*/*.log"):
        (tmp_path / "aside").write_bytes(log.read_bytes())
        (tmp_path / "aside").rename(log)
    return tmp_path / "target"


def on(path: Path, work: Callable[[DirectoryTarget], object]) -> None:
    place = DirectoryTarget(path, writes=True)
    try:
        work(place)
    finally:
        place.close()


def damaged(path: Path) -> list[str]:
    place = DirectoryTarget(path, writes=False)
    assert ids(place)
    return [f"{each.path} {each.reason}" for each in verify(place, ids(place))[1]]


def test_backup_that_dies_leaves_whole_backups_and_nothing_that_prune_leaves(
    data_dir: Path, target: Path, tmp_path: Path
) -> None:
    def work() -> None:
        on(tmp_path / "copy", lambda place: take_backup(data_dir, place, say=lambda _: None))

    shutil.copytree(target, tmp_path / "copy")
    for _ in deaths(work):
        assert not damaged(tmp_path / "copy")
        on(tmp_path / "copy", lambda place: prune(place, 5))
        place = DirectoryTarget(tmp_path / "copy", writes=False)
        needed = {piece.path for id in ids(place) for piece in read_manifest(place, id).pieces()}
        assert {str(path.relative_to(tmp_path / "copy")) for path in segments(tmp_path / "copy")} <= needed
        assert not list((tmp_path / "copy").rglob("*.part"))
        shutil.rmtree(tmp_path / "copy")
        shutil.copytree(target, tmp_path / "copy")
    assert not damaged(tmp_path / "copy")


def test_prune_that_dies_leaves_whole_backups(data_dir: Path, target: Path, tmp_path: Path) -> None:
    newest = take(data_dir, target).manifest.id
    take(data_dir, target)
    shutil.copytree(target, tmp_path / "copy")
    for _ in deaths(lambda: on(tmp_path / "copy", lambda place: prune(place, 2))):
        assert not damaged(tmp_path / "copy")
        assert newest in ids(DirectoryTarget(tmp_path / "copy", writes=False))
        shutil.rmtree(tmp_path / "copy")
        shutil.copytree(target, tmp_path / "copy")
    assert len(ids(DirectoryTarget(tmp_path / "copy", writes=False))) == 2


def test_restore_that_dies_leaves_a_directory_that_is_refused_or_whole(target: Path, tmp_path: Path) -> None:
    place = DirectoryTarget(target, writes=False)
    manifest = read_manifest(place, ids(place)[0])

    def written(path: Path) -> dict[str, bytes]:
        return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}

    restore(manifest, place, tmp_path / "whole", say=lambda _: None)
    whole, out = written(tmp_path / "whole"), tmp_path / "out"
    refused = 0
    for _ in deaths(lambda: restore(manifest, place, out, say=lambda _: None)):
        try:
            refuse_unfinished_restore(out)
        except OperatorFault:
            refused += 1
            with pytest.raises(OperatorFault, match="not empty"):
                restore(manifest, place, out, say=lambda _: None)
        else:
            left = written(out) if out.exists() else {}
            assert left in ({}, whole), "nothing of it is there, or all"
        shutil.rmtree(out, ignore_errors=True)
    assert refused > 20
    assert written(out) == whole
