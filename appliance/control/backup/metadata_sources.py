"""Where a backup gets the metadata from: the embedded store's file, or the tree in ZooKeeper, each as of one moment.

**ZooKeeper** gives no picture of many nodes at one moment. So the tree is read, and then every node is looked at once
more. If each node has the transaction ids that it had (created, modified, children), there was a moment between the
two readings at which the tree was as it was read, because a transaction id never comes back. Otherwise it is read
again. A `sync` before makes the server catch up with its leader.

Left out: ephemeral nodes, which belong to living sessions, and `/writers`, which counts the changes of such sessions.
Nothing is written to ZooKeeper.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final, Protocol

from appliance.control.backup import zookeeper_client
from appliance.control.backup.manifest import METADATA, TREE
from appliance.control.backup.zookeeper_tree import encode_tree
from appliance.control.store.embedded_store import DATABASE_NAME
from appliance.control.store.znode_tree import CLUSTER_ID, WRITERS, ZOOKEEPERS_OWN, ClusterIdRecord, decode
from appliance.errors import CorruptFile, HostFault, OperatorFault, StorageFault
from appliance.extras import need

BUSY_S: Final = 1.0
PATIENCE_S: Final = 30.0
_BUSY: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_AT_ONCE: Final = 500
_TRIES: Final = 5
_LEFT_OUT: Final = frozenset({WRITERS, ZOOKEEPERS_OWN})
_NO_STAT: Final = (0, 0, 0)


class MetadataMoved(Exception):
    """The metadata changed while they were read; read them again."""


class MetadataSource(Protocol):
    """The metadata of an appliance. `file` is the name that they have in a backup."""

    file: str

    def content(self, cluster_id: str) -> bytes:
        """The metadata of one moment.

        Args:
            cluster_id: of the logs; "" where it is not known.

        Raises:
            MetadataMoved: they change all the time.
            OperatorFault: they are those of another cluster.
            StorageFault, HostFault: they cannot be read. CorruptFile: they are damaged.
        """
        ...

    def close(self) -> None:
        """Let go of what was opened."""
        ...


class EmbeddedMetadata:
    """`metadata.db` of a data directory."""

    __slots__ = ("_path", "file")

    def __init__(self, data_dir: Path) -> None:
        self._path = data_dir / DATABASE_NAME
        self.file = METADATA

    def content(self, cluster_id: str) -> bytes:
        """A consistent copy of an SQLite database that may be in use.

        Raises:
            StorageFault: it cannot be read. CorruptFile: it is damaged.
        """
        try:
            with (
                closing(sqlite3.connect(self._path, timeout=BUSY_S)) as source,
                closing(sqlite3.connect(":memory:")) as copy,
            ):
                deadline = time.monotonic() + PATIENCE_S

                def look_at_clock(status: int, _left: int, _pages: int) -> None:
                    # Without it, sqlite3 tries for ever, and no signal ends the command.
                    if status in _BUSY and time.monotonic() > deadline:
                        raise StorageFault(
                            f"{self._path} was locked by another process for {PATIENCE_S:.0f} s"
                        )

                source.backup(copy, progress=look_at_clock)
                (found,) = copy.execute("PRAGMA quick_check(1)").fetchone()
                if found != "ok":
                    raise CorruptFile(f"{self._path} is damaged: {found}")
                return copy.serialize()
        except sqlite3.DatabaseError as error:
            kind = StorageFault if isinstance(error, sqlite3.OperationalError) else CorruptFile
            raise kind(f"{self._path}: {error}") from error

    def close(self) -> None:
        """Nothing is held."""


class ZooKeeperMetadata:
    """The tree under the chroot of `connect` (`host:port,host:port/chroot`). Connects when it is first read."""

    __slots__ = ("_client", "_connect", "_hosts", "_root", "file")

    def __init__(self, connect: str) -> None:
        need("kazoo", needed_by="a backup of metadata in ZooKeeper")
        self._connect = connect
        self._hosts, self._root = zookeeper_client.split_address(connect)
        self._client: Any = None
        self.file = TREE

    def content(self, cluster_id: str) -> bytes:
        from kazoo.exceptions import KazooException, NoNodeError
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            if self._client is None:
                self._client = zookeeper_client.reading_client(self._hosts)
            for _ in range(_TRIES):
                with suppress(NoNodeError):
                    if (nodes := self._look_twice()) is not None:
                        self._check_cluster(nodes, cluster_id)
                        return encode_tree(nodes)
                there = self._client.exists_async(self._root or "/")
                if there.get(timeout=zookeeper_client.ANSWER_TIMEOUT_S) is None:
                    raise OperatorFault(f"there is nothing in ZooKeeper at {self._connect}")
        except (KazooException, KazooTimeoutError) as error:
            raise HostFault(f"ZooKeeper at {self._hosts}: {type(error).__name__} {error}") from error
        raise MetadataMoved

    def close(self) -> None:
        if self._client is not None:
            zookeeper_client.end_client(self._client)
            self._client = None

    def _look_twice(self) -> list[tuple[str, bytes]] | None:
        """The nodes (path below the chroot, data), parents first; None if one changed meanwhile."""
        self._client.sync_async(self._root or "/").get(timeout=zookeeper_client.ANSWER_TIMEOUT_S)
        nodes: list[tuple[str, bytes]] = []
        stats: dict[str, tuple[int, int, int]] = {}
        level = ["/"]
        while level:
            read = self._ask(level, self._client.get_async)
            kept = [
                (path, data, stat)
                for path, (data, stat) in zip(level, read, strict=True)
                if not stat.ephemeralOwner
            ]
            nodes += [(path, data) for path, data, _ in kept if path != "/"]
            stats.update((path, _transactions(stat)) for path, _, stat in kept)
            parents = [path for path, _, stat in kept if stat.numChildren]
            names = self._ask(parents, self._client.get_children_async)
            level = [
                path
                for parent, found in zip(parents, names, strict=True)
                for name in sorted(found)
                if (path := f"{parent.rstrip('/')}/{name}") not in _LEFT_OUT
            ]
        again = self._ask(stats, self._client.exists_async)
        if any(_transactions(stat) != was for stat, was in zip(again, stats.values(), strict=True)):
            return None
        return nodes

    def _ask(self, paths: Iterable[str], send: Callable[[str], Any]) -> list[Any]:
        """The answers, some hundred at a time, so that neither side keeps much."""
        wanted = [self._root + path if path != "/" else self._root or "/" for path in paths]
        found: list[Any] = []
        for start in range(0, len(wanted), _AT_ONCE):
            asked = [send(path) for path in wanted[start : start + _AT_ONCE]]
            found += [each.get(timeout=zookeeper_client.ANSWER_TIMEOUT_S) for each in asked]
        return found

    def _check_cluster(self, nodes: Sequence[tuple[str, bytes]], cluster_id: str) -> None:
        data = dict(nodes).get(CLUSTER_ID)
        if data is None:
            raise OperatorFault(f"there is no tree of a cluster in ZooKeeper at {self._connect}")
        found = decode(ClusterIdRecord, data, path=CLUSTER_ID).id
        if cluster_id and found != cluster_id:
            raise OperatorFault(
                f"ZooKeeper at {self._connect} has the metadata of cluster {found}, and the logs are those of cluster"
                f" {cluster_id}; give the right chroot with --zookeeper"
            )


def _transactions(stat: Any) -> tuple[int, int, int]:
    """The last transactions that created the node, set it, and changed the list of its children."""
    return _NO_STAT if stat is None else (stat.czxid, stat.mzxid, stat.pzxid)
