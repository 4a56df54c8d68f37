"""The cluster as one broker tells it: slots, partitions and who leads them; and what the commands about them share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from appliance.cli.client import bootstrap_of
from appliance.cli.connecting import BrokerError, split_address
from appliance.cli.request import TooOld, request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.protocol.apis.list_partition_reassignments import ListPartitionReassignmentsRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.errors import ErrorCode

METADATA_VERSION: Final = 12
METADATA_OLDEST: Final = 4
"""Since then a question creates no topic (Apache Kafka 0.11)."""
IDS_VERSION: Final = 10
"""Since then topics have ids (Apache Kafka 2.8)."""
CLUSTER_VERSION: Final = 2
"""Since then stopped brokers are listed, too (Apache Kafka 4.0). Before 2.8 only Metadata lists brokers."""
LIST_VERSION: Final = 0
NO_LEADER: Final = -1


@dataclass(frozen=True, slots=True)
class SlotView:
    """A slot; `fenced` where clients are not told of it, since it is stopped or gone."""

    slot: int
    host: str
    port: int
    rack: str | None
    fenced: bool

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition; `leader` is None where nobody leads. `adding` and `removing`: what a reassignment does."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def is_under_replicated(self) -> bool:
        """Replicas that are being added are not missed yet. Source: Kafka's `Partition.isUnderReplicated`."""
        return bool(set(self.replicas) - set(self.adding) - set(self.isr))

    def as_json(self) -> dict[str, Any]:
        """The keys are stable."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "replicas": list(self.replicas),
            "isr": list(self.isr),
            "adding": list(self.adding),
            "removing": list(self.removing),
            "under_replicated": self.is_under_replicated,
        }


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Of one moment, nearly: three questions one after the other. Partitions by topic and number."""

    slots: tuple[SlotView, ...]
    partitions: tuple[PartitionView, ...]

    def of_topic(self, topic: str) -> tuple[PartitionView, ...]:
        """Raises BrokerError where there is no such topic."""
        found = tuple(each for each in self.partitions if each.topic == topic)
        if not found:
            raise BrokerError(f"there is no topic {topic}")
        return found


def first_that_answers(bootstrap: str) -> str:
    """One address of those in `bootstrap`; raises BrokerError when nobody listens at any."""
    reasons = []
    for address in bootstrap_of(bootstrap).split(","):
        host, port = split_address(address)
        try:
            _described(f"{host}:{port}", DescribeClusterRequest(False))
        except BrokerError as fault:
            reasons.append(str(fault))
        else:
            return f"{host}:{port}"
    raise BrokerError("; ".join(reasons))


def cluster_view(address: str) -> ClusterView:
    """What the broker at `address` tells."""
    cluster = _described(address, DescribeClusterRequest(False, include_fenced_brokers=True))
    metadata = request(
        address,
        ApiKey.METADATA,
        METADATA_VERSION,
        MetadataRequest(None, allow_auto_topic_creation=False),
        oldest=METADATA_OLDEST,
    )
    moving = _moving(address)
    brokers = (
        [
            SlotView(each.broker_id, each.host, each.port, each.rack, each.is_fenced)
            for each in cluster.brokers
        ]
        if cluster is not None
        else [SlotView(each.node_id, each.host, each.port, each.rack, False) for each in metadata.brokers]
    )
    partitions = [
        PartitionView(
            topic=topic.name,
            partition=each.partition_index,
            leader=None if each.leader_id == NO_LEADER else each.leader_id,
            leader_epoch=each.leader_epoch,
            replicas=tuple(each.replica_nodes),
            isr=tuple(each.isr_nodes),
            adding=tuple(move.adding_replicas)
            if (move := moving.get((topic.name, each.partition_index)))
            else (),
            removing=tuple(move.removing_replicas) if move else (),
        )
        for topic in metadata.topics
        for each in topic.partitions
    ]
    return ClusterView(
        tuple(sorted(brokers, key=lambda slot: slot.slot)),
        tuple(sorted(partitions, key=lambda each: (each.topic, each.partition))),
    )


def _described(address: str, body: DescribeClusterRequest) -> Any:
    """The answer to DescribeCluster; None of a broker that does not know the request."""
    try:
        return request(address, ApiKey.DESCRIBE_CLUSTER, CLUSTER_VERSION, body, oldest=0)
    except TooOld:
        return None


def _moving(address: str) -> dict[tuple[str, int], Any]:
    """What reassignments are doing, by topic and partition; empty where the broker cannot say (before 2.4)."""
    body = ListPartitionReassignmentsRequest(None)
    try:
        ongoing = request(address, ApiKey.LIST_PARTITION_REASSIGNMENTS, LIST_VERSION, body)
    except TooOld:
        return {}
    return {(topic.name, each.partition_index): each for topic in ongoing.topics for each in topic.partitions}


def named_partitions(view: ClusterView, texts: Sequence[str]) -> list[PartitionView]:
    """Those that `TOPIC` and `TOPIC:0,1` name, each once.

    Raises:
        BrokerError: there is none such.
        click.UsageError: the text is none of the two.
    """
    found: dict[tuple[str, int], PartitionView] = {}
    for text in texts:
        topic, colon, numbers = text.partition(":")
        of_topic = {each.partition: each for each in view.of_topic(topic)}
        for number in slot_numbers(f"{text!r}", numbers) if colon else of_topic:
            if number not in of_topic:
                raise BrokerError(f"there is no partition {topic}-{number}")
            found[topic, number] = of_topic[number]
    return list(found.values())


def slot_numbers(what: str, text: str) -> tuple[int, ...]:
    """`0,1,2` as numbers. Raises click.UsageError."""
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", text):
        raise click.UsageError(f"{what}: must be numbers with commas, such as 0,1,2")
    return tuple(map(int, text.split(",")))


def shown_slots(slots: Iterable[int]) -> str | None:
    """`0,1,2`, or None for a cell without any."""
    return ",".join(map(str, slots)) or None


def refusal_of(code: int, message: str | None) -> str:
    """One sentence for a person, with Kafka's name of the error for a search."""
    error = ErrorCode(code)
    return f"{(message or error.message).rstrip('.')} ({error.name})"


def require_slots(view: ClusterView, numbers: Iterable[int]) -> None:
    """Raises BrokerError where one of them is no slot."""
    there = {slot.slot for slot in view.slots}
    if unknown := sorted(set(numbers) - there):
        raise BrokerError(
            f"there is no slot {shown_slots(unknown)}; there {'is' if len(there) == 1 else 'are'}"
            f" {shown_slots(sorted(there))}"
        )
