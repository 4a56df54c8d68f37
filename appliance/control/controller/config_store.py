"""Settings in the metadata store: the operations that change them, and how those of brokers and groups come back.

As in `topic_store`, each function makes operations for one `multi`, behind the controller's fence.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.control.store.metadata_store import Create, Delete, MetadataStore, Operation, SetData
from appliance.control.store.znode_tree import (
    BROKER_CONFIGS,
    CLIENT_METRICS,
    CLIENT_METRICS_PATHS,
    DEFAULT_ENTITY,
    GROUP_CONFIGS,
    ConfigRecord,
    broker_config_path,
    client_metrics_path,
    decode,
    encode,
    group_config_path,
    group_of_node,
    topic_config_path,
)


def load_broker_configs(store: MetadataStore) -> dict[str, dict[str, str]]:
    """Node id, or "" for all brokers → what was set there. Raises CorruptFile where a node holds something else."""
    names = store.children(BROKER_CONFIGS)
    nodes = store.get_many(f"{BROKER_CONFIGS}/{name}" for name in names)
    return {
        "" if name == DEFAULT_ENTITY else name: decode(ConfigRecord, node.data, path=node.path).config
        for name in names
        if (node := nodes.get(f"{BROKER_CONFIGS}/{name}")) is not None
    }


def load_group_configs(store: MetadataStore) -> dict[str, dict[str, str]]:
    """Group id → what was set there. Raises CorruptFile where a node holds something else."""
    return _load(store, GROUP_CONFIGS)


def load_client_metrics(store: MetadataStore) -> dict[str, dict[str, str]] | None:
    """Name of a subscription → what was set there; None where there was none ever. Raises as the above."""
    if not store.exists(CLIENT_METRICS):
        return None
    return _load(store, CLIENT_METRICS)


def _load(store: MetadataStore, folder: str) -> dict[str, dict[str, str]]:
    names = store.children(folder)
    nodes = store.get_many(f"{folder}/{name}" for name in names)
    return {
        group_of_node(name): decode(ConfigRecord, node.data, path=node.path).config
        for name in names
        if (node := nodes.get(f"{folder}/{name}")) is not None
    }


def topic_alteration(topic: str, configs: Mapping[str, str]) -> list[Operation]:
    """Makes `configs` all that is set on `topic`."""
    return [SetData(topic_config_path(topic), encode(ConfigRecord(dict(configs))))]


def broker_alteration(node_id: str, configs: Mapping[str, str], *, is_new: bool) -> list[Operation]:
    """Makes `configs` all that is set on a broker, or on all for ""; `is_new` where nothing ever was."""
    data = encode(ConfigRecord(dict(configs)))
    path = broker_config_path(node_id)
    return [Create(path, data) if is_new else SetData(path, data)]


def group_alteration(group_id: str, configs: Mapping[str, str], *, is_new: bool) -> list[Operation]:
    """Makes `configs` all that is set on a group; nothing of it is left behind where that is nothing."""
    return _alteration(group_config_path(group_id), configs, is_new=is_new)


def client_metrics_alteration(
    name: str, configs: Mapping[str, str], *, is_new: bool, has_folder: bool
) -> list[Operation]:
    """Makes `configs` all that is set on a subscription, as of a group."""
    made: list[Operation] = [] if has_folder else [Create(path) for path in CLIENT_METRICS_PATHS]
    return made + _alteration(client_metrics_path(name), configs, is_new=is_new)


def _alteration(path: str, configs: Mapping[str, str], *, is_new: bool) -> list[Operation]:
    if not configs:
        return [Delete(path)]
    data = encode(ConfigRecord(dict(configs)))
    return [Create(path, data) if is_new else SetData(path, data)]
