"""The embedded metadata store: the tree in one SQLite file of the data directory, and a copy of it.

    metadata.db            the tree (node_table.py)
    metadata.db-wal, -shm  SQLite's write-ahead log; part of the data while they exist
    metadata.copy          a second form of the tree, here or in a log directory of another disk (metadata_copy.py)
    metadata.reserve       room for a change on a full disk (reserve.py)
    metadata.sessions      who lives (session_file.py); worth nothing without processes

Every change is one SQLite transaction with synchronous=FULL: it is on the disk before the call returns, and a
process killed inside leaves the tree as it was. It is in the copy before it is in the database. Changes of several
processes exclude each other by SQLite's own lock.

Damage is found, never guessed away: the whole file is examined when it is opened (database_file.py), each read checks
the CRC-32 of its node, and the bell in metadata.sessions, written after each commit, knows a transaction id that the
database must have reached: a write-ahead log that was lost or cut shows itself. What is damaged is restored from the
copy by the next open.

Ephemeral nodes of dead processes are removed by whoever notices first: an `open`, a bell, or a create that
meets one.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from appliance.clock import Clock
from appliance.control.store.database_file import WAL_SUFFIX, damaged, open_database, told
from appliance.control.store.errors import NodeExists, NoNode, SessionExpired, StoreRefusal
from appliance.control.store.metadata_copy import CopyEnd, MetadataCopy, forget_others
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
    parent_of,
)
from appliance.control.store.node_table import NODE_COLUMNS, Change, checksum
from appliance.control.store.reserve import Reserve, is_full
from appliance.control.store.session_file import SessionFile
from appliance.errors import ApplianceError, DiskFull, StorageFault

DATABASE_NAME: Final = "metadata.db"
SESSIONS_NAME: Final = "metadata.sessions"

_SELECT: Final = f"SELECT {NODE_COLUMNS} FROM node WHERE path = ?"
_SELECT_MANY: Final = f"SELECT {NODE_COLUMNS} FROM node WHERE path IN (SELECT value FROM json_each(?))"

_MANY: Final = 500

Result = TypeVar("Result")


class EmbeddedStore:
    """A session with the store in `directory`, which is created where it is missing. See `MetadataStore`.

    `copy_directories` are where a copy may be, the one to write first; without any, `directory` itself.

    Raises (and changes nothing):
        CorruptFile: the database is damaged and no copy is whole (StoreDamaged), or it is another program's.
        StorageFault: it cannot be read or written.
    """

    __slots__ = (
        "_clock",
        "_copy",
        "_database",
        "_events",
        "_path",
        "_reserve",
        "_sessions",
        "_watched",
        "session_id",
    )

    def __init__(self, directory: Path, clock: Clock, copy_directories: Sequence[Path] = ()) -> None:
        self._clock = clock
        self._path = directory / DATABASE_NAME
        self._watched: dict[tuple[str, bool], int] = {}
        self._events: list[WatchEvent] = []
        self.session_id = 0
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageFault(f"metadata store {self._path}: {error.strerror}") from error
        copies = tuple(copy_directories) or (directory,)
        self._sessions = SessionFile(directory / SESSIONS_NAME)
        self._reserve = Reserve(directory, monotonic_s=time.monotonic)
        self._copy = MetadataCopy(copies[0], monotonic_s=time.monotonic)
        try:
            # A log directory may have gone from the settings; the data directory is always looked at.
            looked_at = (*copies, directory)
            self._with_room(lambda: self._open(looked_at))
            if self._copy.zxid:
                forget_others(looked_at, self._copy.path)
            self._with_room(self._bury_the_dead)
            self._reserve.fill()
        except ApplianceError:
            self._sessions.close()
            self._copy.close()
            with suppress(AttributeError):
                self._database.close()
            raise

    # Opening

    def _open(self, copies: Sequence[Path]) -> None:
        database, known = open_database(self._path, self._sessions, copies=copies, clock=self._clock)
        try:
            self._database = database
            self.session_id = self._begin_session(known)
        except BaseException:
            database.close()
            raise

    def _with_room(self, work: Callable[[], Result]) -> Result:
        """Does `work`; again with more room for as long as the disk is full and the reserve has some."""
        while True:
            try:
                return work()
            except StorageFault as fault:
                # SQLite says of some of its files only that they cannot be opened.
                if not (full := is_full(self._path)) and not isinstance(fault, DiskFull):
                    raise
                if self._reserve.give():
                    continue
                if full:
                    raise DiskFull(
                        f"{fault}; the disk is full and the reserve is used up; free some space"
                    ) from fault
                raise

    def _begin_session(self, known: CopyEnd | None) -> int:
        with self._transaction() as cursor:
            self._copy.take_up(cursor, known)
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
        path, data, stored = row[:3]
        if stored != checksum(path, data, row[6]):
            raise damaged(self._path, f"node {path} fails its checksum")
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
        def work() -> int:
            with self._change() as change:
                return change.set(SetData(path, data, version))

        return self._with_room(work)

    def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        self.multi([Delete(path, version)])

    def multi(self, operations: Sequence[Operation]) -> None:
        adds = any(isinstance(each, Create) and each.data and not each.ephemeral for each in operations)
        for attempt in range(2):
            try:
                if adds:
                    self._multi(operations)
                else:
                    self._with_room(lambda: self._multi(operations))  # it may be what makes room
                self._reserve.fill()
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
    def _change(self) -> Iterator[Change]:
        self._check_session()
        zxid, copied = 0, False
        try:
            with self._transaction() as cursor:
                cursor.execute("UPDATE counter SET value = value + 1 WHERE name = 'zxid' RETURNING value")
                (zxid,) = cursor.fetchone()
                change = Change(cursor, zxid, self._clock.now_ms(), session_id=self.session_id)
                yield change
                if change.added:
                    cursor.execute(
                        "UPDATE counter SET value = value + ? WHERE name = 'nodes'", (change.added,)
                    )
                copied = self._copy.append(cursor, change.made())
        except BaseException:
            if copied:
                self._copy.take_back(zxid)
            raise
        self._sessions.ring(zxid, durable=not copied)

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

    def _told(self) -> AbstractContextManager[None]:
        return told(self._path)

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
        """Nodes, watches, the last transaction in the copy, bytes of the database file and of its write-ahead log."""
        with self._told():
            (nodes,) = self._database.execute("SELECT count(*) FROM node").fetchone()
        sizes = {"database_bytes": self._path, "wal_bytes": self._path.with_name(DATABASE_NAME + WAL_SUFFIX)}
        return {
            "nodes": nodes,
            "watches": len(self._watched),
            "copied_zxid": self._copy.zxid,
            **{name: path.stat().st_size if path.exists() else 0 for name, path in sizes.items()},
        }

    def check(self) -> None:
        """Reads every node, compares checksums, parents and child counts. Raises CorruptFile."""
        with self._told():
            rows = self._database.execute(f"SELECT {NODE_COLUMNS} FROM node").fetchall()
        nodes = {node.path: node for node in map(self._node, rows)}
        counted = dict.fromkeys(nodes, 0)
        for path in nodes:
            if path != "/":
                if parent_of(path) not in nodes:
                    raise damaged(self._path, f"node {path} has no parent")
                counted[parent_of(path)] += 1
        for path, node in nodes.items():
            if counted[path] != node.stat.child_count:
                raise damaged(
                    self._path, f"node {path} has {counted[path]} children, not {node.stat.child_count}"
                )

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
            self._copy.close()
            self._database.close()
            self._sessions.close()


def _event(stat: Stat | None, children: bool, seen: int) -> EventKind | None:
    """What became of a watched node since it was seen with that zxid; 0: it did not exist then."""
    if stat is None:
        return EventKind.DELETED if seen else None
    if children:
        return EventKind.CHILDREN if stat.children_zxid != seen else None
    if not seen:
        return EventKind.CREATED
    return EventKind.CHANGED if stat.modified_zxid != seen else None
