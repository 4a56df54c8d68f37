"""The metadata store: a tree of small versioned nodes, shaped like ZooKeeper's.

Who keeps it is not the reader's business: `embedded_store` keeps it in a file of the data directory,
`zookeeper_store` in a ZooKeeper ensemble. Every implementation passes tests/control/store unchanged.

Rules of the tree, as ZooKeeper has them:

- A path is `/` or names joined by `/`. A node has data (at most NODE_BYTES_MAX), a version that grows by one
  with every `set`, and children. A node's parent exists; `/` always does.
- An *ephemeral* node belongs to the session that created it and goes with it: at `close`, or when its process
  dies. It bears no children.
- A *watch* is left by a read, for this session, and fires once: the reader is told that the node changed, not
  how, and reads again. A watch on data (`get`, `exists`) fires when the node is created, set or deleted; a
  watch on children when a child comes or goes or the node itself is deleted. Two changes between two looks
  are one event.
- `multi` does all of its operations or none; the first one that is refused is named by the error's `index`.
- What returned was written: it survives the death of the process and, where the store's medium does, of the
  power.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

import msgspec

NODE_BYTES_MAX: Final = 1_000_000  # a little below ZooKeeper's jute.maxbuffer
ANY_VERSION: Final = -1


class Stat(msgspec.Struct, frozen=True):
    """What is known of a node beside its data. Transaction ids (`_zxid`) grow with every change of the
    tree."""

    created_zxid: int
    modified_zxid: int
    children_zxid: int
    version: int
    children_version: int
    ephemeral_owner: int
    created_ms: int
    modified_ms: int
    data_length_bytes: int
    child_count: int


class Node(msgspec.Struct, frozen=True):
    """A node as it was read."""

    path: str
    data: bytes
    stat: Stat

    @property
    def version(self) -> int:
        return self.stat.version


class Create(msgspec.Struct, frozen=True, tag=True):
    """Refused with NodeExists, NoNode (no parent), NoChildrenForEphemerals."""

    path: str
    data: bytes = b""
    ephemeral: bool = False


class SetData(msgspec.Struct, frozen=True, tag=True):
    """Refused with NoNode, BadVersion."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(msgspec.Struct, frozen=True, tag=True):
    """Refused with NoNode, BadVersion, NotEmpty."""

    path: str
    version: int = ANY_VERSION


class Check(msgspec.Struct, frozen=True):
    """Changes nothing; refused with NoNode, BadVersion. A `multi` hangs a fence on it."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check


class EventKind(StrEnum):
    """What a watch saw."""

    CREATED = "created"
    CHANGED = "changed"
    DELETED = "deleted"
    CHILDREN = "children"
    SESSION_EXPIRED = "session expired"


class WatchEvent(msgspec.Struct, frozen=True):
    """A watch fired and is gone. SESSION_EXPIRED has the path `/` and ends every watch."""

    kind: EventKind
    path: str


class MetadataStore(Protocol):
    """One session with the store. Not for use from several threads, nor across a fork.

    Every call may raise SessionExpired, StorageFault (DiskFull, StoreUnavailable) or CorruptFile.
    """

    @property
    def session_id(self) -> int:
        """Not 0; the `ephemeral_owner` of this session's nodes."""
        ...

    def get(self, path: str, *, watch: bool = False) -> Node:
        """Raises NoNode, and then leaves no watch."""
        ...

    def get_many(self, paths: Iterable[str]) -> dict[str, Node]:
        """Those of `paths` that exist. Not one moment's picture, but one journey."""
        ...

    def exists(self, path: str, *, watch: bool = False) -> Stat | None:
        """The watch is left whether or not the node exists."""
        ...

    def children(self, path: str, *, watch: bool = False) -> list[str]:
        """Names (not paths) of the children, sorted. Raises NoNode."""
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Raises as `Create`."""
        ...

    def ensure_path(self, path: str) -> None:
        """Creates what is missing of `path` with empty data. Running time: one read per missing level."""
        ...

    def set(self, path: str, data: bytes, *, version: int = ANY_VERSION) -> int:
        """The new version. Raises as `SetData`."""
        ...

    def delete(self, path: str, *, version: int = ANY_VERSION) -> None:
        """Raises as `Delete`."""
        ...

    def multi(self, operations: Sequence[Operation]) -> None:
        """All of `operations`, in order, or none. Raises as the first that is refused, with its `index`."""
        ...

    def fileno(self) -> int:
        """A descriptor that becomes readable when `events` may have something to tell."""
        ...

    def events(self) -> list[WatchEvent]:
        """Watches that fired since the last call. Never waits."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Nodes, watches, bytes on the medium where known; for display."""
        ...

    def close(self) -> None:
        """Ends the session; its ephemeral nodes are gone when this returns."""
        ...


def parent_of(path: str) -> str:
    """`/a/b` → `/a`, `/a` → `/`."""
    return path.rpartition("/")[0] or "/"


def check_path(path: str) -> None:
    """Raises ValueError where `path` is none: a mistake of the caller, never of a client."""
    if path == "/":
        return
    names = path.split("/")
    if (
        names[0]
        or len(names) < 2
        or any(not name or name in {".", ".."} or "\0" in name for name in names[1:])
    ):
        raise ValueError(f"no path of a node: {path!r}")


def check_size(path: str, data: bytes) -> None:
    """Raises ValueError where `data` is more than a node takes: a mistake of the caller."""
    if len(data) > NODE_BYTES_MAX:
        raise ValueError(f"{len(data)} bytes for node {path}: at most {NODE_BYTES_MAX}")
