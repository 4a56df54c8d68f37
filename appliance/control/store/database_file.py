"""Opening `metadata.db`: believed after an examination, rolled forward or restored from a copy, or refused.

    examine     the pages (SQLite's quick_check), the checksum of each node, their number, the last transaction
    whole       a copy that is ahead (metadata_copy.py) gives the changes that are missing
    damaged     PATIENCE_S passes and every byte is read, because an I/O error that passes looks like damage to SQLite;
                then the newest whole copy becomes the store, and the damaged files are set aside under other names
    no copy     StoreDamaged: nothing was changed, and nobody is advised to give anything up

The bell of metadata.sessions names a transaction that was acknowledged. What ends before it is no whole store, and no
copy that is restored by itself. Without a bell (the operator removed metadata.sessions) the database file counts as it
is: a backup was put there, and a copy that is ahead of it is set aside.

Running time of an open: linear in the number of nodes; a second for about a million of them.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from appliance.clock import Clock
from appliance.control.store.errors import StoreDamaged, StoreRefusal, StoreUnavailable
from appliance.control.store.lock_holders import holders_text
from appliance.control.store.metadata_copy import (
    Begin,
    CopyEnd,
    End,
    Made,
    Nodes,
    newest_copy,
    read_frames,
    set_aside,
)
from appliance.control.store.node_table import (
    APPLICATION_ID,
    FORMAT,
    counter,
    create_schema,
    fault_of_rows,
    put_rows,
    replay,
    set_counter,
)
from appliance.control.store.session_file import SessionFile
from appliance.errors import CorruptFile, DiskFull, StorageFault
from appliance.log.checkpoint import sync_directory
from appliance.log.faults import storage_faults

BUSY_TIMEOUT_S: Final = 5.0
WAL_BYTES_KEPT: Final = 8 << 20
CACHE_KIB: Final = 256
"""Pages of the tree that this process keeps. It is read whole at a start and then written; the system has the rest."""

PATIENCE_S: Final = (0.1, 0.4, 1.0)
"""Pauses between the examinations that must agree before a store is called damaged."""

WAL_SUFFIX: Final = "-wal"
SHM_SUFFIX: Final = "-shm"
_READ_BYTES: Final = 1 << 20

_logger = logging.getLogger(__name__)


def open_database(
    path: Path, sessions: SessionFile, *, copies: Sequence[Path], clock: Clock
) -> tuple[sqlite3.Connection, CopyEnd | None]:
    """The database at `path`, whole, and the copy that was found in one of the directories `copies`.

    Raises:
        StoreDamaged: it is damaged, or gone, and no copy can take its place. Nothing was changed.
        CorruptFile: it is a database of another program.
        StorageFault: it, or the copy that is wanted, cannot be read or written now.
    """
    unread: StorageFault | None = None
    copy = None
    try:
        copy = newest_copy(copies)
    except StorageFault as fault:
        unread = fault
    if not path.exists() and (copy is not None or unread is not None or sessions.bell()):
        _restore(path, copy, sessions, why="it is missing", unread=unread, clock=clock)
    try:
        database = _examined_patiently(path, sessions, clock)
    except StoreDamaged as damage:
        _restore(path, copy, sessions, why=damage.why, unread=unread, clock=clock)
        database = _examined(path, sessions, clock)
    try:
        copy = _brought_together(database, path, copy, sessions)
    except _Parted as parted:
        database.close()
        _restore(path, copy, sessions, why=str(parted), unread=unread, clock=clock)
        database = _examined(path, sessions, clock)
    except BaseException:
        database.close()
        raise
    return database, copy


class _Parted(Exception):
    """The database lacks changes that were made, and cannot be brought to have them."""


@contextmanager
def told(path: Path) -> Iterator[None]:
    """SQLite's errors as ours.

    Raises:
        StoreDamaged: SQLite calls the file damaged.
        StoreUnavailable: another process holds it locked; the text names the process where the system does.
        StorageFault, DiskFull: a call of the system failed.
    """
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        text = f"metadata store {path}: {error}"
        if code == sqlite3.SQLITE_FULL:
            raise DiskFull(text) from error
        if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
            raise damaged(path, str(error)) from error
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}:
            names = [path, path.with_name(path.name + SHM_SUFFIX)]
            raise StoreUnavailable(f"{text}{holders_text(names)}") from error
        raise StorageFault(text) from error


def damaged(path: Path, why: str) -> StoreDamaged:
    """What a call on an open store says; the next open finds out whether it is true."""
    return StoreDamaged(f"metadata store {path} is damaged ({why})", why)


def _refused(path: Path, why: str, remedy: str) -> StoreDamaged:
    return StoreDamaged(
        f"metadata store {path} is damaged ({why}), and {remedy}. Nothing was changed; the records in the log"
        " directories are not affected. Keep all files; docs/metadata.md says how to restore it, or to rebuild it"
        " from the log directories",
        why,
    )


# Examining


def _examined_patiently(path: Path, sessions: SessionFile, clock: Clock) -> sqlite3.Connection:
    for pause_s in (*PATIENCE_S, None):
        try:
            database = _examined(path, sessions, clock)
        except StoreDamaged as damage:
            if pause_s is None:
                raise
            why = damage.why
        else:
            bell = sessions.bell()  # first: another session may commit meanwhile
            ends_at = _ends_at(database, path)
            if pause_s is None or ends_at >= bell:
                return database
            # A write-ahead log that cannot be read looks like one that is not there.
            database.close()
            why = f"it ends at transaction {ends_at}, but {bell} was committed"
        _read_through(path)
        _logger.warning("metadata store %s looks damaged (%s): reading it again", path, why)
        time.sleep(pause_s)
    raise AssertionError  # the last pause is None


def _ends_at(database: sqlite3.Connection, path: Path) -> int:
    try:
        with told(path):
            return counter(database, "zxid")
    except BaseException:
        database.close()
        raise


def _read_through(path: Path) -> None:
    """Reads every byte from the disk. Raises StorageFault where that is an error: then nothing is known of damage."""
    for each in (path, path.with_name(path.name + WAL_SUFFIX)):
        with storage_faults(each), suppress(FileNotFoundError):
            descriptor = os.open(each, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                while os.read(descriptor, _READ_BYTES):
                    pass
            finally:
                os.close(descriptor)


def _examined(path: Path, sessions: SessionFile, clock: Clock) -> sqlite3.Connection:
    with told(path):
        database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    try:
        with told(path):
            (application_id,) = database.execute("PRAGMA application_id").fetchone()
            (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if application_id != APPLICATION_ID and (tables or application_id):
                raise CorruptFile(f"{path} is a database of another program; it was not touched")
            if not tables and sessions.bell():
                raise damaged(path, "it is empty")
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")
            database.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
            database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            if not tables:
                create_schema(database, clock.now_ms())
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != FORMAT:
                raise CorruptFile(f"{path} has format {version}; this program knows format {FORMAT}")
            (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise damaged(path, verdict)
            if (fault := fault_of_rows(database)) is not None:
                raise damaged(path, fault)
    except BaseException:
        database.close()
        raise
    return database


# Copies


def _brought_together(
    database: sqlite3.Connection, path: Path, copy: CopyEnd | None, sessions: SessionFile
) -> CopyEnd | None:
    """The database and its copy as one: what the database lacks is made again. The copy, where it is of use still.

    Raises:
        _Parted: the database lacks more than can be made again.
    """
    with told(path):
        bell = sessions.bell()
        zxid = counter(database, "zxid")
        if copy is not None and copy.zxid > zxid:
            if not bell and copy.zxid > zxid + 1:
                aside = set_aside(copy.path)
                _logger.error(
                    "metadata store %s ends at transaction %d, and its copy at %d. There is no %s, so the store is used"
                    " as it is, and the copy is kept as %s",
                    path,
                    zxid,
                    copy.zxid,
                    "metadata.sessions",
                    aside,
                )
                return None
            _roll_forward(database, copy)
            if copy.zxid > zxid + 1:
                _logger.error(
                    "metadata store %s lacked transactions %d to %d, and got them from its copy %s",
                    path,
                    zxid + 1,
                    copy.zxid,
                    copy.path,
                )
        if (ends_at := counter(database, "zxid")) < bell:
            raise _Parted(f"it ends at transaction {ends_at}, but {bell} was committed")
    return copy


def _roll_forward(database: sqlite3.Connection, copy: CopyEnd) -> None:
    cursor = database.cursor()
    cursor.execute("BEGIN IMMEDIATE")
    try:
        # Only here does no other session write: it may have committed, or taken back, what the copy was ahead.
        zxid, end = counter(cursor, "zxid"), 0
        known, at = counter(cursor, "copy"), -1
        for frame, end, crc in read_frames(copy.path):
            if isinstance(frame, Begin):
                at = frame.zxid
            elif isinstance(frame, Made):
                at = frame.changed.zxid
            if at > zxid:
                if not isinstance(frame, Made):
                    raise _Parted(f"it ends at transaction {zxid}, its copy begins at {at}")
                replay(cursor, frame.changed)
            elif at == zxid and not isinstance(frame, Begin | Nodes) and crc != known:
                raise _Parted(f"its content does not match its copy at transaction {zxid}")
            if end == copy.end_bytes:
                break
        if end != copy.end_bytes:
            raise StorageFault(f"{copy.path} was changed by another process")
        if copy.zxid > zxid:
            set_counter(cursor, "copy", copy.crc)
        cursor.execute("COMMIT")
    except BaseException as error:
        with suppress(sqlite3.Error):
            cursor.execute("ROLLBACK")
        if isinstance(error, StoreRefusal):
            raise _Parted(f"its content does not match its copy: {error}") from error
        if isinstance(error, OSError):
            raise StorageFault(f"{copy.path}: {error.strerror}") from error
        raise


def _restore(
    path: Path,
    copy: CopyEnd | None,
    sessions: SessionFile,
    *,
    why: str,
    unread: StorageFault | None,
    clock: Clock,
) -> None:
    """Puts what `copy` holds in the place of the database.

    Raises:
        StoreDamaged: there is no copy that may take its place.
        StorageFault: it failed, and will be tried again; StoreUnavailable: a process has the damaged store open.
    """
    if copy is None:
        if unread is not None:
            raise StorageFault(
                f"metadata store {path} is damaged ({why}), and its copy cannot be read: {unread}"
            )
        raise _refused(path, why, "there is no whole copy of it")
    if copy.zxid < (bell := sessions.bell()):
        raise _refused(
            path, why, f"its copy {copy.path} ends at transaction {copy.zxid}, but {bell} was committed"
        )
    if sessions.others_live():
        raise StoreUnavailable(f"metadata store {path} is damaged ({why}), and another process has it open")
    temporary = path.with_name(f"{path.name}.restored")
    with storage_faults(path):
        for suffix in ("", "-journal", WAL_SUFFIX, SHM_SUFFIX):
            temporary.with_name(temporary.name + suffix).unlink(missing_ok=True)
        _build(temporary, copy, clock)
        asides = []
        # The write-ahead log first: it must never be read as the new file's.
        for suffix in (WAL_SUFFIX, ""):
            each = path.with_name(path.name + suffix)
            if each.exists():
                asides.append(set_aside(each).name)
        path.with_name(path.name + SHM_SUFFIX).unlink(missing_ok=True)
        sync_directory(path.parent)
        temporary.rename(path)
        sync_directory(path.parent)
    _logger.error(
        "metadata store %s is damaged (%s): RESTORED from its copy %s up to transaction %d, nothing acknowledged is"
        " lost%s; find out what damaged it",
        path,
        why,
        copy.path,
        copy.zxid,
        f"; the damaged file is kept as {' and '.join(asides)}" if asides else "",
    )


def _build(path: Path, copy: CopyEnd, clock: Clock) -> None:
    """Makes a database of a copy, forced to the disk."""
    with told(path):
        database = sqlite3.connect(path, isolation_level=None)
        try:
            database.execute("PRAGMA synchronous = FULL")
            create_schema(database, clock.now_ms())
            cursor = database.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            for frame, end, _ in read_frames(copy.path):
                match frame:
                    case Begin():
                        for name, value in (
                            ("zxid", frame.zxid),
                            ("session", frame.session),
                            ("nodes", frame.nodes),
                        ):
                            set_counter(cursor, name, value)
                    case Nodes():
                        put_rows(cursor, frame.rows)
                    case Made():
                        replay(cursor, frame.changed)
                    case End():
                        pass
                if end == copy.end_bytes:
                    break
            set_counter(cursor, "copy", copy.crc)
            cursor.execute("COMMIT")
            if (fault := fault_of_rows(database)) is not None or counter(database, "zxid") != copy.zxid:
                raise StoreDamaged(f"the copy {copy.path} gives no whole store ({fault})", str(fault))
        except StoreRefusal as refusal:
            raise StoreDamaged(
                f"the copy {copy.path} gives no whole store ({refusal})", str(refusal)
            ) from refusal
        finally:
            database.close()
