"""The embedded metadata store: the tree in one SQLite file of the data directory.

    metadata.db            the tree (tables `node` and `counter`)
    metadata.db-wal, -shm  SQLite's write-ahead log; part of the data while they exist
    metadata.sessions      who lives (session_file.py); worth nothing without processes

Every change is one SQLite transaction with synchronous=FULL: it is on the disk before the call returns, and a
process killed inside leaves the tree as it was. Changes of several processes exclude each other by SQLite's
own lock.

Damage is found, never guessed away: SQLite checks its pages when the file is opened, every node carries a
CRC-32 of its path, version and data that each read checks, `counter` knows how many nodes there should be,
and the bell in
metadata.sessions, written after each commit, knows a transaction id that the database must have reached: a
write-ahead log that was lost or cut shows itself.

Ephemeral nodes of dead processes are removed by whoever notices first: an `open`, a bell, or a create that
meets one.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from appliance.clock import Clock
from appliance.control.store.errors import (
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    StoreRefusal,
    StoreUnavailable,
)
from appliance.control.store.metadata_store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EventKind,
    Node,
    Operation,
    SetData,
    Stat,
    WatchEvent,
    check_path,
    check_size,
    parent_of,
)
from appliance.control.store.session_file import SessionFile
from appliance.errors import ApplianceError, CorruptFile, DiskFull, StorageFault

DATABASE_NAME: Final = "metadata.db"
SESSIONS_NAME: Final = "metadata.sessions"

BUSY_TIMEOUT_S: Final = 5.0
WAL_BYTES_KEPT: Final = 8 << 20
CACHE_KIB: Final = 256
"""Pages of the tree that this process keeps. It is read whole at a start and then written; the system has the rest."""

_APPLICATION_ID: Final = 0x4C4F4741  # "LOGA"
_FORMAT: Final = 1

_SCHEMA: Final = (
    """CREATE TABLE node (
        path TEXT PRIMARY KEY,
        parent TEXT NOT NULL,
        data BLOB NOT NULL,
        checksum INTEGER NOT NULL,
        version INTEGER NOT NULL,
        children_version INTEGER NOT NULL,
        child_count INTEGER NOT NULL,
        created_zxid INTEGER NOT NULL,
        modified_zxid INTEGER NOT NULL,
        children_zxid INTEGER NOT NULL,
        ephemeral_owner INTEGER NOT NULL,
        created_ms INTEGER NOT NULL,
        modified_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE INDEX child ON node (parent, path) WHERE path <> '/'",
    "CREATE INDEX ephemeral ON node (ephemeral_owner) WHERE ephemeral_owner <> 0",
    "CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO counter VALUES ('zxid', 0), ('session', 0), ('nodes', 1)",
)

_NODE_COLUMNS: Final = (
    "path, data, checksum, created_zxid, modified_zxid, children_zxid, version, children_version,"
    " ephemeral_owner, created_ms, modified_ms, child_count"
)
_SELECT: Final = f"SELECT {_NODE_COLUMNS} FROM node WHERE path = ?"
_SELECT_MANY: Final = f"SELECT {_NODE_COLUMNS} FROM node WHERE path IN (SELECT value FROM json_each(?))"
_INSERT: Final = "INSERT INTO node VALUES (?, ?, ?, ?, 0, 0, 0, ?, ?, ?, ?, ?, ?)"
_UPDATE: Final = (
    "UPDATE node SET data = ?, checksum = ?, version = ?, modified_zxid = ?, modified_ms = ? WHERE path = ?"
)
_CHILD_MOVED: Final = (
    "UPDATE node SET child_count = child_count + ?, children_version = children_version + 1,"
    " children_zxid = ? WHERE path = ?"
)

_MANY: Final = 500


class EmbeddedStore:
    """A session with the store in `directory`, which is created where it is missing. See `MetadataStore`.

    Raises (and changes nothing):
        CorruptFile: the database is damaged, or is no database of ours.
        StorageFault: it cannot be read or written.
    """

    __slots__ = ("_clock", "_database", "_events", "_path", "_sessions", "_watched", "session_id")

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._clock = clock
        self._path = directory / DATABASE_NAME
        self._watched: dict[tuple[str, bool], int] = {}
        self._events: list[WatchEvent] = []
        self.session_id = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFault(f"metadata store {self._path}: {error.strerror}") from error
        self._sessions = SessionFile(directory / SESSIONS_NAME)
        try:
            self._database = self._open()
            self.session_id = self._begin_session()
            self._bury_the_dead()
        except ApplianceError:
            self._sessions.close()
            with suppress(AttributeError):
                self._database.close()
            raise

    # Opening

    def _open(self) -> sqlite3.Connection:
        if not self._path.exists():
            self._sessions.ring(0)  # the operator moved it away: nothing is expected of a new one
        with self._told():
            database = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        with self._told():
            try:
                (application_id,) = database.execute("PRAGMA application_id").fetchone()
                (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                if application_id != _APPLICATION_ID and (tables or application_id):
                    raise CorruptFile(f"{self._path} is a database of somebody else; it was not touched")
                if not tables and self._sessions.bell():
                    raise self._damaged("it is empty")
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = FULL")
                database.execute(f"PRAGMA journal_size_limit = {WAL_BYTES_KEPT}")
                database.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                if not tables:
                    self._create_schema(database)
                self._examine(database)
            except BaseException:
                database.close()
                raise
        return database

    def _create_schema(self, database: sqlite3.Connection) -> None:
        database.execute("BEGIN EXCLUSIVE")
        try:
            (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            if not tables:
                for statement in _SCHEMA:
                    database.execute(statement)
                database.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {_FORMAT}")
                now_ms = self._clock.now_ms()
                database.execute(_INSERT, ("/", "/", b"", _checksum("/", b"", 0), 0, 0, 0, 0, now_ms, now_ms))
            database.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                database.execute("ROLLBACK")
            raise

    def _examine(self, database: sqlite3.Connection) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != _FORMAT:
            raise CorruptFile(f"{self._path} has format {version}; this program knows format {_FORMAT}")
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise self._damaged(verdict)
        (nodes,) = database.execute("SELECT count(*) FROM node").fetchone()
        (expected,) = database.execute("SELECT value FROM counter WHERE name = 'nodes'").fetchone()
        if nodes != expected:
            raise self._damaged(f"{nodes} nodes where {expected} were counted")
        (zxid,) = database.execute("SELECT value FROM counter WHERE name = 'zxid'").fetchone()
        if zxid < (bell := self._sessions.bell()):
            raise self._damaged(f"it ends at transaction {zxid}, but {bell} was committed")

    def _damaged(self, why: str) -> CorruptFile:
        return CorruptFile(
            f"metadata store {self._path} is damaged ({why}). Nothing was changed. Restore it from a copy "
            f"and remove {SESSIONS_NAME}, or move it away to begin with an empty one: the logs stay on the "
            "disk, their topics are forgotten"
        )

    def _begin_session(self) -> int:
        with self._transaction() as cursor:
            cursor.execute("UPDATE counter SET value = value + 1 WHERE name = 'session' RETURNING value")
            (session_id,) = cursor.fetchone()
            self._sessions.begin(session_id)
        return int(session_id)

    # Reading

    def get(self, path: str, *, watch: bool = False) -> Node:
        node = self._read(path)
        if node is None:
            raise NoNode(path)
        if watch:
            self._watch(path, False, node.stat.modified_zxid)
        return node

    def get_many(self, paths: Iterable[str]) -> dict[str, Node]:
        self._check_session()
        found: dict[str, Node] = {}
        wanted = list(paths)
        with self._told():
            for start in range(0, len(wanted), _MANY):
                rows = self._database.execute(_SELECT_MANY, (json.dumps(wanted[start : start + _MANY]),))
                for row in rows:
                    found[row[0]] = self._node(row)
        return found

    def exists(self, path: str, *, watch: bool = False) -> Stat | None:
        check_path(path)
        node = self._read(path)
        if watch:
            self._watch(path, False, node.stat.modified_zxid if node else 0)
        return node.stat if node else None

    def children(self, path: str, *, watch: bool = False) -> list[str]:
        node = self._read(path)
        if node is None:
            raise NoNode(path)
        with self._told():
            rows = self._database.execute(
                "SELECT path FROM node WHERE parent = ? AND path <> '/' ORDER BY path", (path,)
            ).fetchall()
        if watch:
            self._watch(path, True, node.stat.children_zxid)
        start = len(path) + (path != "/")
        return [row[0][start:] for row in rows]

    def _read(self, path: str) -> Node | None:
        self._check_session()
        with self._told():
            row = self._database.execute(_SELECT, (path,)).fetchone()
        return None if row is None else self._node(row)

    def _node(self, row: tuple[Any, ...]) -> Node:
        path, data, checksum = row[:3]
        if checksum != _checksum(path, data, row[6]):
            raise self._damaged(f"node {path} fails its checksum")
        stat = Stat(
            created_zxid=row[3],
            modified_zxid=row[4],
            children_zxid=row[5],
            version=row[6],
            children_version=row[7],
            ephemeral_owner=row[8],
            created_ms=row[9],
            modified_ms=row[10],
            data_length_bytes=len(data),
            child_count=row[11],
        )
        return Node(path, data, stat)

    # Writing

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        self.multi([Create(path, data, ephemeral)])

    def ensure_path(self, path: str) -> None:
        missing: list[str] = []
        while path != "/" and self.exists(path) is None:
            missing.append(path)
            path = parent_of(path)
        for each in reversed(missing):
            with suppress(NodeExists):
                self.create(each)

    def set(self, path: str, data: bytes, *, version: int = ANY_VERSION) -> int:
        with self._change() as change:
            return change.set(SetData(path, data, version))

    def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        self.multi([Delete(path, version)])

    def multi(self, operations: Sequence[Operation]) -> None:
        for attempt in range(2):
            try:
                self._multi(operations)
                return
            except NodeExists as refusal:
                # It may be the node of a process that died a moment ago.
                if attempt or not self._bury_the_dead(refusal.path):
                    raise

    def _multi(self, operations: Sequence[Operation]) -> None:
        with self._change() as change:
            for index, operation in enumerate(operations):
                try:
                    match operation:
                        case Create():
                            change.create(operation)
                        case SetData():
                            change.set(operation)
                        case Delete():
                            change.delete(operation)
                        case Check():
                            change.check(operation)
                except StoreRefusal as refusal:
                    refusal.index = index
                    raise

    @contextmanager
    def _change(self) -> Iterator[_Change]:
        self._check_session()
        with self._transaction() as cursor:
            cursor.execute("UPDATE counter SET value = value + 1 WHERE name = 'zxid' RETURNING value")
            (zxid,) = cursor.fetchone()
            change = _Change(cursor, zxid, self._clock.now_ms(), session_id=self.session_id)
            yield change
            if change.added:
                cursor.execute("UPDATE counter SET value = value + ? WHERE name = 'nodes'", (change.added,))
        self._sessions.ring(zxid)

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        with self._told():
            cursor = self._database.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            try:
                yield cursor
                cursor.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    with suppress(sqlite3.Error):
                        cursor.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        """SQLite's errors in our words."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            text = f"metadata store {self._path}: {error}"
            if code == sqlite3.SQLITE_FULL:
                raise DiskFull(text) from error
            if code in {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}:
                raise self._damaged(str(error)) from error
            if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
                raise StoreUnavailable(text) from error
            raise StorageFault(text) from error

    # Sessions and watches

    def _check_session(self) -> None:
        if not self.session_id:
            raise SessionExpired(f"the session with {self._path} is closed")

    def _bury_the_dead(self, path: str | None = None) -> bool:
        """Removes ephemeral nodes whose sessions ended (only `path`, where given); whether there were any."""
        with self._told():
            rows = self._database.execute(
                "SELECT path, ephemeral_owner FROM node WHERE ephemeral_owner <> 0 AND ephemeral_owner <> ?",
                (self.session_id,),
            ).fetchall()
        lives = {owner: self._sessions.lives(owner) for owner in {owner for _, owner in rows}}
        if self._watched and any(lives.values()):
            self._sessions.look_again()
        dead = [(each, owner) for each, owner in rows if not lives[owner] and path in {None, each}]
        if not dead:
            return False
        with self._change() as change:
            for each, owner in dead:
                change.bury(each, owner)
        return True

    def _watch(self, path: str, children: bool, zxid: int) -> None:
        first = not self._watched
        self._watched.setdefault((path, children), zxid)
        if first:
            self._sessions.listen()
            # What another process did between our read and the inotify watch rang no bell for us, nor did its death.
            self._bury_the_dead()
            self._look_at_watches()
            if self._events:
                self._sessions.ring(self._sessions.bell())

    def fileno(self) -> int:
        return self._sessions.fileno()

    def events(self) -> list[WatchEvent]:
        self._check_session()
        # Again after a burial: it rings for us too, and another session may have ended meanwhile.
        while self._sessions.drain() and self._watched:
            self._bury_the_dead()
        self._look_at_watches()
        events, self._events = self._events, []
        return events

    def _look_at_watches(self) -> None:
        for (path, children), seen in list(self._watched.items()):
            node = self._read(path)
            kind = _event(node.stat if node else None, children, seen)
            if kind is not None:
                del self._watched[path, children]
                self._events.append(WatchEvent(kind, path))

    def statistics(self) -> Mapping[str, int]:
        """Nodes, watches, bytes of the database file and of its write-ahead log."""
        with self._told():
            (nodes,) = self._database.execute("SELECT count(*) FROM node").fetchone()
        sizes = {"database_bytes": self._path, "wal_bytes": self._path.with_name(DATABASE_NAME + "-wal")}
        return {
            "nodes": nodes,
            "watches": len(self._watched),
            **{name: path.stat().st_size if path.exists() else 0 for name, path in sizes.items()},
        }

    def check(self) -> None:
        """Reads every node, compares checksums, parents and child counts. Raises CorruptFile."""
        with self._told():
            rows = self._database.execute(f"SELECT {_NODE_COLUMNS} FROM node").fetchall()
        nodes = {node.path: node for node in map(self._node, rows)}
        counted = dict.fromkeys(nodes, 0)
        for path in nodes:
            if path != "/":
                if parent_of(path) not in nodes:
                    raise self._damaged(f"node {path} has no parent")
                counted[parent_of(path)] += 1
        for path, node in nodes.items():
            if counted[path] != node.stat.child_count:
                raise self._damaged(f"node {path} has {counted[path]} children, not {node.stat.child_count}")

    def close(self) -> None:
        if not self.session_id:
            return
        try:
            with self._told():
                rows = self._database.execute(
                    "SELECT path FROM node WHERE ephemeral_owner = ?", (self.session_id,)
                ).fetchall()
            if rows:
                with self._change() as change:
                    for (path,) in rows:
                        change.bury(path, self.session_id)
        finally:
            self.session_id = 0
            self._watched.clear()
            self._database.close()
            self._sessions.close()


class _Change:
    """The operations of one transaction."""

    __slots__ = ("_cursor", "_now_ms", "_session_id", "_zxid", "added")

    def __init__(self, cursor: sqlite3.Cursor, zxid: int, now_ms: int, *, session_id: int) -> None:
        self._cursor = cursor
        self._zxid = zxid
        self._now_ms = now_ms
        self._session_id = session_id
        self.added = 0

    def _row(self, path: str) -> tuple[int, int, int] | None:
        row: tuple[int, int, int] | None = self._cursor.execute(
            "SELECT version, child_count, ephemeral_owner FROM node WHERE path = ?", (path,)
        ).fetchone()
        return row

    def create(self, operation: Create) -> None:
        path, data, owner = operation.path, operation.data, self._session_id if operation.ephemeral else 0
        check_path(path)
        check_size(path, data)
        if path == "/":
            raise NodeExists(path)
        parent = parent_of(path)
        above = self._row(parent)
        if above is None:
            raise NoNode(parent)
        if above[2]:
            raise NoChildrenForEphemerals(parent)
        if self._row(path) is not None:
            raise NodeExists(path)
        zxid, now_ms = self._zxid, self._now_ms
        checksum = _checksum(path, data, 0)
        self._cursor.execute(_INSERT, (path, parent, data, checksum, zxid, zxid, zxid, owner, now_ms, now_ms))
        self._child_moved(parent, 1)

    def set(self, operation: SetData) -> int:
        path, data = operation.path, operation.data
        check_size(path, data)
        version = self.check(Check(path, operation.version)) + 1
        self._cursor.execute(
            _UPDATE, (data, _checksum(path, data, version), version, self._zxid, self._now_ms, path)
        )
        return version

    def delete(self, operation: Delete) -> None:
        path = operation.path
        if path == "/":
            raise NotEmpty(path)
        self.check(Check(path, operation.version))
        if (row := self._row(path)) is not None and row[1]:
            raise NotEmpty(path)
        self._cursor.execute("DELETE FROM node WHERE path = ?", (path,))
        self._child_moved(parent_of(path), -1)

    def check(self, operation: Check) -> int:
        row = self._row(operation.path)
        if row is None:
            raise NoNode(operation.path)
        if operation.version not in {ANY_VERSION, row[0]}:
            raise BadVersion(operation.path)
        return row[0]

    def bury(self, path: str, owner: int) -> None:
        """Deletes an ephemeral node if it is still that owner's."""
        row = self._row(path)
        if row is not None and row[2] == owner:
            self.delete(Delete(path))

    def _child_moved(self, parent: str, difference: int) -> None:
        self.added += difference
        self._cursor.execute(_CHILD_MOVED, (difference, self._zxid, parent))


def _event(stat: Stat | None, children: bool, seen: int) -> EventKind | None:
    """What became of a watched node since it was seen with that zxid; 0: it did not exist then."""
    if stat is None:
        return EventKind.DELETED if seen else None
    if children:
        return EventKind.CHILDREN if stat.children_zxid != seen else None
    if not seen:
        return EventKind.CREATED
    return EventKind.CHANGED if stat.modified_zxid != seen else None


def _checksum(path: str, data: bytes, version: int) -> int:
    return zlib.crc32(data, zlib.crc32(b"%d" % version, zlib.crc32(path.encode())))
