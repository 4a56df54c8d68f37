"""What the controller knows: every topic there is, which of it clients may see, what is being deleted.

A topic *exists* from the store's commit on; it is *visible* (in the image) once the workers serve it, and
stops being visible before any of them lets go. So what is visible always exists, and never the other way
round by force.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from appliance.cluster import (
    AclBinding,
    ClientQuotas,
    DelegationToken,
    PartitionImage,
    ScramCredential,
    TopicImage,
)
from appliance.control.controller.acl_store import Resource
from appliance.control.controller.partition_rows import PartitionRows
from appliance.control.controller.quota_store import Quotas
from appliance.control.controller.topic_commands import Existing, metric_name
from appliance.control.controller.user_store import ScramKey

NO_ROW = -1


class Deletion(msgspec.Struct):
    """A topic that is going; `waiting` are the copies whose files may still be there, as (slot, partition)."""

    topic: TopicImage
    waiting: set[tuple[int, int]]

    @classmethod
    def of(cls, topic: TopicImage, slots: Collection[int]) -> Deletion:
        """`slots`: those of this configuration. What lies elsewhere is never seen again.

        Copies that were leaving are among them: a removal that is late must not meet a new topic of this name.
        """
        return cls(
            topic,
            {
                (slot, partition.partition)
                for partition in topic.partitions
                for slot in (*partition.replicas, *partition.leaving)
                if slot in slots
            },
        )


class ClusterState:
    """Topics by name. `visible` is what the next image says; `dirty` that it says something new.

    `broker_configs`: node id, or "" for all brokers → what was set there; `group_configs`: group id → the same,
    `client_metrics`: name of a subscription → the same; `has_client_metrics_folder`: whether there was one ever.
    `acls`: the rules of every resource that has some, `acl_folders`: of which types and patterns there were any ever,
    `acl_bytes`: how long their texts are; `shown_acls`: all rules, as the next image has them. `scram`: every SCRAM
    credential, `shown_scram`: the same, as the next image has them. `quotas`: of every entity that has some, and
    `shown_quotas` the same, as the next image has them. `tokens`: every delegation token by its id, `shown_tokens` the
    same, as the next image has them; `has_token_folder`: whether there was one ever.
    """

    __slots__ = (
        "acl_bytes",
        "acl_folders",
        "acls",
        "broker_configs",
        "client_metrics",
        "deletions",
        "dirty",
        "group_configs",
        "has_client_metrics_folder",
        "has_token_folder",
        "live",
        "names_by_metric",
        "quotas",
        "rows",
        "scram",
        "shown_acls",
        "shown_quotas",
        "shown_scram",
        "shown_tokens",
        "tokens",
        "topics",
        "visible",
    )

    def __init__(self, rows: PartitionRows, live: Sequence[int]) -> None:
        self.rows = rows
        self.live = tuple(live)
        self.topics: dict[str, TopicImage] = {}
        self.visible: dict[str, TopicImage] = {}
        self.deletions: dict[str, Deletion] = {}
        self.names_by_metric: dict[str, set[str]] = {}
        self.broker_configs: dict[str, dict[str, str]] = {}
        self.group_configs: dict[str, dict[str, str]] = {}
        self.client_metrics: dict[str, dict[str, str]] = {}
        self.has_client_metrics_folder = False
        self.acls: dict[Resource, frozenset[AclBinding]] = {}
        self.acl_folders: set[tuple[int, int]] = set()
        self.acl_bytes = 0
        self.shown_acls: tuple[AclBinding, ...] = ()
        self.scram: dict[ScramKey, ScramCredential] = {}
        self.shown_scram: tuple[ScramCredential, ...] = ()
        self.quotas: Quotas = {}
        self.shown_quotas: tuple[ClientQuotas, ...] = ()
        self.tokens: dict[str, DelegationToken] = {}
        self.shown_tokens: tuple[DelegationToken, ...] = ()
        self.has_token_folder = False
        self.dirty = True

    def set_quotas(self, quotas: Quotas) -> None:
        """`quotas` are all that there are from now on; the mapping is kept, and not changed any more."""
        self.quotas = quotas
        self.shown_quotas = tuple(ClientQuotas(entity, quotas[entity]) for entity in quotas)

    def set_tokens(self, tokens: dict[str, DelegationToken]) -> None:
        """`tokens` are all that there are from now on; the mapping is kept, and not changed any more."""
        self.tokens = tokens
        self.shown_tokens = tuple(sorted(tokens.values()))

    def existing(self) -> Existing:
        """What checks look at; of this moment."""
        return Existing(self.topics, self.deletions, self.live, self.rows.free_count, self.names_by_metric)

    def add(self, topic: TopicImage) -> None:
        """A topic that is new, has grown, or has other settings."""
        self.topics[topic.name] = topic
        self.names_by_metric.setdefault(metric_name(topic.name), set()).add(topic.name)

    def remove(self, name: str) -> None:
        del self.topics[name]
        alike = self.names_by_metric[metric_name(name)]
        alike.discard(name)
        if not alike:
            del self.names_by_metric[metric_name(name)]

    def show(self, topic: TopicImage, partitions: tuple[PartitionImage, ...]) -> None:
        """Lets clients see `partitions`, the first ones of a topic that still exists, if they saw fewer until now."""
        current = self.topics.get(topic.name)
        if current is None or current.topic_id != topic.topic_id:
            return
        seen = self.visible.get(topic.name)
        if seen is not None and len(seen.partitions) >= len(partitions):
            return
        self.visible[topic.name] = (
            current if partitions == current.partitions else replace(current, partitions=partitions)
        )
        self.dirty = True

    def show_changed(self, name: str, changed: Mapping[int, PartitionImage]) -> None:
        """Lets clients see other leaders, ISRs and replicas of partitions that they see already."""
        seen = self.visible.get(name)
        if seen is not None:
            partitions = tuple(changed.get(each.partition, each) for each in seen.partitions)
            self.visible[name] = replace(seen, partitions=partitions)
            self.dirty = True

    def show_configs(self, name: str) -> None:
        """Lets clients see what is set on a topic by now, if they see the topic."""
        seen, current = self.visible.get(name), self.topics.get(name)
        if seen is not None and current is not None and seen.configs != current.configs:
            self.visible[name] = replace(seen, configs=current.configs)
            self.dirty = True

    def hide(self, name: str) -> None:
        if self.visible.pop(name, None) is not None:
            self.dirty = True

    def check(self) -> None:
        """What is visible exists; no row is used twice; rows in the book are the rows in use."""
        self.rows.check()
        for name, topic in self.visible.items():
            assert self.topics[name].topic_id == topic.topic_id
            for seen, there in zip(topic.partitions, self.topics[name].partitions, strict=False):
                assert (seen.partition, seen.row) == (there.partition, there.row)
                assert seen.incarnation == there.incarnation
        used = [each.row for topic in self.topics.values() for each in topic.partitions]
        used += [
            each.row
            for deletion in self.deletions.values()
            for each in deletion.topic.partitions
            if each.row != NO_ROW
        ]
        assert len(set(used)) == len(used)
        assert self.rows.statistics().used == len(used)
        assert not self.topics.keys() & self.deletions.keys()
