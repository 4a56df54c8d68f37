"""Nodes of users, client ids and addresses in the metadata store, which hold what was set for them.

    /config/users/U    /config/users/U/clients/C    /config/clients/C    /config/ips/A

A node of a user has quotas and SCRAM credentials, and perhaps keys of Kafka that nobody here knows. So an alteration
reads the node and keeps every key that it does not change. A node that has nothing left, and no child, is removed.

Source: Kafka 3.9, `AdminZkClient.scala`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.control.store.errors import NoNode
from appliance.control.store.metadata_store import (
    Create,
    Delete,
    MetadataStore,
    Operation,
    SetData,
    parent_of,
)
from appliance.control.store.znode_tree import (
    CLIENT_CONFIGS,
    IP_CONFIGS,
    USER_CONFIGS,
    ConfigRecord,
    decode,
    encode,
)

_ROOTS = frozenset({USER_CONFIGS, CLIENT_CONFIGS, IP_CONFIGS})


class PendingTree:
    """The store as it will be when `operations` are done, which are not yet. New ones are added to them."""

    __slots__ = ("_children", "_data", "_operations", "_store")

    def __init__(self, store: MetadataStore, operations: list[Operation], paths: Iterable[str] = ()) -> None:
        """`paths`: nodes that will be asked for, which are read in one journey."""
        self._store = store
        self._operations = operations
        wanted = list(paths)
        known = store.get_many(wanted)
        self._data: dict[str, bytes | None] = dict.fromkeys(wanted)
        self._data.update((path, node.data) for path, node in known.items())
        self._children: dict[str, set[str]] = {}
        for operation in operations:
            self._note(operation)

    def data(self, path: str) -> bytes | None:
        """What a node has; None where there is no node."""
        if path not in self._data:
            node = self._store.get_many([path]).get(path)
            self._data[path] = None if node is None else node.data
        return self._data[path]

    def add(self, operation: Operation) -> None:
        """Do this, too, after the others."""
        self._operations.append(operation)
        self._note(operation)

    def has_children(self, path: str) -> bool:
        return bool(self._children_of(path))

    def _children_of(self, path: str) -> set[str]:
        if path not in self._children:
            try:
                found = {f"{path}/{name}" for name in self._store.children(path)}
            except NoNode:
                found = set()
            for operation in self._operations:
                if parent_of(operation.path) == path:
                    _count(found, operation)
            self._children[path] = found
        return self._children[path]

    def _note(self, operation: Operation) -> None:
        if isinstance(operation, Create | SetData):
            self._data[operation.path] = operation.data
        elif isinstance(operation, Delete):
            self._data[operation.path] = None
        if (siblings := self._children.get(parent_of(operation.path))) is not None:
            _count(siblings, operation)


def _count(children: set[str], operation: Operation) -> None:
    if isinstance(operation, Create):
        children.add(operation.path)
    elif isinstance(operation, Delete):
        children.discard(operation.path)


def alter_configs(tree: PendingTree, path: str, changes: Mapping[str, str | None]) -> None:
    """Set or remove (None) keys of the node of an entity, and keep the others."""
    before = tree.data(path)
    configs = {} if before is None else configs_of(before, path)
    for key, text in changes.items():
        if text is None:
            configs.pop(key, None)
        else:
            configs[key] = text
    if not configs and not tree.has_children(path):
        _remove(tree, path)
        return
    data = encode(ConfigRecord(configs))
    if before is None:
        _make_parents(tree, path)
        tree.add(Create(path, data))
    else:
        tree.add(SetData(path, data))


def _remove(tree: PendingTree, path: str) -> None:
    """Remove a node without children, and then those above it that have nothing."""
    while path not in _ROOTS and (data := tree.data(path)) is not None:
        tree.add(Delete(path))
        path = parent_of(path)
        if path in _ROOTS or tree.has_children(path):
            return
        data = tree.data(path)
        if data and configs_of(data, path):
            return


def _make_parents(tree: PendingTree, path: str) -> None:
    parent = parent_of(path)
    if parent not in _ROOTS and tree.data(parent) is None:
        _make_parents(tree, parent)
        tree.add(Create(parent))


def configs_of(data: bytes, path: str) -> dict[str, str]:
    """Kafka makes a node without data above the first client id of a user."""
    return dict(decode(ConfigRecord, data, path=path).config) if data else {}
