"""The metadata store in a ZooKeeper ensemble.

The tree lies under the chroot of `zookeeper.connect`, where any ZooKeeper client reads it. Beside Kafka's nodes
there is one per session that writes:

    CHROOT/writers/N      ephemeral; its version counts the changes of session N

Every change is one ZooKeeper `multi` that ends with SetData(/writers/N, version=count). So a change whose answer
was lost (ConnectionLoss, no answer in time) is never guessed at:

    SetData(/writers/N, "void", version=count) by itself
        done           the lost change did not take place, and now it never will: its own count is stale
        BadVersion     it did take place, if the node says "done"
        no answer      still not known; asked again before the next change, and when the connection is back

"It did" is an answer for whoever still waits for it. Who was told StoreUnavailable already has gone on as if
nothing had happened: then the session is over, and its owner begins anew by reading.

Watches are ZooKeeper's. A lost connection fires all of them: what they watched may have changed meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    KazooException,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    RolledBackError,
    RuntimeInconsistency,
)
from kazoo.protocol.states import EventType, WatchedEvent, ZnodeStat

from appliance.clock import Clock
from appliance.config.zookeeper_address import split_connect
from appliance.control.store.errors import (
    BadVersion,
    ChangeTooLarge,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    StoreRefusal,
    StoreUnavailable,
)
from appliance.control.store.left_sessions import LeftSessions
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
from appliance.control.store.znode_tree import WRITERS
from appliance.control.store.zookeeper_session import ZooKeeperSession
from appliance.errors import ApplianceError, StorageFault

CHANGE_BYTES_MAX: Final = 1_000_000
"""ZooKeeper closes the connection of who sends more at once: its jute.maxbuffer is 1,048,575 bytes."""

_OPERATION_BYTES: Final = 64  # of an operation, beside its path and data
_READS_AT_ONCE: Final = 500
RESOLVE_TIMEOUT_S: Final = 2.0
_DONE: Final = b"done"
_VOID: Final = b"void"
_UNTRIED: Final = (RolledBackError, RuntimeInconsistency)

_REFUSALS: Final[Mapping[type[KazooException], type[StoreRefusal]]] = {
    NoNodeError: NoNode,
    NodeExistsError: NodeExists,
    BadVersionError: BadVersion,
    NotEmptyError: NotEmpty,
    NoChildrenForEphemeralsError: NoChildrenForEphemerals,
}
_KINDS: Final = {
    EventType.CREATED: EventKind.CREATED,
    EventType.CHANGED: EventKind.CHANGED,
    EventType.DELETED: EventKind.DELETED,
    EventType.CHILD: EventKind.CHILDREN,
}

Watcher = Callable[[WatchedEvent], None]


class ZooKeeperStore:
    """A session with the ensemble at `connect` (`host:port,host:port/chroot`). See `MetadataStore`.

    Args:
        data_dir: where sessions are written down, so that the next life can end those that were left.
        handed_on: the session is the data directory's one that outlives its processes, gone on with.

    Raises:
        StoreUnavailable: no server of the ensemble answers.
    """

    __slots__ = (
        "_changes",
        "_events",
        "_is_unresolved",
        "_root",
        "_session",
        "_was_told",
        "_watchers",
        "_writer",
        "session_id",
    )

    def __init__(
        self, connect: str, timeout_ms: int, *, data_dir: Path, clock: Clock, handed_on: bool = False
    ) -> None:
        hosts, self._root = split_connect(connect)
        self._events: deque[WatchEvent] = deque()
        self._watchers: dict[tuple[str, bool], Watcher] = {}
        self._changes = 0
        self._is_unresolved = False
        self._was_told = False
        self._session = ZooKeeperSession(
            hosts, timeout_ms, left=LeftSessions(data_dir), clock=clock, handed_on=handed_on
        )
        self.session_id = self._session.session_id
        self._writer = f"{WRITERS}/{self.session_id}"
        try:
            self._make_standing_nodes()
            if self._session.is_gone_on_with:
                self._void_what_was_under_way()
        except BaseException:
            self._session.leave()
            raise

    def _make_standing_nodes(self) -> None:
        """The chroot, and what this session counts its changes with."""
        names = self._root.split("/")[1:]
        for depth in range(len(names)):
            self._make("/" + "/".join(names[: depth + 1]))
        self._make(self._root + WRITERS)
        self._make(self._root + self._writer, ephemeral=True)

    def _void_what_was_under_way(self) -> None:
        """Goes on counting, after a write that voids what the process before had sent and that has not arrived."""
        full_path = self._root + self._writer
        while True:
            _, stat = self._ask(full_path, lambda client: client.get_async(full_path))
            version = int(stat.version)
            with suppress(BadVersion):
                self._ask(full_path, lambda client: client.set_async(full_path, _VOID, version=version))  # noqa: B023
                self._changes = version + 1
                return

    def _make(self, full_path: str, *, ephemeral: bool = False) -> None:
        with suppress(NodeExists):
            self._ask(full_path, lambda client: client.create_async(full_path, b"", ephemeral=ephemeral))

    # Reading

    def get(self, path: str, *, watch: bool = False) -> Node:
        full_path, watcher = self._at(path), self._watcher(path, children=False) if watch else None
        data, stat = self._ask(path, lambda client: client.get_async(full_path, watch=watcher))
        return Node(path, data, _stat(stat))

    def get_many(self, paths: Iterable[str]) -> dict[str, Node]:
        self._session.check()
        found: dict[str, Node] = {}
        wanted = list(paths)
        for start in range(0, len(wanted), _READS_AT_ONCE):
            some = wanted[start : start + _READS_AT_ONCE]
            for path, node in zip(some, self._get_together(some), strict=True):
                if node is not None:
                    data, stat = node
                    found[path] = Node(path, data, _stat(stat))
        return found

    def _get_together(self, paths: Sequence[str]) -> list[Any]:
        full_paths = [self._at(path) for path in paths]
        answers: list[Any] = self._ask(
            paths[0], lambda client: _Answers([client.get_async(path) for path in full_paths])
        )
        return answers

    def exists(self, path: str, *, watch: bool = False) -> Stat | None:
        full_path, watcher = self._at(path), self._watcher(path, children=False) if watch else None
        stat = self._ask(path, lambda client: client.exists_async(full_path, watch=watcher))
        return None if stat is None else _stat(stat)

    def children(self, path: str, *, watch: bool = False) -> list[str]:
        full_path, watcher = self._at(path), self._watcher(path, children=True) if watch else None
        return sorted(self._ask(path, lambda client: client.get_children_async(full_path, watch=watcher)))

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
        results = self._commit([SetData(path, data, version)])
        if results:
            return int(results[0].version)
        # The answer was lost. Somebody else may have set it since; then its version is newer still.
        return self.get(path).version

    def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        self.multi([Delete(path, version)])

    def multi(self, operations: Sequence[Operation]) -> None:
        self._commit(operations)

    def _commit(self, operations: Sequence[Operation]) -> list[Any]:
        """What ZooKeeper answers to each operation; nothing where the change is known only by its count."""
        self._check_operations(operations)
        self._session.check_connection()
        self._settle()
        try:
            results = self._ask(self._writer, lambda client: self._transaction(client, operations))
        except StoreUnavailable:
            self._is_unresolved = True
            if self._session.await_connection(RESOLVE_TIMEOUT_S) and self._took_place():
                return []
            raise
        for index, result in enumerate(results):
            if isinstance(result, Exception) and not isinstance(result, _UNTRIED):
                raise self._refusal(operations, index, result)
        self._changes += 1
        return list(results)

    def _transaction(self, client: KazooClient, operations: Sequence[Operation]) -> Any:
        transaction = client.transaction()
        for operation in operations:
            path = self._root + operation.path if operation.path != "/" else self._root or "/"
            match operation:
                case Create():
                    transaction.create(path, operation.data, ephemeral=operation.ephemeral)
                case SetData():
                    transaction.set_data(path, operation.data, operation.version)
                case Delete():
                    transaction.delete(path, operation.version)
                case Check():
                    transaction.check(path, operation.version)
        transaction.set_data(self._root + self._writer, _DONE, self._changes)
        return transaction.commit_async()

    def _check_operations(self, operations: Sequence[Operation]) -> None:
        length_bytes = 0
        for operation in operations:
            check_path(operation.path)
            data = operation.data if isinstance(operation, Create | SetData) else b""
            check_size(operation.path, data)
            length_bytes += _OPERATION_BYTES + len(self._root) + len(operation.path.encode()) + len(data)
        if length_bytes > CHANGE_BYTES_MAX:
            raise ChangeTooLarge(
                f"a change of {length_bytes} bytes: ZooKeeper takes {CHANGE_BYTES_MAX} at once; "
                "ask for less at a time"
            )

    def _refusal(self, operations: Sequence[Operation], index: int, error: Exception) -> ApplianceError:
        if index == len(operations):
            self._session.end(f"its count of changes is gone ({type(error).__name__})")
            return SessionExpired("the session with ZooKeeper is over")
        operation = operations[index]
        kind = _REFUSALS.get(type(error))
        if operation.path == "/" and isinstance(operation, Create | Delete):
            kind = NodeExists if isinstance(operation, Create) else NotEmpty
        if kind is None:
            return StorageFault(f"ZooKeeper refuses {operation.path}: {type(error).__name__} {error}")
        of_parent = isinstance(operation, Create) and kind in {NoNode, NoChildrenForEphemerals}
        return kind(parent_of(operation.path) if of_parent else operation.path, index)

    # Changes whose answers were lost

    def _settle(self) -> None:
        """Learns what became of a change that somebody was told is not known.

        Raises:
            SessionExpired: it took place.
            StoreUnavailable: still nobody answers.
        """
        if self._is_unresolved and self._took_place():
            self._session.end("a change whose answer was lost did take place")
            self._session.check()

    def _took_place(self) -> bool:
        """Whether the change that counts as `_changes` did. Raises StoreUnavailable."""
        full_path = self._root + self._writer
        try:
            self._ask(full_path, lambda client: client.set_async(full_path, _VOID, version=self._changes))
            done = False
        except BadVersion:
            # Its own count, or one of ours from here whose answer was lost as well.
            data, _ = self._ask(full_path, lambda client: client.get_async(full_path))
            done = data == _DONE
        self._is_unresolved = False
        self._changes += 1
        return done

    # Sessions and watches

    def fileno(self) -> int:
        return self._session.fileno()

    def events(self) -> list[WatchEvent]:
        if self._was_told:
            self._session.check()
        self._session.hush()
        with suppress(SessionExpired, StoreUnavailable):
            self._session.check()
            if self._session.connected:
                self._settle()
        events = [self._events.popleft() for _ in range(len(self._events))]
        if self._session.over:
            self._was_told = True
            events.append(WatchEvent(EventKind.SESSION_EXPIRED, "/"))
        return events

    @property
    def connected(self) -> bool:
        """Whether there is a connection at this moment."""
        return self._session.connected

    def statistics(self) -> Mapping[str, int]:
        """Watches, changes of this session, milliseconds that it surely lives."""
        return {
            "watches": len(self._watchers),
            "changes": self._changes,
            "lease_ms": self._session.lease.left_ms(),
        }

    def close(self) -> None:
        self._was_told = True
        self._session.close()

    def _watcher(self, path: str, *, children: bool) -> Watcher:
        """One function per watch: kazoo keeps it once however often it is left."""
        key = (path, children)
        watcher = self._watchers.get(key)
        if watcher is None:

            def watcher(event: WatchedEvent) -> None:
                unknown = EventKind.CHILDREN if children else EventKind.CHANGED
                self._watchers.pop(key, None)
                self._events.append(WatchEvent(_KINDS.get(event.type, unknown), path))
                self._session.ring()

            self._watchers[key] = watcher
        return watcher

    def _at(self, path: str) -> str:
        check_path(path)
        return self._root + path if path != "/" else self._root or "/"

    def _ask(self, path: str, send: Callable[[KazooClient], Any]) -> Any:
        try:
            return self._session.ask(send)
        except KazooException as error:
            kind = _REFUSALS.get(type(error))
            if kind is None:
                raise StorageFault(f"ZooKeeper refuses {path}: {type(error).__name__} {error}") from error
            raise kind(path) from None


class _Answers:
    """Answers to reads that were sent together; None where there is no such node."""

    __slots__ = ("_results",)

    def __init__(self, results: Sequence[Any]) -> None:
        self._results = results

    def get(self, timeout: float) -> list[Any]:
        answers: list[Any] = []
        for result in self._results:
            try:
                answers.append(result.get(timeout=timeout))
            except NoNodeError:
                answers.append(None)
        return answers


def _stat(stat: ZnodeStat) -> Stat:
    return Stat(
        created_zxid=stat.czxid,
        modified_zxid=stat.mzxid,
        children_zxid=stat.pzxid,
        version=stat.version,
        children_version=stat.cversion,
        ephemeral_owner=stat.ephemeralOwner,
        created_ms=stat.ctime,
        modified_ms=stat.mtime,
        data_length_bytes=stat.dataLength,
        child_count=stat.numChildren,
    )
