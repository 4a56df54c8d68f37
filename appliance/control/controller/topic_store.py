"""Topics in the metadata store: which nodes a topic has, and how all topics come back from them.

Each function below that makes operations makes them for one `multi`; the controller puts its fence
(`Check(/controller_epoch)`) before them, so a controller that was superseded changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

import msgspec

from appliance.cluster import PartitionImage, TopicImage
from appliance.control.store.metadata_store import Create, Delete, MetadataStore, Operation, SetData
from appliance.control.store.znode_tree import (
    DELETE_TOPICS,
    TOPICS,
    ConfigRecord,
    PartitionStateRecord,
    TopicRecord,
    decode,
    delete_topic_path,
    encode,
    id_from_text,
    partition_path,
    partition_state_path,
    partitions_path,
    topic_config_path,
    topic_path,
    topic_record,
)
from appliance.errors import CorruptFile

OPERATIONS_AT_ONCE: Final = 1_000
"""A change of more operations is divided where it can be: ZooKeeper takes one megabyte at once."""

_PARTITIONS_AT_ONCE: Final = OPERATIONS_AT_ONCE // 2


class StoredTopic(msgspec.Struct, frozen=True):
    """A topic as the store has it; no rows yet.

    `states[p]` is None where the node is missing; `epochs[p]` is that node's version, which is the partition's epoch.
    `adding` and `removing` hold partitions that are being reassigned, `leaving` those that were.
    """

    name: str
    topic_id: UUID
    replicas: tuple[tuple[int, ...], ...]
    states: tuple[PartitionStateRecord | None, ...]
    configs: Mapping[str, str]
    deleting: bool
    has_config_node: bool = True
    epochs: tuple[int, ...] = ()
    adding: Mapping[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    removing: Mapping[int, tuple[int, ...]] = msgspec.field(default_factory=dict)
    leaving: Mapping[int, tuple[int, ...]] = msgspec.field(default_factory=dict)


def load_topics(store: MetadataStore) -> list[StoredTopic]:
    """All topics, also those marked for deletion. Raises CorruptFile where a node holds something else."""
    names = store.children(TOPICS)
    deleting = set(store.children(DELETE_TOPICS))
    nodes = store.get_many(topic_path(name) for name in names)
    records = {
        name: decode(TopicRecord, nodes[topic_path(name)].data, path=topic_path(name))
        for name in names
        if topic_path(name) in nodes
    }
    states = store.get_many(
        partition_state_path(name, number)
        for name, record in records.items()
        for number in range(len(record.partitions))
    )
    configs = store.get_many(topic_config_path(name) for name in records)
    topics = []
    for name, record in records.items():
        if sorted(map(int, record.partitions)) != list(range(len(record.partitions))):
            raise CorruptFile(f"metadata node {topic_path(name)}: partitions are not numbered 0, 1, 2 …")
        found: list[PartitionStateRecord | None] = []
        epochs: list[int] = []
        for number in range(len(record.partitions)):
            path = partition_state_path(name, number)
            node = states.get(path)
            found.append(decode(PartitionStateRecord, node.data, path=path) if node else None)
            epochs.append(node.version if node else 0)
        config = configs.get(topic_config_path(name))
        topics.append(
            StoredTopic(
                name=name,
                topic_id=id_from_text(record.topic_id, path=topic_path(name)),
                replicas=tuple(record.replicas),
                states=tuple(found),
                configs=decode(ConfigRecord, config.data, path=config.path).config if config else {},
                deleting=name in deleting,
                has_config_node=config is not None,
                epochs=tuple(epochs),
                adding=_by_number(record.adding_replicas),
                removing=_by_number(record.removing_replicas),
                leaving=_by_number(record.leaving_replicas or {}),
            )
        )
    return topics


def creation(topic: TopicImage, controller_epoch: int) -> list[Operation]:
    """Creates every node of `topic`."""
    return [
        Create(topic_path(topic.name), encode(_record(topic))),
        Create(topic_config_path(topic.name), encode(ConfigRecord(dict(topic.configs)))),
        Create(partitions_path(topic.name)),
        *_partitions(topic.name, topic.partitions, controller_epoch),
    ]


def growth(topic: TopicImage, first: int, controller_epoch: int) -> list[Operation]:
    """Adds partitions `first`, `first` + 1, … of `topic`."""
    return [
        SetData(topic_path(topic.name), encode(_record(topic))),
        *_partitions(topic.name, topic.partitions[first:], controller_epoch),
    ]


def deletion_mark(name: str) -> list[Operation]:
    """From here on the topic is going, whatever happens to the controller."""
    return [Create(delete_topic_path(name))]


def forgetting(topic: TopicImage) -> list[list[Operation]]:
    """Removes every node of `topic`, and the mark: steps for one `multi` each, in this order.

    Whoever begins anew between two steps finds the mark, and makes the missing nodes again before it forgets them.
    """
    steps: list[list[Operation]] = []
    for start in range(0, len(topic.partitions), _PARTITIONS_AT_ONCE):
        some = topic.partitions[start : start + _PARTITIONS_AT_ONCE]
        steps.append(
            [
                operation
                for partition in some
                for operation in (
                    Delete(partition_state_path(topic.name, partition.partition)),
                    Delete(partition_path(topic.name, partition.partition)),
                )
            ]
        )
    last: list[Operation] = [
        Delete(partitions_path(topic.name)),
        Delete(topic_path(topic.name)),
        Delete(topic_config_path(topic.name)),
        Delete(delete_topic_path(topic.name)),
    ]
    if len(steps) == 1:
        return [steps[0] + last]
    return [*steps, last]


def packed(topics: Iterable[list[list[Operation]]]) -> list[list[Operation]]:
    """The steps of several topics in as few changes as OPERATIONS_AT_ONCE allows, in their order."""
    changes: list[list[Operation]] = []
    for steps in topics:
        for step in steps:
            if changes and len(changes[-1]) + len(step) <= OPERATIONS_AT_ONCE:
                changes[-1] += step
            else:
                changes.append(list(step))
    return changes


def new_placement(topic: TopicImage) -> list[Operation]:
    """Writes which slots hold the partitions of `topic`, and which of them come and go."""
    return [SetData(topic_path(topic.name), encode(_record(topic)))]


def new_states(topic: str, partitions: Iterable[PartitionImage], controller_epoch: int) -> list[Operation]:
    """Writes leader, epoch and ISR of existing partitions. The version of the node is the partition's epoch, so each
    of them has an epoch that is one higher than what is stored."""
    return [
        SetData(partition_state_path(topic, partition.partition), encode(_state(partition, controller_epoch)))
        for partition in partitions
    ]


def _partitions(
    topic: str, partitions: Iterable[PartitionImage], controller_epoch: int
) -> Iterable[Operation]:
    for partition in partitions:
        yield Create(partition_path(topic, partition.partition))
        yield Create(
            partition_state_path(topic, partition.partition), encode(_state(partition, controller_epoch))
        )


def _state(partition: PartitionImage, controller_epoch: int) -> PartitionStateRecord:
    return PartitionStateRecord(controller_epoch, partition.leader, partition.leader_epoch, partition.isr)


def _record(topic: TopicImage) -> TopicRecord:
    return topic_record(
        topic.topic_id,
        {p.partition: p.replicas for p in topic.partitions},
        adding={p.partition: p.adding for p in topic.partitions if p.adding},
        removing={p.partition: p.removing for p in topic.partitions if p.removing},
        leaving={p.partition: p.leaving for p in topic.partitions if p.leaving},
    )


def _by_number(replicas: Mapping[str, tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    return {int(number): each for number, each in replicas.items()}
