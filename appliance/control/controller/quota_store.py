"""Quotas in the metadata store, where Kafka had them in ZooKeeper: a node for each entity.

    /config/users/U    /config/users/U/clients/C    /config/clients/C    /config/ips/A

The node of a user also has what is not a quota (SCRAM credentials), so an alteration reads the node and keeps every key
that it does not change. A node that has nothing left, and no child, is removed.

Source: Kafka 3.9, `AdminZkClient.scala`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from appliance.access.client_quotas import INT64_MAX, IP_KEYS, USER_KEYS
from appliance.cluster import QuotaEntity
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
    entity_node,
    entity_of_node,
)
from appliance.errors import CorruptFile

Quotas = dict[QuotaEntity, dict[str, float]]

_logger = logging.getLogger(__name__)

_WHOLE = frozenset(
    key for keys in (USER_KEYS, IP_KEYS) for key, maximum in keys.items() if maximum is not None
)
_ROOTS = frozenset({USER_CONFIGS, CLIENT_CONFIGS, IP_CONFIGS})


def entity_path(entity: QuotaEntity) -> str:
    """The node of an entity."""
    if entity.ip is not None:
        return f"{IP_CONFIGS}/{entity_node(entity.ip)}"
    if entity.user is None:
        assert entity.client_id is not None
        return f"{CLIENT_CONFIGS}/{entity_node(entity.client_id)}"
    path = f"{USER_CONFIGS}/{entity_node(entity.user)}"
    return path if entity.client_id is None else f"{path}/clients/{entity_node(entity.client_id)}"


def load_quotas(store: MetadataStore) -> Quotas:
    """The quotas of every entity that has some.

    Raises:
        CorruptFile: a node holds something else.
    """
    entities: dict[str, QuotaEntity] = {}
    for name in store.children(USER_CONFIGS):
        user = entity_of_node(name)
        entities[f"{USER_CONFIGS}/{name}"] = QuotaEntity(user=user)
        folder = f"{USER_CONFIGS}/{name}/clients"
        if store.exists(folder) is not None:
            for client in store.children(folder):
                entities[f"{folder}/{client}"] = QuotaEntity(user=user, client_id=entity_of_node(client))
    for name in store.children(CLIENT_CONFIGS):
        entities[f"{CLIENT_CONFIGS}/{name}"] = QuotaEntity(client_id=entity_of_node(name))
    for name in store.children(IP_CONFIGS):
        entities[f"{IP_CONFIGS}/{name}"] = QuotaEntity(ip=entity_of_node(name))
    quotas: Quotas = {}
    for path, node in store.get_many(entities).items():
        keys = USER_KEYS if entities[path].ip is None else IP_KEYS
        values = {
            key: value
            for key, text in _configs(node.data, path).items()
            if key in keys  # what else is there belongs to others
            and (value := _value(text, key, path)) is not None
        }
        if values:
            quotas[entities[path]] = values
    return quotas


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
    configs = {} if before is None else _configs(before, path)
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


def quota_changes(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, str | None]:
    """What `alter_configs` has to do so that an entity has other quotas."""
    changes: dict[str, str | None] = {key: None for key in before if key not in after}
    changes.update((key, _text(key, value)) for key, value in after.items() if before.get(key) != value)
    return changes


def _remove(tree: PendingTree, path: str) -> None:
    """Remove a node without children, and then those above it that have nothing."""
    while path not in _ROOTS and (data := tree.data(path)) is not None:
        tree.add(Delete(path))
        path = parent_of(path)
        if path in _ROOTS or tree.has_children(path):
            return
        data = tree.data(path)
        if data and _configs(data, path):
            return


def _make_parents(tree: PendingTree, path: str) -> None:
    parent = parent_of(path)
    if parent not in _ROOTS and tree.data(parent) is None:
        _make_parents(tree, parent)
        tree.add(Create(parent))


def _configs(data: bytes, path: str) -> dict[str, str]:
    """Kafka makes a node without data above the first client id of a user."""
    return dict(decode(ConfigRecord, data, path=path).config) if data else {}


def _value(text: str, key: str, path: str) -> float | None:
    """None for what Kafka took before KIP-546, and no request may set now."""
    try:
        value = float(text)
    except ValueError as error:
        raise CorruptFile(f"metadata node {path}: {key} = {text!r} is no number") from error
    if 0 < value < float("inf"):
        return value
    _logger.warning("metadata node %s: %s = %s ignored, because a quota must be above 0", path, key, text)
    return None


def _text(key: str, value: float) -> str:
    """As Kafka wrote it: a whole number where the key wants one."""
    if key in _WHOLE:
        return str(min(int(value), INT64_MAX))
    return str(int(value)) if value.is_integer() and value < INT64_MAX else repr(value)
