"""What would become of Kafka's log directories here: which topics, with which ids, settings and epochs. Pure.

| found | becomes |
|---|---|
| partitions of one topic, in one or several directories | one topic; its id from `partition.metadata`, else a new one |
| the metadata log (KRaft) | the topics' settings and partition counts, the producer ids that were given |
| no metadata log (ZooKeeper) | settings unknown: nothing is ever deleted by age; what was compacted stays so |
| a partition's leader epoch | one more than the largest in the checkpoint, the batches and the metadata |
| a topic that the metadata log does not know | was being deleted: left where it is |
| a partition missing in the middle or at the end | refused, unless empty ones are asked for |
| two ids in one topic, a damaged file, message format v0 or v1 | refused, by name |
| a setting that is not known here | left out, and said |

Refusals stop the whole adoption until the topic is left out by name: half a takeover would be found out too late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from appliance.cluster import TopicPartition, is_internal
from appliance.config import validate_topic_configs
from appliance.errors import ConfigurationError
from appliance.log.kafka_directory import CLEANER_OFFSETS, KafkaDirectory, KafkaPartition
from appliance.log.kraft_metadata import KraftMetadata, KraftTopic

_CLEANUP, _RETENTION_MS = "cleanup.policy", "retention.ms"
_COMPACT: Final = "compact"


@dataclass(frozen=True, slots=True)
class AdoptedTopic:
    """A topic to be. `partitions[p]` is None for an empty one; `leader_epochs` is as long."""

    name: str
    topic_id: UUID
    partitions: tuple[KafkaPartition | None, ...]
    leader_epochs: tuple[int, ...]
    configs: Mapping[str, str]

    @property
    def found(self) -> list[KafkaPartition]:
        return [partition for partition in self.partitions if partition is not None]


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """`refusals` must be empty before anything is done; `words` are for the operator to read."""

    topics: tuple[AdoptedTopic, ...]
    cluster_id: str | None
    is_clean: bool
    first_producer_id: int
    checkpoints: Mapping[str, Mapping[TopicPartition, int]]
    refusals: tuple[str, ...]
    words: tuple[str, ...]


def plan_adoption(
    directories: Sequence[KafkaDirectory],
    *,
    without: Collection[str] = (),
    fill_gaps: bool = False,
    new_id: Callable[[], UUID],
) -> AdoptionPlan:
    """The plan for all directories of one stopped broker."""
    refusals: list[str] = []
    words: list[str] = []
    owners = {(directory.cluster_id, directory.node_id) for directory in directories}
    if len(owners) > 1:
        told = ", ".join(f"node {node} of cluster {cluster}" for cluster, node in sorted(owners, key=str))
        refusals.append(f"the directories belong to different brokers: {told}")
    for directory in directories:
        words += [f"{directory.path / name}: {reason}" for name, reason in directory.aside.items()]
    metadata = next((each.metadata for each in directories if each.metadata is not None), None)
    if metadata is None:
        words.append(
            "there is no metadata log here, so the topics' settings are not known: they get retention.ms=-1"
            " (nothing is deleted by age), and cleanup.policy=compact where Kafka's cleaner had been"
        )
    by_topic: dict[str, dict[int, KafkaPartition]] = {}
    for directory in directories:
        for partition in directory.partitions:
            name = partition.name
            if name.topic in without:
                continue
            known = by_topic.setdefault(name.topic, {})
            if name.partition in known:
                refusals.append(
                    f"{name} is in {known[name.partition].directory} and in {partition.directory}"
                )
            known[name.partition] = partition
    compacted = {name.topic for each in directories for name in each.checkpoints[CLEANER_OFFSETS]}
    topics: list[AdoptedTopic] = []
    for topic, partitions in sorted(by_topic.items()):
        planned = _planned(topic, partitions, metadata, refusals, words, fill_gaps=fill_gaps, new_id=new_id)
        if planned is None:
            continue
        topic_id, kraft, count = planned
        topics.append(
            AdoptedTopic(
                name=topic,
                topic_id=topic_id,
                partitions=tuple(partitions.get(number) for number in range(count)),
                leader_epochs=tuple(_epoch(partitions.get(number), kraft, number) for number in range(count)),
                configs=_configs(topic, metadata, words, is_compacted=topic in compacted),
            )
        )
    for partition in (each for topic in topics for each in topic.found):
        if partition.fault is not None:
            refusals.append(f"{partition.name}: {partition.fault}")
        words += _words_about(partition)
    adopted = {partition.name for topic in topics for partition in topic.found}
    return AdoptionPlan(
        topics=tuple(topics),
        cluster_id=directories[0].cluster_id,
        is_clean=all(directory.is_clean for directory in directories),
        first_producer_id=max(
            [metadata.next_producer_id if metadata else 0]
            + [partition.producer_id_max + 1 for each in directories for partition in each.partitions]
        ),
        checkpoints={
            name: {
                partition: offset
                for directory in directories
                for partition, offset in directory.checkpoints[name].items()
                if partition in adopted
            }
            for name in directories[0].checkpoints
        },
        refusals=tuple(refusals),
        words=tuple(words),
    )


def topic_is_for_clients(topic: str) -> bool:
    """Whether it is none of Kafka's own topics."""
    return not is_internal(topic)


def _words_about(partition: KafkaPartition) -> list[str]:
    words = []
    if partition.torn_bytes:
        words.append(f"{partition.name}: {partition.torn_bytes} torn bytes at its end will be cut")
    if partition.open_transactions:
        words.append(
            f"{partition.name}: {partition.open_transactions} transactions are open; readers of committed"
            " records stop before them"
        )
    return words


def _planned(
    topic: str,
    partitions: Mapping[int, KafkaPartition],
    metadata: KraftMetadata | None,
    refusals: list[str],
    words: list[str],
    *,
    fill_gaps: bool,
    new_id: Callable[[], UUID],
) -> tuple[UUID, KraftTopic | None, int] | None:
    """(id, what the metadata log says of it, partition count); None for a topic that is not taken."""
    ids = {partition.topic_id for partition in partitions.values()} - {None}
    if len(ids) > 1:
        refusals.append(f"{topic}: its partitions have different topic ids")
        return None
    found = next(iter(ids), None)
    kraft = None
    if metadata is not None:
        kraft = metadata.topics.get(found) if found is not None else None
        if kraft is None or kraft.name != topic:
            words.append(f"{topic}: Kafka's metadata does not know it any more; left where it is")
            return None
    if found is None:
        words.append(f"{topic}: has no topic id yet and gets one")
    count = max([*partitions, *(kraft.leader_epochs if kraft else ())]) + 1
    missing = [number for number in range(count) if number not in partitions]
    if missing:
        told = ", ".join(map(str, missing))
        if not fill_gaps:
            refusals.append(
                f"{topic}: partitions {told} of {count} are not here; name their directory as well, leave the"
                f" topic out, or have them made empty by --fill-gaps"
            )
            return None
        words.append(f"{topic}: partitions {told} of {count} are not here and are made empty")
    return found or new_id(), kraft, count


def _epoch(partition: KafkaPartition | None, kraft: KraftTopic | None, number: int) -> int:
    known = kraft.leader_epochs.get(number, -1) if kraft else -1
    return max(known, partition.leader_epoch if partition else -1) + 1


def _configs(
    topic: str, metadata: KraftMetadata | None, words: list[str], *, is_compacted: bool
) -> dict[str, str]:
    if metadata is None:
        if is_compacted or not topic_is_for_clients(topic):
            return {_CLEANUP: _COMPACT}
        return {_RETENTION_MS: "-1"}
    configs: dict[str, str] = {}
    for name, value in sorted(metadata.configs.get(topic, {}).items()):
        try:
            validate_topic_configs({name: value})
        except ConfigurationError as fault:
            words.append(f"{topic}: {name}={value} is not taken over: {fault}")
            continue
        configs[name] = value
    return configs
