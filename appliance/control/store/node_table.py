"""The tree as tables of a SQLite database, and the operations that change it.

    node      one row per node, with a CRC-32 of its path, version and data
    counter   zxid: the last transaction; session: the last session id; nodes: how many rows `node` has;
              copy: the CRC that the copy ended with at this transaction (metadata_copy.py), 0 where it had it not

`Change` is one transaction. Its operations depend on the rows, the transaction id, the time and the session alone, so
the same operations on a copy of the rows give the same rows again: `replay` relies on it.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from appliance.control.store.errors import (
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
)
from appliance.control.store.metadata_store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    SetData,
    check_path,
    check_size,
    parent_of,
)

APPLICATION_ID: Final = 0x4C4F4741  # "LOGA"
FORMAT: Final = 1

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

NODE_COLUMNS: Final = (
    "path, data, checksum, created_zxid, modified_zxid, children_zxid, version, children_version,"
    " ephemeral_owner, created_ms, modified_ms, child_count"
)
_INSERT: Final = "INSERT INTO node VALUES (?, ?, ?, ?, 0, 0, 0, ?, ?, ?, ?, ?, ?)"
_INSERT_WHOLE: Final = (
    f"INSERT OR REPLACE INTO node ({NODE_COLUMNS}, parent) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_UPDATE: Final = (
    "UPDATE node SET data = ?, checksum = ?, version = ?, modified_zxid = ?, modified_ms = ? WHERE path = ?"
)
_CHILD_MOVED: Final = (
    "UPDATE node SET child_count = child_count + ?, children_version = children_version + 1,"
    " children_zxid = ? WHERE path = ?"
)

Row = tuple[str, bytes, int, int, int, int, int, int, int, int, int, int]
"""A node as `NODE_COLUMNS` select it."""

Step = Create | SetData | Delete


class Changed(msgspec.Struct, frozen=True):
    """A change that was made: what `replay` needs to make it again. `steps` hold no version and no check."""

    zxid: int
    session_id: int
    now_ms: int
    steps: Sequence[Step]


class Change:
    """The operations of one transaction, made as they come; `steps` are those that changed something."""

    __slots__ = ("_cursor", "_now_ms", "_session_id", "_zxid", "added", "steps")

    def __init__(self, cursor: sqlite3.Cursor, zxid: int, now_ms: int, *, session_id: int) -> None:
        self._cursor = cursor
        self._zxid = zxid
        self._now_ms = now_ms
        self._session_id = session_id
        self.added = 0
        self.steps: list[Step] = []

    def made(self) -> Changed:
        """What was done so far."""
        return Changed(self._zxid, self._session_id, self._now_ms, self.steps)

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
        sum_ = checksum(path, data, 0)
        self._cursor.execute(_INSERT, (path, parent, data, sum_, zxid, zxid, zxid, owner, now_ms, now_ms))
        self._child_moved(parent, 1)
        self.steps.append(operation)

    def set(self, operation: SetData) -> int:
        path, data = operation.path, operation.data
        check_size(path, data)
        version = self.check(Check(path, operation.version)) + 1
        self._cursor.execute(
            _UPDATE, (data, checksum(path, data, version), version, self._zxid, self._now_ms, path)
        )
        self.steps.append(SetData(path, data))
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
        self.steps.append(Delete(path))

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

    def _row(self, path: str) -> tuple[int, int, int] | None:
        row: tuple[int, int, int] | None = self._cursor.execute(
            "SELECT version, child_count, ephemeral_owner FROM node WHERE path = ?", (path,)
        ).fetchone()
        return row

    def _child_moved(self, parent: str, difference: int) -> None:
        self.added += difference
        self._cursor.execute(_CHILD_MOVED, (difference, self._zxid, parent))


def create_schema(database: sqlite3.Connection, now_ms: int) -> None:
    """Makes the tables, with `/` alone in them; does nothing where they are."""
    database.execute("BEGIN EXCLUSIVE")
    try:
        (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not tables:
            for statement in _SCHEMA:
                database.execute(statement)
            database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            database.execute(f"PRAGMA user_version = {FORMAT}")
            database.execute(_INSERT, ("/", "/", b"", checksum("/", b"", 0), 0, 0, 0, 0, now_ms, now_ms))
        database.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            database.execute("ROLLBACK")
        raise


def counter(database: sqlite3.Connection | sqlite3.Cursor, name: str) -> int:
    """The value of one of the counters; 0 where an older release did not count it."""
    row = database.execute("SELECT value FROM counter WHERE name = ?", (name,)).fetchone()
    return int(row[0]) if row is not None else 0


def set_counter(cursor: sqlite3.Cursor, name: str, value: int) -> None:
    """Sets one of the counters."""
    cursor.execute("INSERT OR REPLACE INTO counter VALUES (?, ?)", (name, value))


def put_rows(cursor: sqlite3.Cursor, rows: Iterable[Row]) -> None:
    """Puts whole rows into a table that is being filled."""
    cursor.executemany(_INSERT_WHOLE, ([*row, parent_of(row[0])] for row in rows))


def replay(cursor: sqlite3.Cursor, changed: Changed) -> None:
    """Makes a change again, counters included, on the rows as they were before it.

    Raises:
        StoreRefusal: these are not the rows as they were before it.
    """
    change = Change(cursor, changed.zxid, changed.now_ms, session_id=changed.session_id)
    for step in changed.steps:
        match step:
            case Create():
                change.create(step)
            case SetData():
                change.set(step)
            case Delete():
                change.delete(step)
    set_counter(cursor, "nodes", counter(cursor, "nodes") + change.added)
    set_counter(cursor, "zxid", changed.zxid)
    set_counter(cursor, "session", max(counter(cursor, "session"), changed.session_id))


def fault_of_rows(database: sqlite3.Connection) -> str | None:
    """What is wrong with the rows: checksums and their number. None: nothing."""
    nodes = 0
    for path, data, sum_, version in database.execute("SELECT path, data, checksum, version FROM node"):
        nodes += 1
        if sum_ != checksum(path, data, version):
            return f"node {path} fails its checksum"
    if nodes != (expected := counter(database, "nodes")):
        return f"{nodes} nodes where {expected} were counted"
    return None


def checksum(path: str, data: bytes, version: int) -> int:
    return zlib.crc32(data, zlib.crc32(b"%d" % version, zlib.crc32(path.encode())))


def all_rows(database: sqlite3.Connection | sqlite3.Cursor) -> Iterable[Any]:
    """Every row, as `NODE_COLUMNS` select it; few of them in memory at a time."""
    return database.execute(f"SELECT {NODE_COLUMNS} FROM node")
