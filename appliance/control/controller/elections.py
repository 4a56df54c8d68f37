"""Which partitions get another leader by request: preferred or unclean, one by one or all; nothing done yet.

| refused with | when |
|---|---|
| UNKNOWN_TOPIC_OR_PARTITION | no such topic or partition |
| ELECTION_NOT_NEEDED | it is led as was asked; left out of the answer where all partitions were asked for |
| PREFERRED_LEADER_NOT_AVAILABLE | the first replica is not in sync, or does not live |
| ELIGIBLE_LEADERS_NOT_AVAILABLE | no replica lives |

And the balance: a slot is out of it when others lead more than so many percent of the partitions that it should lead
(whose first replica it is). Then each of those goes back to it that can. Partitions on their way to other replicas are
left alone.

Sources: Kafka's `ReplicationControlManager.electLeaders`, release 4.3;
`KafkaController.checkAndTriggerAutoLeaderRebalance`, release 3.9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from appliance.channels.control_channel import ElectLeaders, PartitionOutcome
from appliance.cluster import PartitionImage, TopicImage
from appliance.control.controller.partition_changes import is_reassigning, preferred, unclean, without_storage
from appliance.control.controller.reassignment import Decided, partition_of
from appliance.control.controller.slot_states import PartitionSlots, SlotStates
from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode

Failed = Collection[tuple[str, int, int]]
"""Topic, partition and slot of copies whose storage failed in this life of who has them."""


def plan_elections(
    request: ElectLeaders,
    topics: Mapping[str, TopicImage],
    slots: SlotStates,
    *,
    failed: Failed = frozenset(),
    leads_nothing: Callable[[str, PartitionImage], bool] = lambda _topic, _partition: False,
) -> tuple[Decided, list[PartitionOutcome]]:
    """What is to change, and what is said of each partition once it has. `leads_nothing`: whether the storage of a
    partition's leader has failed, so that there is none."""
    asked: Iterable[tuple[str, int]] = request.partitions or ()
    if request.partitions is None:
        asked = ((topic.name, each.partition) for topic in topics.values() for each in topic.partitions)
    elect = unclean if request.unclean else preferred
    decided: Decided = {}
    outcomes: list[PartitionOutcome] = []
    after: PartitionImage | None
    for name, number in asked:
        try:
            partition = partition_of(topics, name, number)
            seen = slots.of(topics[name].topic_id, number)
            if request.unclean and leads_nothing(name, partition):
                after = _instead_of_failed(name, partition, seen, failed)
            else:
                after = elect(partition, seen)
        except RejectedRequest as refusal:
            if request.partitions is not None or refusal.code != ErrorCode.ELECTION_NOT_NEEDED:
                outcomes.append(PartitionOutcome(name, number, refusal.code, refusal.message))
            continue
        if after is not None:
            decided.setdefault(name, {})[number] = after
        outcomes.append(PartitionOutcome(name, number))
    return decided, outcomes


def _instead_of_failed(
    name: str, partition: PartitionImage, slots: PartitionSlots, failed: Failed
) -> PartitionImage:
    broken = [slot for slot in partition.replicas if (name, partition.partition, slot) in failed]
    after = without_storage(
        partition, partition.leader, slots, lasting=False, broken=broken, unclean_allowed=True
    )
    if after is None:
        raise RejectedRequest(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            "No live replica can lead yet; one may be starting.",
        )
    return after


def is_away(partition: PartitionImage) -> bool:
    """Whether another than the preferred one leads."""
    return partition.leader != partition.replicas[0]


def plan_balance(
    topics: Mapping[str, TopicImage],
    slots: SlotStates,
    *,
    percentage_max: int,
    failed: Failed = frozenset(),
) -> Decided:
    """The partitions that go back to slots that are out of balance, but to none whose copy has failed."""
    all_of: Counter[int] = Counter()
    away_from: Counter[int] = Counter()
    for topic in topics.values():
        for each in topic.partitions:
            all_of[each.replicas[0]] += 1
            away_from[each.replicas[0]] += is_away(each)
    lopsided = {slot for slot, away in away_from.items() if away * 100 > percentage_max * all_of[slot]}
    decided: Decided = {}
    for topic in topics.values():
        for each in topic.partitions:
            if each.replicas[0] not in lopsided or not is_away(each) or is_reassigning(each):
                continue
            if (topic.name, each.partition, each.replicas[0]) in failed:
                continue
            try:
                after = preferred(each, slots.of(topic.topic_id, each.partition))
            except RejectedRequest:
                continue
            if after is not None:
                decided.setdefault(topic.name, {})[each.partition] = after
    return decided
