"""The copy of the embedded store: a snapshot of the tree and every change since, in a file of our own format.

    metadata.copy
    ┌───────────┬────────┬─────────┬───┬────────┬──────────┬──────────┬───
    │ APLMETA1  │ Begin  │ Nodes … │   │ End    │ Changed  │ Changed  │ …      frames
    └───────────┴────────┴─────────┴───┴────────┴──────────┴──────────┴───
      8 bytes     snapshot: the rows as they were   zxid + 1   zxid + 2
                  after transaction `zxid`

    frame   0          4          8            8 + length
            ┌──────────┬──────────┬────────────┐
            │ length   │ CRC-32   │ MessagePack │      the CRC covers the body and begins with the CRC of the frame
            └──────────┴──────────┴────────────┘      before it, so frames of another life of the file do not fit

It shares no code with SQLite, so what damages the one format need not damage the other. A change is appended and forced
to the disk *before* SQLite commits it, inside SQLite's write lock: the copy is never behind what a caller was told, and
at most one change ahead, which nobody was told of. The next `open` makes that one again. The database keeps the CRC
of the copy's last frame, so a copy that parted from it is never taken for its own.

Where the copy cannot be written (its disk is full or fails), changes go on without it; a line says so, and it is
written whole again after RETRY_S. Until then the bell of metadata.sessions, which is forced to the disk meanwhile, says
that the copy is behind.

Cost: one write and one fdatasync for each change. The file is written anew once the changes take more than the
snapshot and COMPACT_BYTES, at the next `open`, or in a change where they take four times as much.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec

from appliance.control.store.node_table import Changed, Row, all_rows, counter, set_counter
from appliance.errors import StorageFault
from appliance.log.checkpoint import sync_directory
from appliance.log.faults import storage_fault, storage_faults

COPY_NAME: Final = "metadata.copy"
COMPACT_BYTES: Final = 4 << 20
RETRY_S: Final = 10.0

_MAGIC: Final = b"APLMETA1"
_HEAD: Final = Struct("<II")
_ROWS_PER_FRAME: Final = 500
_FRAME_BYTES_MAX: Final = 1 << 30

_logger = logging.getLogger(__name__)


class Begin(msgspec.Struct, frozen=True, tag=True):
    """A snapshot begins: counters, and how many nodes follow."""

    zxid: int
    session: int
    nodes: int


class Nodes(msgspec.Struct, frozen=True, tag=True):
    """Some of the snapshot's rows."""

    rows: list[Row]


class End(msgspec.Struct, frozen=True, tag=True):
    """The snapshot is whole."""

    nodes: int


class Made(msgspec.Struct, frozen=True, tag=True):
    """A change after the snapshot."""

    changed: Changed


Frame = Begin | Nodes | End | Made

_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(Frame)


class CopyEnd(msgspec.Struct, frozen=True):
    """How far a copy is whole: to transaction `zxid`, in the file's first `end_bytes`.

    `snapshot_bytes` of them are the snapshot; `is_clean` says that nothing follows.
    """

    path: Path
    zxid: int
    end_bytes: int
    snapshot_bytes: int
    crc: int
    is_clean: bool


def read_frames(path: Path) -> Iterator[tuple[Frame, int, int]]:
    """(frame, where it ends, its CRC) for every whole frame from the start; the first one that is not whole ends it.

    Raises:
        OSError: the file is not there, or cannot be read.
    """
    with path.open("rb") as file:
        size_bytes = os.fstat(file.fileno()).st_size
        if file.read(len(_MAGIC)) != _MAGIC:
            return
        end, crc = len(_MAGIC), zlib.crc32(_MAGIC)
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, expected = _HEAD.unpack(head)
            if not 0 < length <= min(size_bytes - end - _HEAD.size, _FRAME_BYTES_MAX):
                return
            body = file.read(length)
            crc = zlib.crc32(body, crc)
            if len(body) != length or crc != expected:
                return
            try:
                frame = _decoder.decode(body)
            except msgspec.DecodeError:
                return
            end += _HEAD.size + length
            yield frame, end, crc


def end_of(path: Path) -> CopyEnd | None:
    """How far the copy at `path` is whole; None where there is none, or its snapshot is not whole.

    Running time: linear in the file, which is a few hundred bytes for each node.

    Raises:
        OSError: it cannot be read.
    """
    found: CopyEnd | None = None
    zxid = snapshot_bytes = 0
    try:
        for frame, end, crc in read_frames(path):
            match frame:
                case Begin():
                    zxid = frame.zxid
                case End():
                    snapshot_bytes = end
                case Made() if frame.changed.zxid == zxid + 1:
                    zxid += 1
                case Made():
                    break
            if snapshot_bytes:
                found = CopyEnd(path, zxid, end, snapshot_bytes, crc, is_clean=False)
    except FileNotFoundError:
        return None
    if found is None:
        return None
    return msgspec.structs.replace(found, is_clean=found.end_bytes == path.stat().st_size)


class MetadataCopy:
    """The copy in `directory`, written by the sessions of a store: one at a time, under the store's write lock.

    Args:
        monotonic_s: a clock, for when to try again.
    """

    __slots__ = (
        "_before",
        "_crc",
        "_descriptor",
        "_end_bytes",
        "_monotonic_s",
        "_path",
        "_retry_at_s",
        "_snapshot_bytes",
        "_zxid",
    )

    def __init__(self, directory: Path, *, monotonic_s: Callable[[], float]) -> None:
        self._path = directory / COPY_NAME
        self._monotonic_s = monotonic_s
        self._descriptor = -1
        self._zxid = self._end_bytes = self._snapshot_bytes = self._crc = 0
        self._before: tuple[int, int] | None = None
        self._retry_at_s = 0.0

    @property
    def path(self) -> Path:
        return self._path

    @property
    def zxid(self) -> int:
        """The last transaction that it holds; 0 where it cannot be written."""
        return self._zxid if self._descriptor >= 0 else 0

    def take_up(self, database: sqlite3.Cursor, known: CopyEnd | None) -> None:
        """Goes on with the copy `known`, where it is the database's; writes it anew otherwise. In a transaction."""
        zxid = counter(database, "zxid")
        grown = known is not None and known.end_bytes - known.snapshot_bytes > max(
            COMPACT_BYTES, known.snapshot_bytes
        )
        if (
            known is None
            or grown
            or not known.is_clean
            or (known.path, known.zxid, known.crc) != (self._path, zxid, counter(database, "copy"))
        ):
            self._rewrite(database, zxid)
        else:
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                self._fail(error, zxid)
            else:
                self._zxid, self._crc = zxid, known.crc
                self._end_bytes, self._snapshot_bytes = known.end_bytes, known.snapshot_bytes
        self._before = None
        set_counter(database, "copy", self._crc if self._descriptor >= 0 else 0)

    def append(self, database: sqlite3.Cursor, changed: Changed) -> bool:
        """Takes a change that is about to be committed in this transaction; whether it is on the disk.

        False where the copy cannot be written: that is no fault of the change.
        """
        self._append(database, changed)
        is_there = self._descriptor >= 0
        set_counter(database, "copy", self._crc if is_there else 0)
        return is_there

    def _append(self, database: sqlite3.Cursor, changed: Changed) -> None:
        self._before = None
        if self._descriptor < 0:
            if self._monotonic_s() >= self._retry_at_s:
                self._rewrite(database, changed.zxid)
            return
        changes_bytes = self._end_bytes - self._snapshot_bytes
        if not self._is_ours(changed.zxid) or changes_bytes > 4 * max(COMPACT_BYTES, self._snapshot_bytes):
            self._rewrite(database, changed.zxid)
            return
        frame, crc = _framed(Made(changed), self._crc)
        try:
            _write(self._descriptor, frame, self._end_bytes)
            os.fdatasync(self._descriptor)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._descriptor, self._end_bytes)
            self._fail(error, changed.zxid)
            return
        self._before = (self._end_bytes, self._crc)
        self._end_bytes += len(frame)
        self._crc, self._zxid = crc, changed.zxid

    def take_back(self, zxid: int) -> None:
        """The change `zxid` was not committed after all."""
        if self._descriptor < 0 or self._zxid != zxid:
            return
        try:
            if self._before is None:
                os.unlink(self._path)  # it is part of a snapshot
                self.close()
                return
            end_bytes, crc = self._before
            os.ftruncate(self._descriptor, end_bytes)
            os.fdatasync(self._descriptor)
        except OSError as error:
            self._fail(error, zxid)
            return
        self._end_bytes, self._crc, self._zxid, self._before = end_bytes, crc, zxid - 1, None

    def close(self) -> None:
        """Lets go of the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _is_ours(self, zxid: int) -> bool:
        """Whether the file is as this session left it, and the change follows. Another session may write, too."""
        if self._zxid != zxid - 1:
            return False
        ours = os.fstat(self._descriptor)
        with suppress(OSError):
            there = os.stat(self._path)
            return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino) and (
                ours.st_size == self._end_bytes
            )
        return False

    def _rewrite(self, database: sqlite3.Cursor, zxid: int) -> None:
        """Replaces the file by a snapshot of the database, which is at transaction `zxid`."""
        self.close()
        temporary = self._path.with_name(f"{COPY_NAME}.new")
        descriptor = -1
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            end, crc = _write_snapshot(descriptor, database, zxid)
            os.fdatasync(descriptor)
            os.rename(temporary, self._path)
            sync_directory(self._path.parent)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            with suppress(OSError):
                temporary.unlink()
            self._fail(error, zxid)
            return
        self._descriptor, self._retry_at_s = descriptor, 0.0
        self._zxid, self._crc, self._before = zxid, crc, None
        self._end_bytes = self._snapshot_bytes = end

    def _fail(self, error: OSError, zxid: int) -> None:
        self.close()
        if not self._retry_at_s:
            _logger.error(
                "the copy of the metadata store, %s, cannot be written (%s). Changes from transaction %d on are only"
                " in the store until the copy can be written again",
                self._path,
                error.strerror,
                zxid,
            )
        self._retry_at_s = self._monotonic_s() + RETRY_S


def _write_snapshot(descriptor: int, database: sqlite3.Cursor, zxid: int) -> tuple[int, int]:
    """(bytes written, CRC of the last frame)."""
    # A cursor of its own: the caller's is in the middle of a change.
    cursor = database.connection.cursor()
    (nodes,) = cursor.execute("SELECT count(*) FROM node").fetchone()
    session = counter(cursor, "session")
    end, crc = len(_MAGIC), zlib.crc32(_MAGIC)
    _write(descriptor, _MAGIC, 0)

    def put(frame: Frame) -> None:
        nonlocal end, crc
        data, crc = _framed(frame, crc)
        _write(descriptor, data, end)
        end += len(data)

    put(Begin(zxid, session, nodes))
    rows = iter(all_rows(cursor))
    while some := list(islice(rows, _ROWS_PER_FRAME)):
        put(Nodes(some))
    put(End(nodes))
    return end, crc


def _framed(frame: Frame, crc: int) -> tuple[bytes, int]:
    body = _encode(frame)
    crc = zlib.crc32(body, crc)
    return _HEAD.pack(len(body), crc) + body, crc


def _write(descriptor: int, data: bytes, position: int) -> None:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, position)
        rest, position = rest[written:], position + written


def newest_copy(directories: Sequence[Path]) -> CopyEnd | None:
    """The copy that reaches furthest; None where none is whole.

    Raises:
        StorageFault: none is whole, and one cannot be read.
    """
    found: list[CopyEnd] = []
    unread: StorageFault | None = None
    for directory in dict.fromkeys(directories):
        path = directory / COPY_NAME
        try:
            end = end_of(path)
        except NotADirectoryError:
            continue
        except OSError as error:
            unread = storage_fault(error, path)
            continue
        if end is not None:
            found.append(end)
    if not found and unread is not None:
        raise unread
    return max(found, key=lambda end: end.zxid, default=None)


def forget_others(directories: Sequence[Path], kept: Path) -> None:
    """Removes copies in other directories than that of `kept`: they stay behind from now on."""
    for directory in dict.fromkeys(directories):
        path = directory / COPY_NAME
        if path != kept:
            with suppress(OSError):
                path.unlink()


def set_aside(path: Path) -> Path:
    """Renames a file to a name that says that it does not count any more; the new name.

    Raises:
        StorageFault: it failed.
    """
    with storage_faults(path):
        for number in range(1, ASIDE_MAX + 1):
            aside = path.with_name(f"{path.name}.aside-{number}")
            if number == ASIDE_MAX or not aside.exists():
                break
        path.rename(aside)
        return aside


ASIDE_MAX: Final = 9
"""Files of one name that are kept aside; the last one is replaced."""
