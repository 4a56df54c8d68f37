"""The metadata of a backup as a tree for ZooKeeper: its form in the backup, and how a restore writes it.

In the backup it is JSON: `[["/cluster", ""], ["/cluster/id", "eyJ…"], …]`, paths below the chroot, parents first, data
in base64.

A restore writes into a chroot that is empty or does not exist:

    /restore-in-progress     created first, with the id of the backup; a controller refuses a tree that has it
    all nodes                some hundred in one change
    /cluster/id              last, in the change that deletes /restore-in-progress

Every change is one of a session with the ensemble, and counted in `/writers/N` (zookeeper_store.py). So a restore that
was suspended until its session expired writes nothing any more. `/writers` also shows whether another restore lives. A
tree that an interrupted restore has left has the mark and no writer, and holds nothing else but what was restored: the
next restore removes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from appliance.clock import Clock
from appliance.control.backup import zookeeper_client
from appliance.control.store.errors import NodeExists, StoreRefusal
from appliance.control.store.metadata_store import (
    Create,
    Delete,
    MetadataStore,
    Operation,
    check_path,
    check_size,
    parent_of,
)
from appliance.control.store.znode_tree import CLUSTER_ID, RESTORING, WRITERS, ZOOKEEPERS_OWN
from appliance.errors import CorruptFile, HostFault, OperatorFault
from appliance.extras import need

SESSION_TIMEOUT_MS: Final = 18_000
_OPERATIONS_MAX: Final = 200
_BYTES_MAX: Final = 400_000
_OPERATION_BYTES: Final = 200
_NOT_RESTORED: Final = frozenset({WRITERS, RESTORING, ZOOKEEPERS_OWN})
_NO_CONTENT: Final = frozenset(path.removeprefix("/") for path in _NOT_RESTORED)
_PARTLY: Final = "the restore was not finished"

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(list[tuple[str, bytes]]).decode


def encode_tree(nodes: Sequence[tuple[str, bytes]]) -> bytes:
    """The form in the backup. `nodes` are (path, data), parents before their children."""
    return _encode(nodes)


def decode_tree(content: bytes) -> list[tuple[str, bytes]]:
    """The nodes, parents first.

    Raises:
        CorruptFile: it is no such tree: a path is none, comes twice, has no parent, or has a node of a living session.
    """
    try:
        nodes = _decode(content)
        known = {"/"}
        for path, data in nodes:
            check_path(path)
            check_size(path, data)
            if path in known or parent_of(path) not in known:
                raise ValueError(f"{path} comes twice, or before its parent")
            if path in _NOT_RESTORED:
                raise ValueError(f"{path} belongs to no cluster")
            known.add(path)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptFile(f"the metadata of the backup are no tree of nodes: {error}") from error
    if CLUSTER_ID not in known:
        raise CorruptFile(f"the metadata of the backup have no {CLUSTER_ID}")
    return nodes


def refuse_used(connect: str) -> None:
    """Look whether a restore may write into this chroot. It is only a look: `write_tree` checks again.

    Raises:
        OperatorFault: something is there. HostFault: ZooKeeper does not answer.
    """
    need("kazoo", needed_by="a restore of metadata in ZooKeeper")
    from kazoo.exceptions import KazooException, NoNodeError
    from kazoo.handlers.threading import KazooTimeoutError

    hosts, root = zookeeper_client.split_address(connect)
    client = zookeeper_client.reading_client(hosts)
    try:
        names, writers = [], []
        try:
            names = client.get_children_async(root or "/").get(timeout=zookeeper_client.ANSWER_TIMEOUT_S)
            writers = client.get_children_async(root + WRITERS).get(timeout=zookeeper_client.ANSWER_TIMEOUT_S)
        except NoNodeError:
            pass
        _refuse(connect, names, writers)
    except (KazooException, KazooTimeoutError) as error:
        raise HostFault(f"ZooKeeper at {hosts}: {type(error).__name__} {error}") from error
    finally:
        zookeeper_client.end_client(client)


def write_tree(
    connect: str, nodes: Sequence[tuple[str, bytes]], *, data_dir: Path, clock: Clock, backup_id: str
) -> None:
    """Write the tree into an empty chroot, which is created if it does not exist.

    Args:
        data_dir: the restored one; the session is written down in it.

    Raises:
        OperatorFault: the chroot is not empty, or somebody writes into it at the same time.
        StorageFault: ZooKeeper does not answer, or refuses a node. The tree has RESTORING then.
    """
    from appliance.control.store.zookeeper_store import ZooKeeperStore

    store = ZooKeeperStore(connect, SESSION_TIMEOUT_MS, data_dir=data_dir, clock=clock)
    try:
        own = str(store.session_id)
        _refuse(connect, store.children("/"), [each for each in store.children(WRITERS) if each != own])
        try:
            store.create(RESTORING, backup_id.encode())
        except NodeExists:
            _remove_left(store)
        # Whoever came at the same time has its node in /writers, or nodes of its own, by now.
        others = [each for each in store.children(WRITERS) if each != own]
        if others or set(store.children("/")) - _NO_CONTENT:
            store.delete(RESTORING)
            raise OperatorFault(f"somebody else writes into ZooKeeper at {connect}; {_PARTLY}")
        last = [Create(path, data) for path, data in nodes if path == CLUSTER_ID]
        for changes in _in_turns([Create(path, data) for path, data in nodes if path != CLUSTER_ID]):
            store.multi(changes)
        store.multi([*last, Delete(RESTORING)])
    except StoreRefusal as refusal:
        raise OperatorFault(
            f"somebody else writes into ZooKeeper at {connect} ({refusal.path}); {_PARTLY}"
        ) from refusal
    finally:
        store.close()


def _refuse(connect: str, names: Sequence[str], writers: Sequence[str]) -> None:
    """Raises OperatorFault if the chroot holds something, or somebody writes into it."""
    there = sorted(set(names) - _NO_CONTENT)
    if there and RESTORING.removeprefix("/") not in names:
        raise OperatorFault(
            f"ZooKeeper at {connect} is not empty (/{there[0]} is in it); nothing was written there. Restore into"
            " another chroot, or remove this one with ZooKeeper's tools: deleteall"
        )
    if writers:
        raise OperatorFault(
            f"somebody writes into ZooKeeper at {connect}, or was killed while doing so; nothing was written there. If"
            f" nothing writes there, try again in {SESSION_TIMEOUT_MS // 1000} s"
        )


def _remove_left(store: MetadataStore) -> None:
    """Remove what an interrupted restore has left; RESTORING stays."""
    found, level = [], ["/"]
    while level:
        level = [
            path
            for parent in level
            for name in store.children(parent)
            if (path := f"{parent.rstrip('/')}/{name}") not in _NOT_RESTORED
        ]
        found += level
    for changes in _in_turns([Delete(path) for path in reversed(found)]):
        store.multi(changes)


def _in_turns(operations: Sequence[Create] | Sequence[Delete]) -> Iterator[list[Operation]]:
    """The operations in order, as many in one change as ZooKeeper takes comfortably."""
    turn: list[Operation] = []
    length = 0
    for each in operations:
        size = _OPERATION_BYTES + len(each.path) + (len(each.data) if isinstance(each, Create) else 0)
        if turn and (len(turn) >= _OPERATIONS_MAX or length + size > _BYTES_MAX):
            yield turn
            turn, length = [], 0
        turn.append(each)
        length += size
    if turn:
        yield turn
