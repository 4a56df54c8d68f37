"""The files of the journal: bounded, readable by nobody else, and whole lines whatever happens."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from appliance.audit.journal_file import NAME, JournalFile, numbered_files
from appliance.clock import ManualClock
from tests.log.test_full_disk import files_at_most

FILE_BYTES = 1000


class Journal(JournalFile):
    """In a directory of the test; what it complains of is in `complaints`."""

    __slots__ = ("complaints",)

    def __init__(self, directory: Path, *, file_bytes: int = FILE_BYTES, files_max: int = 3) -> None:
        self.complaints: list[str] = []
        super().__init__(
            directory,
            file_bytes=file_bytes,
            files_max=files_max,
            clock=ManualClock(),
            complain=self.complaints.append,
        )


def entry(number: int, size_bytes: int = 100) -> bytes:
    head = b'{"n":%d,"fill":"' % number
    return head + b"x" * (size_bytes - len(head) - 3) + b'"}\n'


def numbers(*paths: Path) -> list[int]:
    return [json.loads(line)["n"] for path in paths for line in path.read_bytes().splitlines()]


def test_lines_are_appended_also_by_the_next_life(tmp_path: Path) -> None:
    for number in range(3):
        journal = Journal(tmp_path / "audit")
        assert journal.append(entry(number))
        journal.close()
    assert numbers(tmp_path / "audit" / NAME) == [0, 1, 2]


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        Journal(tmp_path / "audit").append(entry(0))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o700
    path = tmp_path / "audit" / NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    Journal(tmp_path / "audit").append(entry(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_files_are_rotated_and_bounded(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    for number in range(45):
        assert journal.append(entry(number))
    files = [each.path for each in numbered_files(tmp_path)]
    assert [path.name for path in files] == [f"{NAME}.2", f"{NAME}.1"]
    assert numbers(*files, tmp_path / NAME) == list(range(20, 45))
    assert all(path.stat().st_size <= FILE_BYTES for path in tmp_path.iterdir())


def test_files_beyond_a_smaller_maximum_go_and_other_files_stay(tmp_path: Path) -> None:
    for name in (f"{NAME}.2", f"{NAME}.7", f"{NAME}.0", f"{NAME}.old", f"{NAME}.01"):
        (tmp_path / name).write_bytes(b"")
    journal = Journal(tmp_path)
    for number in range(11):
        journal.append(entry(number))
    assert {path.name for path in tmp_path.iterdir()} == {
        NAME,
        f"{NAME}.1",
        f"{NAME}.0",
        f"{NAME}.old",
        f"{NAME}.01",
    }


def test_one_message_that_is_larger_than_a_file_is_written_whole(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.append(entry(0))
    assert journal.append(b"".join(entry(number) for number in range(1, 30)))
    assert journal.append(entry(30))
    assert numbers(tmp_path / f"{NAME}.2", tmp_path / f"{NAME}.1", tmp_path / NAME) == list(range(31))


def test_a_line_that_was_torn_by_a_kill_ends_before_the_next(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(entry(0) + b'{"n":1,"fi')
    assert Journal(tmp_path).append(entry(2))
    assert (tmp_path / NAME).read_bytes() == entry(0) + b'{"n":1,"fi\n' + entry(2)


def test_a_full_disk_loses_whole_lines_and_the_journal_says_how_many(tmp_path: Path) -> None:
    journal = Journal(tmp_path, file_bytes=1 << 20)
    assert journal.append(entry(0))
    with files_at_most(250):
        assert journal.append(entry(1))
        assert not journal.append(entry(2) + entry(3))
        assert not journal.append(entry(4))
    assert (journal.written, journal.lost) == (2, 3)
    assert "audit.log" in journal.complaints[0]
    assert (tmp_path / NAME).read_bytes() == entry(0) + entry(1)
    assert journal.append(entry(5))
    first, second, told, last = map(json.loads, (tmp_path / NAME).read_bytes().splitlines())
    assert (first["n"], second["n"], last["n"]) == (0, 1, 5)
    assert (told["event"], told["count"]) == ("lost", 3)


def test_a_file_that_was_moved_away_is_followed_by_another(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.append(entry(0))
    (tmp_path / NAME).rename(tmp_path / "moved")
    journal.append(entry(1))
    (tmp_path / NAME).unlink()
    journal.append(entry(2))
    assert numbers(tmp_path / "moved", tmp_path / NAME) == [0, 2]


@pytest.mark.parametrize("kind", ["symbolic link", "fifo", "directory"])
def test_nothing_but_a_regular_file_is_written_to(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "target"
    target.write_bytes(b"precious\n")
    journal = Journal(tmp_path / "audit")
    journal.path.parent.mkdir()
    if kind == "symbolic link":
        journal.path.symlink_to(target)
    elif kind == "fifo":
        os.mkfifo(journal.path)
    else:
        journal.path.mkdir()
    assert not journal.append(entry(0))
    assert journal.lost == 1
    assert target.read_bytes() == b"precious\n"


def test_a_directory_that_cannot_be_made_loses_lines_and_raises_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    journal = Journal(tmp_path / "file" / "audit")
    assert not journal.append(entry(0) + entry(1))
    assert journal.lost == 2
    (tmp_path / "file").unlink()
    assert journal.append(entry(2))
