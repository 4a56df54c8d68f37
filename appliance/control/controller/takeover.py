"""Becoming the controller, and finding the cluster as the one before left it.

    win         create /controller (ephemeral) and set /controller_epoch one higher, both or neither
    fence       from here on every change carries Check(/controller_epoch, version): a later winner fences us out
    register    /brokers/ids/N for every slot that is live, and for no other, by a session that controllers hand on
    load        topics, their states, and the deletions that were not finished
    take over   rows and incarnations of the partitions in the image that is in shared memory, if there is one;
                a partition whose leader has no slot any more gets another leader, or none; who has no slot is
                not in sync

Where there is no image the whole instance has been started anew: then every partition with several replicas begins a
new leader epoch, since nothing is known of what its followers had heard of the leader before.

Source of the order: Kafka's `KafkaZkClient.registerControllerAndIncrementControllerEpoch` (KAFKA-6082),
release 3.9.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from uuid import UUID, uuid4

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from appliance.channels.partition_table import PartitionTable
from appliance.clock import Clock
from appliance.cluster import NO_LEADER, BrokerSlot, ClusterImage, PartitionImage, TopicImage, is_internal
from appliance.config.dynamic import SLOT_STOPPED
from appliance.config.sections.listeners import PLAINTEXT, Listener
from appliance.control.controller.acl_commands import text_bytes
from appliance.control.controller.acl_store import all_of, folders, load_acls
from appliance.control.controller.cluster_state import NO_ROW, ClusterState, Deletion
from appliance.control.controller.config_store import (
    load_broker_configs,
    load_client_metrics,
    load_group_configs,
)
from appliance.control.controller.leader_selection import of_new_partition
from appliance.control.controller.partition_changes import reviewed, without_storage
from appliance.control.controller.partition_rows import PartitionRows
from appliance.control.controller.quota_store import load_quotas
from appliance.control.controller.slot_states import PartitionSlots, SlotStates
from appliance.control.controller.token_store import has_folder, load_tokens
from appliance.control.controller.topic_store import StoredTopic, load_topics, new_states
from appliance.control.controller.user_store import load_scram
from appliance.control.store.errors import BadVersion, NodeExists
from appliance.control.store.metadata_store import Check, Create, Delete, MetadataStore, Operation, SetData
from appliance.control.store.znode_tree import (
    CLUSTER_ID,
    CONTROLLER,
    CONTROLLER_EPOCH,
    FEATURE,
    RESTORING,
    STANDING_PATHS,
    BrokerRecord,
    ClusterIdRecord,
    ConfigRecord,
    ControllerRecord,
    FeatureRecord,
    broker_path,
    decode,
    encode,
    id_text,
    partition_path,
    partition_state_path,
    topic_config_path,
)
from appliance.errors import CorruptFile, OperatorFault

CONTROLLER_ID = 0
"""The slot under which the controller stands in the store: there is one process for all slots."""

STATES_AT_ONCE = 500

UNCLEAN_ELECTION = "unclean.leader.election.enable"


class Fence(msgspec.Struct, frozen=True):
    """The controller's right to change the tree: stands at the head of every `multi`."""

    epoch: int
    check: Check


def win(store: MetadataStore, clock: Clock) -> Fence | None:
    """Becomes the controller; None when another one lives (a watch on /controller is left).

    Raises:
        CorruptFile: /controller_epoch holds no number.
    """
    plant(store)
    node = store.get(CONTROLLER_EPOCH)
    if not node.data.isdigit():
        raise CorruptFile(f"metadata node {CONTROLLER_EPOCH} does not hold a number")
    epoch = int(node.data) + 1
    record = ControllerRecord(brokerid=CONTROLLER_ID, timestamp=str(clock.now_ms()))
    claim: list[Operation] = [
        Create(CONTROLLER, encode(record), ephemeral=True),
        SetData(CONTROLLER_EPOCH, b"%d" % epoch, version=node.version),
    ]
    try:
        store.multi(claim)
    except (NodeExists, BadVersion):
        # Gone again between the two looks: the race is open.
        return None if store.exists(CONTROLLER, watch=True) else win(store, clock)
    return Fence(epoch, Check(CONTROLLER_EPOCH, version=node.version + 1))


def plant(store: MetadataStore, cluster: str | None = None) -> None:
    """Makes what is missing of the tree that every controller expects; one change, so one flush of the disk.

    `cluster` is the id of a cluster that comes from elsewhere.

    Raises:
        OperatorFault: a restore into this tree was interrupted, or is under way.
    """
    if store.exists(RESTORING) is not None:
        raise OperatorFault(
            f"the metadata store has {RESTORING}: a restore into it is under way or was interrupted; run `appliance"
            " restore` again, into a new data directory"
        )
    standing = dict.fromkeys(STANDING_PATHS, b"")
    standing[CONTROLLER_EPOCH] = b"0"
    standing[FEATURE] = encode(FeatureRecord())
    standing[CLUSTER_ID] = encode(ClusterIdRecord(cluster or id_text(new_id())))
    while missing := standing.keys() - store.get_many(standing):
        # A race with another first controller: what it made is there at the next look.
        with suppress(NodeExists):
            store.multi([Create(path, data) for path, data in standing.items() if path in missing])


def cluster_id(store: MetadataStore) -> str:
    """The cluster's id, made by its first controller."""
    node = store.get(CLUSTER_ID)
    return decode(ClusterIdRecord, node.data, path=CLUSTER_ID).id


def new_id() -> UUID:
    """A random id; none whose text begins with `-`, which a command line would take for an option.

    Source: Kafka's `Uuid.randomUuid`.
    """
    while True:
        identity = uuid4()
        if not id_text(identity).startswith("-"):
            return identity


def register(
    registrations: MetadataStore,
    slots: Sequence[BrokerSlot],
    fence: Fence,
    *,
    live: Iterable[int],
    clock: Clock,
    listeners: Sequence[Listener],
    begins_anew: bool = False,
) -> None:
    """Registers the slots that are `live` with all their listeners, and takes the registration of the others away.

    One that belongs to the session `registrations` is left as it is, unless the instance `begins_anew`; one of another
    session, which will end, is replaced in the same change, so nobody ever sees the slot missing.
    """
    alive = set(live)
    registered = registrations.get_many(broker_path(slot.node_id) for slot in slots)
    changes: list[Operation] = []
    for slot in slots:
        path = broker_path(slot.node_id)
        known = registered.get(path)
        ours = (
            known is not None and known.stat.ephemeral_owner == registrations.session_id and not begins_anew
        )
        if slot.node_id in alive and ours:
            continue
        if known is not None:
            changes.append(Delete(path))
        if slot.node_id in alive:
            changes.append(Create(path, encode(_registration(slot, clock, listeners)), ephemeral=True))
    registrations.multi([fence.check, *changes])


def _registration(slot: BrokerSlot, clock: Clock, listeners: Sequence[Listener]) -> BrokerRecord:
    """What others read in the store. As in Kafka, `host` and `port` are of a listener in plain text, or null and -1."""
    has_plain = any(each.protocol == PLAINTEXT for each in listeners)
    return BrokerRecord(
        host=slot.host if has_plain else None,
        port=slot.port if has_plain else -1,
        endpoints=tuple(each.advertised_text(slot.node_id) for each in listeners),
        listener_security_protocol_map={each.name: each.protocol for each in listeners},
        timestamp=str(clock.now_ms()),
        rack=UNSET if slot.rack is None else slot.rack,
    )


def stopped_slots(broker_configs: Mapping[str, Mapping[str, str]]) -> frozenset[int]:
    """The slots that their operator stopped."""
    return frozenset(
        int(node_id)
        for node_id, configs in broker_configs.items()
        if node_id and configs.get(SLOT_STOPPED) == "true"
    )


def take_over(
    store: MetadataStore,
    table: PartitionTable,
    *,
    slots: SlotStates,
    fence: Fence,
    image: ClusterImage | None,
    emptied: Collection[int] = (),
) -> ClusterState:
    """The state of the cluster. `image` is what shared memory holds of the controller before, None at first
    start; `slots` learns which of them are stopped. At first start the `emptied` slots have lost what they held:
    where another replica was in sync, it leads, and they are in sync no more.

    What clients see stays as the image has it where another leader was chosen: the new one does not lead yet.

    Raises:
        OperatorFault: there are more partitions than `max.partitions` allows.
        CorruptFile: a node of the tree does not hold what it should.
    """
    stored = load_topics(store)
    before = _partitions_by_identity(image, stored)
    rows = PartitionRows(table, controller_epoch=fence.epoch, living=before.values())
    broker_configs = load_broker_configs(store)
    slots.stopped = stopped_slots(broker_configs)
    state = ClusterState(rows, slots.live())
    state.broker_configs = broker_configs
    state.group_configs = load_group_configs(store)
    subscriptions = load_client_metrics(store)
    state.client_metrics = subscriptions or {}
    state.has_client_metrics_folder = subscriptions is not None
    state.acls, state.acl_folders = load_acls(store), folders(store)
    state.shown_acls = all_of(state.acls.values())
    state.scram = load_scram(store)
    state.shown_scram = tuple(sorted(state.scram.values()))
    state.acl_bytes = sum(map(text_bytes, state.shown_acls))
    state.set_quotas(load_quotas(store))
    state.set_tokens(load_tokens(store))
    state.has_token_folder = has_folder(store)
    wanted = sum(len(topic.replicas) for topic in stored if not topic.deleting)
    kept = sum(1 for topic in stored if not topic.deleting for key in _identities(topic) if key in before)
    if wanted - kept > rows.free_count:
        raise OperatorFault(
            f"max.partitions = {len(table)}: under the {wanted} partitions that there are; set it higher"
        )
    changes: list[Operation] = []
    for topic in stored:
        known = [before.get(key) for key in _identities(topic)]
        _make_missing(store, topic)
        if topic.deleting:
            state.deletions[topic.name] = Deletion.of(_going(topic, known), slots.all)
            continue
        loaded, changed = _loaded(
            topic, known, state, slots, begins_anew=image is None, emptied=emptied if image is None else ()
        )
        for partition in loaded.partitions:
            rows.write(partition)
        changes += new_states(topic.name, changed, fence.epoch)
        state.add(loaded)
        visible = [each for each in known if each is not None]
        if visible:
            state.show(loaded, tuple(map(_seen, visible, loaded.partitions)))
    for start in range(0, len(changes), STATES_AT_ONCE):
        store.multi([fence.check, *changes[start : start + STATES_AT_ONCE]])
    return state


def _seen(before: PartitionImage, now: PartitionImage) -> PartitionImage:
    """A partition as clients see it until its leader has said that it leads."""
    return now if before.leader_epoch == now.leader_epoch else before


def _identities(topic: StoredTopic) -> list[tuple[UUID, int]]:
    return [(topic.topic_id, number) for number in range(len(topic.replicas))]


def _partitions_by_identity(
    image: ClusterImage | None, stored: Sequence[StoredTopic]
) -> dict[tuple[UUID, int], PartitionImage]:
    """Partitions of the image that the store still has."""
    if image is None:
        return {}
    exist = {key for topic in stored for key in _identities(topic)}
    return {
        key: partition
        for topic in image.topics.values()
        for partition in topic.partitions
        if (key := (topic.topic_id, partition.partition)) in exist
    }


def _loaded(
    topic: StoredTopic,
    known: Sequence[PartitionImage | None],
    state: ClusterState,
    slots: SlotStates,
    *,
    begins_anew: bool,
    emptied: Collection[int],
) -> tuple[TopicImage, list[PartitionImage]]:
    """The topic with rows and leaders, and those of its partitions whose state must be written anew."""
    partitions: list[PartitionImage] = []
    changed: list[PartitionImage] = []
    unclean_allowed = topic.configs.get(UNCLEAN_ELECTION) == "true"
    for number, (replicas, record) in enumerate(zip(topic.replicas, topic.states, strict=True)):
        before = known[number]
        row, incarnation = (before.row, before.incarnation) if before else state.rows.take()
        if record is None:
            new = of_new_partition(replicas, state.live)
            leader, isr = (new.leader, new.isr) if new else (NO_LEADER, replicas)
            partition = PartitionImage(
                number, row, incarnation, leader, 0, replicas, isr, topic.epochs[number] + 1
            )
            changed.append(partition)
        else:
            stored = PartitionImage(
                number,
                row,
                incarnation,
                record.leader,
                record.leader_epoch,
                replicas,
                record.isr,
                topic.epochs[number],
                topic.adding.get(number, ()),
                topic.removing.get(number, ()),
                topic.leaving.get(number, ()),
            )
            seen = slots.of(topic.topic_id, number)
            held = _without(stored, emptied, seen)
            # A reassignment ends later, once the controller can say who is to delete what.
            partition = reviewed(held, seen, unclean_allowed=unclean_allowed, finishing=False) or held
            if begins_anew:
                partition = _begun_anew(stored, partition)
            if partition is not stored:
                # However many reasons there were, the store is written once.
                partition = replace(partition, partition_epoch=stored.partition_epoch + 1)
                changed.append(partition)
        partitions.append(partition)
    image = TopicImage(
        topic.name, topic.topic_id, tuple(partitions), dict(topic.configs), is_internal(topic.name)
    )
    return image, changed


def _without(partition: PartitionImage, emptied: Collection[int], slots: PartitionSlots) -> PartitionImage:
    """Where all that were in sync are empty there is nothing to choose: it stays as it is."""
    if set(partition.isr) <= set(emptied):
        return partition
    for slot in emptied:
        if slot in partition.isr:
            partition = without_storage(partition, slot, slots) or partition
    return partition


def _begun_anew(stored: PartitionImage, partition: PartitionImage) -> PartitionImage:
    alone = len(partition.replicas) == 1 or partition.leader == NO_LEADER
    if alone or partition.leader_epoch > stored.leader_epoch:
        return partition
    return replace(
        partition, leader_epoch=stored.leader_epoch + 1, partition_epoch=stored.partition_epoch + 1
    )


def _going(topic: StoredTopic, known: Sequence[PartitionImage | None]) -> TopicImage:
    partitions = tuple(
        PartitionImage(
            partition=number,
            row=before.row if before else NO_ROW,
            incarnation=before.incarnation if before else 0,
            leader=NO_LEADER,
            leader_epoch=before.leader_epoch if before else 0,
            replicas=replicas,
            isr=(),
            leaving=topic.leaving.get(number, ()),
        )
        for number, (replicas, before) in enumerate(zip(topic.replicas, known, strict=True))
    )
    return TopicImage(topic.name, topic.topic_id, partitions, dict(topic.configs))


def _make_missing(store: MetadataStore, topic: StoredTopic) -> None:
    """Nodes of a topic that somebody else put into the tree: Kafka's tools write the topic's alone."""
    if not topic.has_config_node:
        store.create(topic_config_path(topic.name), encode(ConfigRecord({})))
    for number, record in enumerate(topic.states):
        if record is None:
            store.ensure_path(partition_path(topic.name, number))
            store.create(partition_state_path(topic.name, number))
