"""The file that a command writes: it gets its name when it is complete, and nothing unfinished looks complete.

    name ── none yet, or a regular file ──→ name.4f0c1d2e.part, beside it ── complete ──→ renamed
         ── a device, a pipe, a socket ───→ written in place: a rename would put a file where it was
         ── "-" ──────────────────────────→ standard output

After a failure or Ctrl-C, also after SIGTERM and SIGHUP, the unfinished file is removed. After SIGKILL it is left.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import click

from appliance.cli.ended_by_signal import ends_by_signal
from appliance.errors import OperatorFault
from appliance.log.checkpoint import sync_directory

STANDARD_OUTPUT: Final = "-"
_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


class UnfitFile(OperatorFault):
    """A file that cannot be read, written, or become records."""


class OutputFile:
    """Where a command writes. After `abandon` it takes what is written, and drops it.

    A writer of Parquet writes the end of its file when it is closed, also after a failure: a file without this end is
    known to be broken, one with it is not.
    """

    closed = False

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._is_abandoned = False

    def write(self, data: Any, /) -> int:
        """Raises:
        UnfitFile: it cannot be written; BrokenPipeError where nobody reads standard output any more.
        """
        if self._is_abandoned:
            return memoryview(data).nbytes
        try:
            return self._file.write(data)
        except OSError as fault:
            raise self._broken(fault) from None

    def flush(self) -> None:
        """Raises: as `write`."""
        if self._is_abandoned:
            return
        try:
            self._file.flush()
        except OSError as fault:
            raise self._broken(fault) from None

    def abandon(self) -> None:
        """Drop what is written from now on, because something was not."""
        self._is_abandoned = True

    def keep(self, mode: int | None) -> None:
        """Have what was written on the disk, with the mode of the file that it replaces.

        Raises: as `write`.
        """
        self.flush()
        try:
            if mode is not None:
                os.fchmod(self._file.fileno(), mode)
            os.fsync(self._file.fileno())
        except OSError as fault:
            raise self._broken(fault) from None

    def _broken(self, fault: OSError) -> Exception:
        self.abandon()
        return fault if isinstance(fault, BrokenPipeError) else _unfit(self._name, fault)


@contextmanager
def opened(output: str, *, may_be_terminal: bool = False) -> Iterator[OutputFile]:
    """The file `output`; it gets its name when the block ends without an error.

    Raises:
        UnfitFile: it cannot be written.
    """
    if output == STANDARD_OUTPUT:
        if sys.stdout.isatty() and not may_be_terminal:
            raise click.UsageError("--output: name a file; standard output is a terminal")
        sink = OutputFile(sys.stdout.buffer, "standard output")
        try:
            yield sink
            sink.flush()
        except UnfitFile:
            # Python flushes standard output once more at exit: what it could not write must go somewhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise
        return
    path = Path(os.path.realpath(output))
    try:
        before = path.stat() if path.exists() else None
    except OSError as fault:
        raise _unfit(output, fault) from None
    if before is not None and stat.S_ISDIR(before.st_mode):
        raise UnfitFile(f"{output}: is a directory")
    if before is not None and not stat.S_ISREG(before.st_mode):
        with _closing(output, lambda: os.open(path, os.O_WRONLY | os.O_CLOEXEC)) as sink:
            yield sink
        return
    unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    with ends_by_signal():
        try:
            with _closing(output, lambda: os.open(unfinished, _FLAGS, 0o666)) as sink:
                yield sink
                sink.keep(None if before is None else stat.S_IMODE(before.st_mode))
            try:
                unfinished.replace(path)
                sync_directory(path.parent)
            except OSError as fault:
                raise _unfit(output, fault) from None
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def _closing(output: str, open_it: Callable[[], int]) -> Iterator[OutputFile]:
    try:
        file = os.fdopen(open_it(), "wb")
    except OSError as fault:
        raise _unfit(output, fault) from None
    sink = OutputFile(file, output)
    try:
        yield sink
        sink.flush()
    finally:
        # What could not be written is tried once more here: the error was told before.
        with suppress(OSError):
            file.close()


def _unfit(name: str, fault: OSError) -> UnfitFile:
    return UnfitFile(f"{name}: {fault.strerror or fault}")
