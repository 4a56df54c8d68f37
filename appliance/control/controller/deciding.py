"""What a turn of the controller decides about topics and settings: requests in, plans for the store, the books and the
answers out.

The books are changed at once, so that the next request of the same turn sees it, and every change leaves behind how it
is undone: what the store could not take has not happened.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from uuid import UUID

import msgspec
from msgspec.structs import replace

from appliance.channels.control_channel import (
    AclOutcome,
    AclOutcomes,
    AlterAcls,
    AlterConfigs,
    AlteredQuotas,
    AlteredResource,
    AlterQuotas,
    AlterScram,
    ConfigOutcome,
    CreatePartitions,
    CreateToken,
    CreateTopics,
    DeleteTopics,
    ExpireToken,
    QuotaOutcome,
    QuotaOutcomes,
    RenewToken,
    TopicOutcome,
)
from appliance.channels.roles import services_roles
from appliance.clock import Clock
from appliance.cluster import AclBinding, PartitionImage, QuotaEntity, TopicImage, is_internal
from appliance.config import BrokerConfigs, Settings
from appliance.control.controller.acl_commands import check_filter, check_new, text_bytes
from appliance.control.controller.acl_store import (
    Resource,
    acl_alteration,
    all_of,
    resource_of,
    written_bytes,
)
from appliance.control.controller.cluster_state import ClusterState, Deletion
from appliance.control.controller.config_commands import Altering, named_twice, plan_alteration
from appliance.control.controller.config_store import broker_alteration, group_alteration, topic_alteration
from appliance.control.controller.entity_configs import PendingTree, alter_configs
from appliance.control.controller.leader_selection import of_new_partition
from appliance.control.controller.mutation_budgets import MutationBudgets
from appliance.control.controller.outcomes import blamed_quotas, planned, refused
from appliance.control.controller.quota_commands import check_entity, plan_quotas
from appliance.control.controller.quota_store import Quotas, entity_path, quota_changes
from appliance.control.controller.scram_commands import plan_scram
from appliance.control.controller.slot_states import SlotStates
from appliance.control.controller.takeover import new_id
from appliance.control.controller.token_commands import plan_token
from appliance.control.controller.topic_commands import (
    TopicPlan,
    duplicates,
    find_doomed,
    plan_growth,
    plan_topic,
)
from appliance.control.controller.topic_store import (
    creation,
    deletion_mark,
    growth,
)
from appliance.control.controller.wave import Ask, ConfigAsk, ImageAsk
from appliance.control.store.metadata_store import MetadataStore, Operation
from appliance.errors import ApplianceDefect, CorruptFile, RejectedRequest, StorageFault
from appliance.protocol.apis.describe_configs import ResourceType
from appliance.protocol.errors import ErrorCode


class Turn(msgspec.Struct):
    """What one turn decided, until the store has it."""

    operations: list[Operation] = msgspec.field(default_factory=list)
    first: dict[str, int] = msgspec.field(default_factory=dict)
    doomed: dict[str, Deletion] = msgspec.field(default_factory=dict)
    altered: set[str] = msgspec.field(default_factory=set)
    brokers_altered: bool = False
    groups_altered: bool = False
    access_altered: bool = False
    asks: list[Ask] = msgspec.field(default_factory=list)
    config_asks: list[ConfigAsk] = msgspec.field(default_factory=list)
    image_asks: list[ImageAsk] = msgspec.field(default_factory=list)
    undo: list[Callable[[], None]] = msgspec.field(default_factory=list)


class Deciding:
    """Single-threaded; belongs to the controller, which carries out what it decides."""

    __slots__ = (
        "_budgets",
        "_clock",
        "_controller_epoch",
        "_services",
        "_settings",
        "_slots",
        "_state",
        "_store",
    )

    def __init__(
        self,
        state: ClusterState,
        store: MetadataStore,
        *,
        slots: SlotStates,
        settings: Settings,
        controller_epoch: int,
        clock: Clock,
    ) -> None:
        """`store` is only read here."""
        self._budgets = MutationBudgets(clock)
        self._clock = clock
        self._state = state
        self._store = store
        self._slots = slots
        self._settings = settings
        self._services = frozenset(role.token.encode() for role in services_roles(settings))
        self._controller_epoch = controller_epoch

    def plan(
        self,
        turn: Turn,
        sender: bytes,
        number: int,
        request: CreateTopics
        | CreatePartitions
        | DeleteTopics
        | AlterConfigs
        | AlterAcls
        | AlterQuotas
        | AlterScram
        | CreateToken
        | RenewToken
        | ExpireToken,
    ) -> None:
        match request:
            case CreateTopics():
                self._plan_topics(turn, sender, number, request)
            case CreatePartitions():
                self._plan_growth(turn, sender, number, request)
            case DeleteTopics():
                self._plan_deletions(turn, sender, number, request)
            case AlterConfigs():
                self._plan_alterations(turn, sender, number, request)
            case AlterAcls():
                self._plan_acls(turn, sender, number, request)
            case AlterScram():
                outcomes = plan_scram(turn, self._state, self._store, request)
                turn.image_asks.append(ImageAsk(sender, number, outcomes))
            case CreateToken() | RenewToken() | ExpireToken():
                tokens = self._settings.delegation_tokens
                outcome = plan_token(turn, self._state, tokens, request, now_ms=self._clock.now_ms())
                turn.image_asks.append(ImageAsk(sender, number, outcome))
            case AlterQuotas():
                self._plan_quotas(turn, sender, number, request)

    def _plan_topics(self, turn: Turn, sender: bytes, number: int, request: CreateTopics) -> None:
        broker = self._settings.broker
        twice = duplicates([wanted.name for wanted in request.topics])
        outcomes: list[TopicOutcome] = []
        spending = self._budgets.spending(request.client, self._state.shown_quotas)
        request_left = broker.max_partitions_per_request
        if request.partitions_left is not None:
            request_left = min(request_left, request.partitions_left)
        for name in twice:
            outcomes.append(
                refused(name, RejectedRequest(ErrorCode.INVALID_REQUEST, "Duplicate topic name."))
            )
        for wanted in request.topics:
            if wanted.name in twice:
                continue
            try:
                plan = plan_topic(
                    wanted,
                    self._state.existing(),
                    topic_id=new_id(),
                    broker=broker,
                    request_left=request_left,
                    topic_defaults=self.topic_defaults(),
                    can_delay=self._settings.services.processes > 0,
                    by_services=sender.rpartition(b".g")[0] in self._services,
                )
                spending.spend(plan.partition_count)
            except RejectedRequest as refusal:
                outcomes.append(self._refused_creation(wanted.name, refusal))
                continue
            request_left -= len(plan.replicas)
            if not request.validate_only:
                self._decide(turn, plan)
            outcomes.append(planned(plan, validate_only=request.validate_only))
        turn.asks.append(Ask(sender, number, outcomes, spending.throttle_ms))

    def _refused_creation(self, name: str, refusal: RejectedRequest) -> TopicOutcome:
        """Who creates a topic that exists is told its id, so that automatic creation can go on with it."""
        topic = self._state.topics.get(name)
        outcome = refused(name, refusal)
        if topic is None:
            return outcome
        return TopicOutcome(
            name=name,
            error=outcome.error,
            message=outcome.message,
            topic_id=topic.topic_id,
            partitions=len(topic.partitions),
            replication_factor=len(topic.partitions[0].replicas),
        )

    def _plan_growth(self, turn: Turn, sender: bytes, number: int, request: CreatePartitions) -> None:
        limit = self._settings.broker.max_partitions_per_request
        spending = self._budgets.spending(request.client, self._state.shown_quotas)
        try:
            plan = plan_growth(request, self._state.existing(), request_left=limit)
            spending.spend(len(plan.replicas))
        except RejectedRequest as refusal:
            outcome = refused(request.name, refusal)
        else:
            if not request.validate_only:
                self._decide(turn, plan)
            outcome = planned(plan, validate_only=request.validate_only)
        turn.asks.append(Ask(sender, number, [outcome], spending.throttle_ms))

    def _plan_deletions(self, turn: Turn, sender: bytes, number: int, request: DeleteTopics) -> None:
        outcomes: list[TopicOutcome] = []
        spending = self._budgets.spending(request.client, self._state.shown_quotas)
        named = list(request.names)
        twice = duplicates(named) | duplicates([str(each) for each in request.topic_ids])
        doomed: list[str | UUID] = [*dict.fromkeys(named), *dict.fromkeys(request.topic_ids)]
        names = self._names_of(request.topic_ids)
        for wanted in doomed:
            name, topic_id = (wanted, None) if isinstance(wanted, str) else ("", wanted)
            try:
                if str(wanted) in twice:
                    raise RejectedRequest(ErrorCode.INVALID_REQUEST, "Duplicate topic in the request.")
                topic = find_doomed(wanted, self._state.existing(), names, broker=self._settings.broker)
                spending.spend(len(topic.partitions))
            except RejectedRequest as refusal:
                outcomes.append(refused(name, refusal, topic_id=topic_id))
                continue
            self._doom(turn, topic)
            outcomes.append(TopicOutcome(topic.name, topic_id=topic.topic_id))
        turn.asks.append(Ask(sender, number, outcomes, spending.throttle_ms))

    def _names_of(self, topic_ids: Collection[UUID]) -> dict[UUID, str]:
        """One look at all topics, however many ids are asked for."""
        if not topic_ids:
            return {}
        wanted = frozenset(topic_ids)
        return {
            topic.topic_id: name for name, topic in self._state.topics.items() if topic.topic_id in wanted
        }

    def _plan_alterations(self, turn: Turn, sender: bytes, number: int, request: AlterConfigs) -> None:
        state = self._state
        altering = Altering(
            state.topics,
            state.broker_configs,
            state.group_configs,
            self._slots.all,
            self.topic_defaults(),
            self._settings.group,
            self._settings.services.processes > 0,
        )
        twice = named_twice(request.resources)
        outcomes: list[ConfigOutcome] = []
        for resource in request.resources:
            kind, name = resource.type, resource.name
            try:
                if (kind, name) in twice:
                    raise RejectedRequest(
                        ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                    )
                configs = plan_alteration(resource, altering, replace=request.replace)
            except RejectedRequest as refusal:
                outcomes.append(ConfigOutcome(kind, name, refusal.code, refusal.message))
                continue
            if not request.validate_only:
                self._alter(turn, resource, configs)
                altering = replace(
                    altering, broker_configs=state.broker_configs, group_configs=state.group_configs
                )
            outcomes.append(ConfigOutcome(kind, name))
        turn.config_asks.append(ConfigAsk(sender, number, outcomes))

    def _alter(self, turn: Turn, resource: AlteredResource, configs: dict[str, str]) -> None:
        if resource.type == ResourceType.TOPIC:
            self._alter_topic(turn, self._state.topics[resource.name], configs)
        elif resource.type == ResourceType.GROUP:
            self._alter_group(turn, resource.name, configs)
        elif resource.type == ResourceType.BROKER_LOGGER:
            self._alter_broker(turn, "", configs)
        else:
            self._alter_broker(turn, resource.name, configs)

    def _plan_acls(self, turn: Turn, sender: bytes, number: int, request: AlterAcls) -> None:
        acls = dict(self._state.acls)
        count, all_bytes = sum(map(len, acls.values())), self._state.acl_bytes
        touched: dict[Resource, None] = {}
        node_bytes: dict[Resource, int] = {}
        created: list[AclOutcome] = []
        for acl in request.created:
            resource = resource_of(acl)
            before = acls.get(resource, frozenset())
            if acl in before:
                created.append(AclOutcome())
                continue
            if resource not in node_bytes:
                node_bytes[resource] = sum(map(written_bytes, before))
            resource_bytes = node_bytes[resource] + written_bytes(acl)
            try:
                check_new(acl, count=count, all_bytes=all_bytes, resource_bytes=resource_bytes)
            except RejectedRequest as refusal:
                created.append(AclOutcome(refusal.code, refusal.message))
                continue
            acls[resource] = before | {acl}
            touched[resource] = None
            node_bytes[resource] = resource_bytes
            count += 1
            all_bytes += text_bytes(acl)
            created.append(AclOutcome())
        deleted: list[AclOutcome] = []
        doomed: set[AclBinding] = set()
        for wanted in request.deleted:
            try:
                check_filter(wanted)
            except RejectedRequest as refusal:
                deleted.append(AclOutcome(refusal.code, refusal.message))
                continue
            # What two filters mean is named by both, as Kafka does.
            meant = sorted(acl for some in self._state.acls.values() for acl in some if wanted.matches(acl))
            doomed.update(meant)
            deleted.append(AclOutcome(acls=tuple(meant)))
        for acl in sorted(doomed):
            resource = resource_of(acl)
            acls[resource] = acls[resource] - {acl}
            touched[resource] = None
        self._alter_acls(turn, acls, touched)
        turn.image_asks.append(ImageAsk(sender, number, AclOutcomes(tuple(created), tuple(deleted))))

    def _alter_acls(
        self, turn: Turn, acls: dict[Resource, frozenset[AclBinding]], touched: dict[Resource, None]
    ) -> None:
        if not touched:
            return
        state = self._state
        stored, shown, known_folders = state.acls, state.shown_acls, state.acl_folders
        stored_bytes = state.acl_bytes
        state.acl_folders = set(known_folders)
        for resource in touched:
            folder = resource[:2]
            turn.operations += acl_alteration(
                resource,
                acls[resource],
                is_new=resource not in stored,
                has_folder=folder in state.acl_folders,
            )
            state.acl_folders.add(folder)
            state.acl_bytes += sum(map(text_bytes, acls[resource])) - sum(
                map(text_bytes, stored.get(resource, ()))
            )
        # New mappings: what fails is undone by taking the old ones back. A node without rules may have been there.
        state.acls = {resource: some for resource, some in acls.items() if some or resource not in touched}
        state.shown_acls = all_of(state.acls.values())
        turn.access_altered = True

        def undo() -> None:
            state.acls, state.shown_acls, state.acl_folders = stored, shown, known_folders
            state.acl_bytes = stored_bytes

        turn.undo.append(undo)

    def _plan_quotas(self, turn: Turn, sender: bytes, number: int, request: AlterQuotas) -> None:
        quotas = dict(self._state.quotas)
        altered: dict[QuotaEntity, None] = {}
        outcomes: list[QuotaOutcome] = []
        for asked in request.entities:
            try:
                entity = self._plan_entity(asked, quotas)
            except RejectedRequest as refusal:
                outcomes.append(QuotaOutcome(int(refusal.code), refusal.message))
                continue
            altered[entity] = None
            outcomes.append(QuotaOutcome())
        answer = QuotaOutcomes(tuple(outcomes))
        if not request.validate_only:
            try:
                self._alter_quotas(turn, quotas, altered)
            except (StorageFault, CorruptFile) as fault:
                answer = blamed_quotas(fault, answer)
        turn.image_asks.append(ImageAsk(sender, number, answer))

    @staticmethod
    def _plan_entity(asked: AlteredQuotas, quotas: Quotas) -> QuotaEntity:
        """Plan one entity of a request in `quotas`."""
        entity = check_entity(asked.entity)
        after = plan_quotas(asked, entity, quotas.get(entity, {}), count=len(quotas))
        if after:
            quotas[entity] = after
        else:
            quotas.pop(entity, None)
        return entity

    def _alter_quotas(self, turn: Turn, quotas: Quotas, altered: Collection[QuotaEntity]) -> None:
        """Raises StorageFault or CorruptFile if the nodes of the entities cannot be read. Then nothing is planned."""
        state = self._state
        stored, shown = state.quotas, state.shown_quotas
        changes = {
            entity_path(entity): changed
            for entity in altered
            if (changed := quota_changes(stored.get(entity, {}), quotas.get(entity, {})))
        }
        if not changes:
            return
        operations = turn.operations.copy()
        tree = PendingTree(self._store, operations, changes)
        for path, changed in changes.items():
            alter_configs(tree, path, changed)
        turn.operations = operations
        state.set_quotas(quotas)
        turn.access_altered = True

        def undo() -> None:
            state.quotas, state.shown_quotas = stored, shown

        turn.undo.append(undo)

    def topic_defaults(self) -> dict[str, str]:
        """What is set on all brokers makes this of the topic settings."""
        return BrokerConfigs.of_every(self._state.broker_configs).topic_defaults(self._settings)

    def _alter_topic(self, turn: Turn, before: TopicImage, configs: dict[str, str]) -> None:
        if configs == before.configs:
            return
        turn.operations += topic_alteration(before.name, configs)
        turn.altered.add(before.name)
        self._state.add(replace(before, configs=configs))
        turn.undo.append(lambda: self._state.add(before))

    def _alter_broker(self, turn: Turn, node_id: str, configs: dict[str, str]) -> None:
        stored = self._state.broker_configs
        before = stored.get(node_id)
        if configs == (before or {}):
            return
        turn.operations += broker_alteration(node_id, configs, is_new=before is None)
        turn.brokers_altered = True
        # A new mapping: the image keeps the one it was given.
        self._state.broker_configs = {**stored, node_id: configs}

        def undo() -> None:
            self._state.broker_configs = stored

        turn.undo.append(undo)

    def _alter_group(self, turn: Turn, group_id: str, configs: dict[str, str]) -> None:
        stored = self._state.group_configs
        before = stored.get(group_id, {})
        if configs == before:
            return
        turn.operations += group_alteration(group_id, configs, is_new=not before)
        turn.groups_altered = True
        others = {other: what for other, what in stored.items() if other != group_id}
        # A new mapping: the image keeps the one it was given.
        self._state.group_configs = {**others, group_id: configs} if configs else others

        def undo() -> None:
            self._state.group_configs = stored

        turn.undo.append(undo)

    def _decide(self, turn: Turn, plan: TopicPlan) -> None:
        """Gives the planned partitions rows and leaders, and takes the topic into the books."""
        state = self._state
        before = state.topics.get(plan.name)
        added: list[PartitionImage] = []
        for index, replicas in enumerate(plan.replicas):
            chosen = of_new_partition(replicas, state.live)
            if chosen is None:
                raise ApplianceDefect(f"no replica of {plan.name} has a slot: {replicas}")
            row, incarnation = state.rows.take()
            added.append(
                PartitionImage(plan.first + index, row, incarnation, chosen.leader, 0, replicas, chosen.isr)
            )
        if before is None:
            topic = TopicImage(
                plan.name, plan.topic_id, tuple(added), dict(plan.configs), is_internal(plan.name)
            )
            turn.operations += creation(topic, self._controller_epoch)
        else:
            topic = replace(before, partitions=(*before.partitions, *added))
            turn.operations += growth(topic, plan.first, self._controller_epoch)
        state.add(topic)
        turn.first.setdefault(plan.name, plan.first)

        def undo() -> None:
            for partition in reversed(added):
                state.rows.untake(partition.row)
            if before is None:
                state.remove(plan.name)
            else:
                state.add(before)

        turn.undo.append(undo)

    def _doom(self, turn: Turn, topic: TopicImage) -> None:
        state = self._state
        turn.operations += deletion_mark(topic.name)
        turn.first.pop(topic.name, None)
        turn.altered.discard(topic.name)
        turn.doomed[topic.name] = state.deletions[topic.name] = Deletion.of(topic, self._slots.all)
        state.remove(topic.name)

        def undo() -> None:
            del state.deletions[topic.name]
            state.add(topic)

        turn.undo.append(undo)
