"""Quotas in the metadata store, where Kafka had them in ZooKeeper: keys of the nodes of `entity_configs`."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from appliance.access.client_quotas import INT64_MAX, IP_KEYS, USER_KEYS
from appliance.cluster import QuotaEntity
from appliance.control.controller.entity_configs import configs_of
from appliance.control.store.metadata_store import MetadataStore
from appliance.control.store.znode_tree import (
    CLIENT_CONFIGS,
    IP_CONFIGS,
    USER_CONFIGS,
    entity_node,
    entity_of_node,
)
from appliance.errors import CorruptFile

Quotas = dict[QuotaEntity, dict[str, float]]

_logger = logging.getLogger(__name__)

_WHOLE = frozenset(
    key for keys in (USER_KEYS, IP_KEYS) for key, maximum in keys.items() if maximum is not None
)


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
        entities[f"{USER_CONFIGS}/{name}"] = QuotaEntity(user=entity_of_node(name))
    nodes = store.get_many(entities)
    # Most users have a SCRAM credential and no client id: only those with a child cost a question each.
    for path, user in [(path, entities[path].user) for path, node in nodes.items() if node.stat.child_count]:
        folder = f"{path}/clients"
        if store.exists(folder) is not None:
            for client in store.children(folder):
                entities[f"{folder}/{client}"] = QuotaEntity(user=user, client_id=entity_of_node(client))
    for name in store.children(CLIENT_CONFIGS):
        entities[f"{CLIENT_CONFIGS}/{name}"] = QuotaEntity(client_id=entity_of_node(name))
    for name in store.children(IP_CONFIGS):
        entities[f"{IP_CONFIGS}/{name}"] = QuotaEntity(ip=entity_of_node(name))
    nodes |= store.get_many(path for path in entities if path not in nodes)
    quotas: Quotas = {}
    for path, node in nodes.items():
        keys = USER_KEYS if entities[path].ip is None else IP_KEYS
        values = {
            key: value
            for key, text in configs_of(node.data, path).items()
            if key in keys  # what else is there belongs to others
            and (value := _value(text, key, path)) is not None
        }
        if values:
            quotas[entities[path]] = values
    return quotas


def quota_changes(before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, str | None]:
    """What `alter_configs` has to do so that an entity has other quotas."""
    changes: dict[str, str | None] = {key: None for key in before if key not in after}
    changes.update((key, _text(key, value)) for key, value in after.items() if before.get(key) != value)
    return changes


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
