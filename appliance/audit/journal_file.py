"""The files of the journal: lines are appended to `audit.log`, and older files are numbered.

    audit.log         the one that is written to
    audit.log.1       the one before it
    audit.log.9       the oldest, which goes when the next one begins

| trouble | what is done |
|---|---|
| no room, an I/O error | what was written of the lines is cut off; they are lost and counted; the next are tried |
| the file was moved or deleted | the next line begins another |
| the writer was killed within a line | the next generation ends the torn line; readers skip it |
| the file cannot be renamed | nothing more is written to it, because it would grow without end; tried with each write |

Modes are 0600, of the directory 0700. The path is never followed through a symbolic link, and only a regular file is
written to. Lines are in the page cache when `append` returns. A power cut can lose the last seconds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from appliance.audit.entry import LOST, Entry, line, time_text
from appliance.clock import Clock

NAME: Final = "audit.log"

_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class NumberedFile(NamedTuple):
    """An older file; the higher its number, the older it is."""

    number: int
    path: Path


def numbered_files(directory: Path) -> list[NumberedFile]:
    """Return the older files, oldest first.

    Raises:
        OSError: the directory cannot be read.
    """
    found = []
    for name in os.listdir(directory):
        number = name.removeprefix(f"{NAME}.")
        if number != name and number.isascii() and number.isdecimal() and not number.startswith("0"):
            found.append(NumberedFile(int(number), directory / name))
    return sorted(found, reverse=True)


class JournalFile:
    """The files in one directory. One process writes.

    Args:
        directory: made when it is not there.
        file_bytes: a file that would be larger is followed by another one.
        files_max: with the current one.
        complain: gets a line for the operator about lines that were lost.
    """

    __slots__ = ("_clock", "_complain", "_descriptor", "_directory", "_file_bytes", "_files_max", "_size_bytes",
                 "_unsaid", "lost", "written")  # fmt: skip

    def __init__(
        self,
        directory: Path,
        *,
        file_bytes: int,
        files_max: int,
        clock: Clock,
        complain: Callable[[str], object],
    ) -> None:
        self._directory = directory
        self._file_bytes = file_bytes
        self._files_max = files_max
        self._clock = clock
        self._complain = complain
        self._descriptor = -1
        self._size_bytes = 0
        self._unsaid = 0
        self.written = 0
        self.lost = 0

    @property
    def path(self) -> Path:
        return self._directory / NAME

    def append(self, lines: bytes) -> bool:
        """Append whole lines; return whether they are in the file. It raises nothing."""
        count = lines.count(b"\n")
        try:
            self._ready(len(lines))
            if self._unsaid:
                self._write(self._said())
                self._unsaid = 0
            self._write(lines)
        except OSError as error:
            self._lose(count, error)
            return False
        self.written += count
        return True

    def close(self) -> None:
        """Let go of the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                os.close(descriptor)

    def _said(self) -> bytes:
        told = Entry(time_text(self._clock.now_ms()), LOST, count=self._unsaid, process="auditor")
        return line(told)

    def _lose(self, count: int, error: OSError) -> None:
        self.close()
        self.lost += count
        self._unsaid += count
        self._complain(
            f"{count} entries of the audit journal are lost, because {self.path} cannot be written:"
            f" {error.strerror or error}"
        )

    def _ready(self, length_bytes: int) -> None:
        """Have the file open that takes the next bytes."""
        if self._descriptor >= 0 and not self._is_in_place():
            self.close()
        if self._descriptor < 0:
            self._open()
        if self._size_bytes and self._size_bytes + length_bytes > self._file_bytes:
            self._rotate()

    def _is_in_place(self) -> bool:
        try:
            there, ours = os.lstat(self.path), os.fstat(self._descriptor)
        except FileNotFoundError:
            return False
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def _open(self) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, _FLAGS, 0o600)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(None, "it is no regular file")
            if stat.S_IMODE(status.st_mode) != 0o600:
                os.fchmod(descriptor, 0o600)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        self._size_bytes = status.st_size
        if status.st_size and os.pread(descriptor, 1, status.st_size - 1) != b"\n":
            self._write(b"\n")  # the writer before was killed within a line

    def _rotate(self) -> None:
        path = self.path
        oldest = self._files_max - 1
        for each in numbered_files(self._directory):
            if each.number >= oldest:
                os.unlink(each.path)
        for number in range(oldest - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.rename(f"{path}.{number}", f"{path}.{number + 1}")
        os.rename(path, f"{path}.1")
        self.close()
        self._open()

    def _write(self, data: bytes) -> None:
        """Write all of it, or nothing."""
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            # Half a line would make the next one unreadable, too.
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._size_bytes)
            raise
        self._size_bytes += len(data)
