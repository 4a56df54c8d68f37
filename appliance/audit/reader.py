"""Reads the files of the journal while a writer may append to them and rotate them.

A line without its end is not whole yet, or was torn by a kill: it is left out. A line that is no entry is counted in
`Reader.skipped` and left out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from appliance.audit.entry import Entry
from appliance.audit.journal_file import NAME, numbered_files

LINE_BYTES_MAX: Final = 1 << 20
"""No entry is as long; a longer line is damage."""

_DECODER: Final = msgspec.json.Decoder(Entry)


@dataclass(frozen=True, slots=True)
class EntryFilter:
    """Which entries are meant; an empty part leaves that part open.

    Args:
        resource: the name of a resource of the entry, or the beginning of one before a `*`.
        since: a time as entries write it; `until` is after the last one.
    """

    events: frozenset[str] = frozenset()
    results: frozenset[str] = frozenset()
    principals: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    apis: frozenset[str] = frozenset()
    resource: str = ""
    since: str = ""
    until: str = ""

    def matches(self, entry: Entry) -> bool:
        """Whether the filter means this entry."""
        return (
            (not self.events or entry.event in self.events)
            and (not self.results or entry.result in self.results)
            and (not self.principals or entry.principal in self.principals)
            and (not self.hosts or entry.host in self.hosts)
            and (not self.apis or entry.api.lower() in self.apis)
            and (not self.since or entry.time >= self.since)
            and (not self.until or entry.time < self.until)
            and (not self.resource or any(self._names(each.name) for each in entry.resources))
        )

    def _names(self, name: str) -> bool:
        wanted = self.resource
        return name.startswith(wanted[:-1]) if wanted.endswith("*") else name == wanted


@dataclass(slots=True)
class Reader:
    """The entries in one directory, oldest first."""

    directory: Path
    skipped: int = 0
    _file: BinaryIO | None = field(default=None, repr=False)

    def entries(self) -> Iterator[Entry]:
        """Yield the entries that there are. A further call yields those that came since, also from newer files.

        Raises:
            OSError: the directory or a file cannot be read.
        """
        if self._file is None:
            self._file = self._opened(self._oldest())
        while self._file is not None:
            yield from self._read(self._file)
            following = self._following(self._file)
            if following is None:
                return
            # What was appended between the last look and the rotation.
            yield from self._read(self._file)
            self._file.close()
            self._file = self._opened(following)

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self, file: BinaryIO) -> Iterator[Entry]:
        while True:
            position = file.tell()
            line = file.readline(LINE_BYTES_MAX)
            if not line.endswith(b"\n"):
                if len(line) == LINE_BYTES_MAX:
                    self.skipped += 1
                    while (more := file.readline(LINE_BYTES_MAX)) and not more.endswith(b"\n"):
                        pass
                    continue
                file.seek(position)
                return
            try:
                yield _DECODER.decode(line)
            except msgspec.DecodeError:
                self.skipped += 1

    @property
    def _current(self) -> Path:
        return self.directory / NAME

    def _oldest(self) -> Path:
        numbered = numbered_files(self.directory)
        return numbered[0].path if numbered else self._current

    def _opened(self, path: Path) -> BinaryIO | None:
        with suppress(FileNotFoundError):
            return path.open("rb")
        return None

    def _following(self, file: BinaryIO) -> Path | None:
        """Return the file behind this one; None where this one is the newest."""
        ours = os.fstat(file.fileno())
        newer: Path | None = None
        for path in self._newest_first():
            with suppress(FileNotFoundError):
                there = path.stat()
                if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
                    return newer
                newer = path
        return newer  # ours is gone: the oldest that is left

    def _newest_first(self) -> Iterable[Path]:
        return [self._current, *(each.path for each in reversed(numbered_files(self.directory)))]
