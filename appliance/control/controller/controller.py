"""The controller's decisions: messages in, changes of store, table and image, commands and answers out.

It never waits: a turn takes the messages that have arrived, writes the store once for all of them, tells each
worker once, and returns; answers go out from `settle`, when the workers have confirmed. Who leads and who follows is
`leadership`'s, who is told what of it `copies`'. The steps of a change, and why a `kill -9` between any two of them
loses nothing:

| step | killed after it |
|---|---|
| create, grow: store written | the topic exists; the next controller gives it rows and a full Assign makes its files |
| rows written, workers told | the rows rest in quarantine; the full Assign names new ones |
| image published | done; only the answer is lost, and a client that asks again is told TOPIC_ALREADY_EXISTS |
| alter: store written | the next controller's full Assigns hold the new settings |
| delete: mark written | the next controller goes on from here |
| image published without it | as before |
| workers deleted the files | they are told again, and find nothing to delete |
| nodes and mark removed | done |
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from appliance.channels.control_channel import (
    AllocateProducerIds,
    AlterConfigs,
    AlterPartitions,
    AlterReassignments,
    Assigned,
    Body,
    ConfigOutcome,
    ConfigOutcomes,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    Envelope,
    PartitionsOffline,
    ReplicaHello,
    TopicOutcome,
    TopicOutcomes,
    WorkerHello,
)
from appliance.channels.metadata_image import ImagePublisher
from appliance.channels.roles import Role, RoleKind, owner_of
from appliance.clock import Clock
from appliance.cluster import INTERNAL_TOPICS, BrokerSlot, ClusterImage, PartitionImage, TopicImage
from appliance.config import BrokerConfigs, Settings
from appliance.control.controller.alarms import Alarm, Alarms
from appliance.control.controller.cluster_state import NO_ROW, ClusterState, Deletion
from appliance.control.controller.config_commands import Altering, named_twice, plan_alteration
from appliance.control.controller.config_store import broker_alteration, topic_alteration
from appliance.control.controller.copies import Copies, Order, Place
from appliance.control.controller.leader_selection import of_new_partition
from appliance.control.controller.leadership import RETRY_MS, Leadership
from appliance.control.controller.outcomes import blamed, blamed_configs, planned, refused
from appliance.control.controller.partition_commands import PartitionCommands
from appliance.control.controller.producer_ids import allocate
from appliance.control.controller.slot_states import SlotStates
from appliance.control.controller.takeover import CONTROLLER_ID, Fence, new_id, register, stopped_slots
from appliance.control.controller.topic_commands import (
    TopicPlan,
    duplicates,
    find_doomed,
    plan_growth,
    plan_topic,
)
from appliance.control.controller.topic_store import (
    OPERATIONS_AT_ONCE,
    creation,
    deletion_mark,
    forgetting,
    growth,
    packed,
)
from appliance.control.controller.wave import Ask, ConfigAsk, Wave
from appliance.control.controller.worker_lines import WorkerLines
from appliance.control.store.metadata_store import MetadataStore, Operation
from appliance.errors import ApplianceDefect, RejectedRequest, StorageFault
from appliance.protocol.apis.describe_configs import ResourceType
from appliance.protocol.errors import ErrorCode

ASSIGN_TIMEOUT_MS = 5_000

OPENING_MS = 5
"""What a partition that is to be opened adds to that: its share of a busy host's time."""

FIRST_WAVE = 1
"""It shows the topics that there are, once all workers have answered."""

_logger = logging.getLogger(__name__)

Message = tuple[bytes, Envelope]
PartitionRequest = AlterPartitions | ElectLeaders | AlterReassignments | PartitionsOffline


@dataclass(slots=True)
class _Turn:
    """What one turn decided, until the store has it."""

    operations: list[Operation] = field(default_factory=list)
    first: dict[str, int] = field(default_factory=dict)
    doomed: dict[str, Deletion] = field(default_factory=dict)
    altered: set[str] = field(default_factory=set)
    brokers_altered: bool = False
    asks: list[Ask] = field(default_factory=list)
    config_asks: list[ConfigAsk] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)


class Controller:
    """Decides for the cluster that `state` describes. Single-threaded; the duty cycle calls `turn` and
    `settle`.

    Args:
        state: as `takeover.take_over` found it.
        fence: this controller's right to change the store.
        slots: as `take_over` was given them.
        brokers: the slots as clients are told of them.
        presume: whether there may have been a controller before in this instance, which gave orders.
        send: puts a message on its way to the process of that identity.
        alarms: for the deadline of a change.
    """

    __slots__ = (
        "_alarm_of",
        "_alarms",
        "_brokers",
        "_clock",
        "_cluster_id",
        "_copies",
        "_fence",
        "_partition_commands",
        "_publisher",
        "_send",
        "_settings",
        "_slots",
        "_store",
        "_wave_number",
        "_waves",
        "leadership",
        "lines",
        "state",
    )

    def __init__(
        self,
        state: ClusterState,
        store: MetadataStore,
        *,
        fence: Fence,
        cluster_id: str,
        settings: Settings,
        slots: SlotStates,
        brokers: Sequence[BrokerSlot],
        presume: bool,
        publisher: ImagePublisher,
        send: Callable[[bytes, Envelope], None],
        alarms: Alarms,
        clock: Clock,
    ) -> None:
        self.state = state
        self._store = store
        self._fence = fence
        self._cluster_id = cluster_id
        self._settings = settings
        self._slots = slots
        self._brokers = tuple(brokers)
        self._publisher = publisher
        self._send = send
        self._alarms = alarms
        self._clock = clock
        self.lines = WorkerLines(send, controller_epoch=fence.epoch, cluster_id=cluster_id)
        self._copies = Copies(state, slots, is_up=self.lines.is_up)
        self._waves: dict[int, Wave] = {}
        self._alarm_of: dict[int, Alarm] = {}
        self._wave_number = 0
        if presume:
            self._copies.presume_all()
        self.leadership = Leadership(
            state,
            store,
            fence=fence,
            slots=slots,
            copies=self._copies,
            alarms=alarms,
            changed_slots=self._other_slots_live,
            topic_defaults=self._topic_defaults,
        )
        self._partition_commands = PartitionCommands(
            self.leadership, state, broker=settings.broker, alarms=alarms, answer=self._answer
        )
        # What the controller before left of reassignments.
        self.leadership.review()
        if publisher.version:
            # Clients know the cluster already; they should know who its controller is now.
            self._publish()
        workers = {owner_of(slot) for slot in slots.all}
        self._begin(Wave(self._next_wave(), workers, dict(state.topics), frozenset(), []))

    # Turns

    def turn(self, messages: Sequence[Message]) -> None:
        """Takes what has arrived.

        Raises:
            StoreRefusal, SessionExpired: somebody else changed the store; this controller must go.
        """
        turn = _Turn()
        hellos: list[WorkerHello | ReplicaHello] = []
        of_partitions: list[tuple[bytes, int, PartitionRequest]] = []
        for sender, envelope in messages:
            match envelope.body:
                case CreateTopics() | CreatePartitions() | DeleteTopics() | AlterConfigs():
                    self._plan(turn, sender, envelope.id, envelope.body)
                    turn = self._divided(turn)
                case AllocateProducerIds():
                    self._answer(sender, envelope.id, allocate(self._store, self._fence))
                case Assigned():
                    self._confirmed(envelope.id, envelope.body)
                case AlterPartitions() | ElectLeaders() | AlterReassignments() | PartitionsOffline():
                    of_partitions.append((sender, envelope.id, envelope.body))
                case WorkerHello() | ReplicaHello():
                    hellos.append(envelope.body)
                case other:
                    _logger.warning(
                        "unexpected %s from %s", type(other).__name__, sender.decode(errors="replace")
                    )
        if turn.asks or turn.config_asks:
            self._carry_out(turn)
        # After the commit: a full Assign holds what this turn decided, too.
        for hello in hellos:
            self._welcome(hello)
        # These write partitions and topics as the books have them; and who has just said hello may ask at once.
        for sender, number, request in of_partitions:
            self._alter_partitions(sender, number, request)

    def _alter_partitions(self, sender: bytes, number: int, request: PartitionRequest) -> None:
        match request:
            case AlterPartitions() if self.lines.is_from(owner_of(request.slot), sender):
                self._answer(sender, number, self.leadership.alter(request))
            case AlterPartitions():
                _logger.warning(
                    "in-sync replicas of %s, which has not said hello", sender.decode(errors="replace")
                )
            case ElectLeaders():
                self._partition_commands.elect(sender, number, request)
            case AlterReassignments():
                self._partition_commands.reassign(sender, number, request)
            case PartitionsOffline():
                self.state.dirty = True
                self.leadership.storage_failed(request.slot, request.partitions)

    def process_down(self, role: Role, generation: int) -> None:
        """That life of a process is over; the next one of a worker or a replica says hello."""
        if role.kind not in (RoleKind.IOPROC, RoleKind.REPLICA):
            return
        unanswered = self.lines.down(role, generation)
        if unanswered is None:
            return
        for number in unanswered:
            self._copies.unsent(number)
        if role in self._slots:
            self.leadership.lost(role)

    def settle(self) -> None:
        """Finishes what can be finished: forgets deleted topics, publishes one image, answers who asked."""
        fault = self._forget_deleted()
        self.leadership.forget_left()
        self._send_orders()
        self.leadership.show()
        state = self.state
        # After a fault nobody waits for what the store could not forget: it is tried again, and answered now.
        unfinished = () if fault else state.deletions
        over = [wave for wave in self._waves.values() if wave.is_over(unfinished)]
        if not self._publisher.version and FIRST_WAVE not in {wave.number for wave in over}:
            # The first image is whole: no client is told of a cluster without the topics that it has.
            over = []
        for wave in over:
            del self._waves[wave.number]
            if (alarm := self._alarm_of.pop(wave.number, None)) is not None:
                alarm.cancel()
            for topic in wave.appearing.values():
                self._show(topic)
            for name in wave.altered:
                state.show_configs(name)
        if state.dirty and (over or self._publisher.version):
            self._publish()
        self._partition_commands.settle()
        for wave in over:
            for ask in wave.asks:
                outcomes = [wave.told(each, state.deletions) for each in ask.outcomes]
                if fault:
                    outcomes = [
                        blamed(fault, each) if each.name in wave.doomed else each for each in outcomes
                    ]
                self._answer_topics(ask, outcomes)
            for asked in wave.config_asks:
                told = tuple(map(wave.told_of_configs, asked.outcomes))
                self._answer(asked.sender, asked.number, ConfigOutcomes(told))

    # Deciding

    def _plan(
        self,
        turn: _Turn,
        sender: bytes,
        number: int,
        request: CreateTopics | CreatePartitions | DeleteTopics | AlterConfigs,
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

    def _plan_topics(self, turn: _Turn, sender: bytes, number: int, request: CreateTopics) -> None:
        broker = self._settings.broker
        twice = duplicates([wanted.name for wanted in request.topics])
        outcomes: list[TopicOutcome] = []
        request_left = broker.max_partitions_per_request
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
                    self.state.existing(),
                    topic_id=new_id(),
                    broker=broker,
                    request_left=request_left,
                    topic_defaults=self._topic_defaults(),
                )
            except RejectedRequest as refusal:
                outcomes.append(self._refused_creation(wanted.name, refusal))
                continue
            request_left -= len(plan.replicas)
            if not request.validate_only:
                self._decide(turn, plan)
            outcomes.append(planned(plan, validate_only=request.validate_only))
        turn.asks.append(Ask(sender, number, outcomes))

    def _refused_creation(self, name: str, refusal: RejectedRequest) -> TopicOutcome:
        """Who creates a topic that exists is told its id, so that automatic creation can go on with it."""
        topic = self.state.topics.get(name)
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

    def _plan_growth(self, turn: _Turn, sender: bytes, number: int, request: CreatePartitions) -> None:
        limit = self._settings.broker.max_partitions_per_request
        try:
            plan = plan_growth(request, self.state.existing(), request_left=limit)
        except RejectedRequest as refusal:
            outcome = refused(request.name, refusal)
        else:
            if not request.validate_only:
                self._decide(turn, plan)
            outcome = planned(plan, validate_only=request.validate_only)
        turn.asks.append(Ask(sender, number, [outcome]))

    def _plan_deletions(self, turn: _Turn, sender: bytes, number: int, request: DeleteTopics) -> None:
        outcomes: list[TopicOutcome] = []
        named = list(request.names)
        twice = duplicates(named) | duplicates([str(each) for each in request.topic_ids])
        doomed: list[str | UUID] = [*dict.fromkeys(named), *dict.fromkeys(request.topic_ids)]
        for wanted in doomed:
            name, topic_id = (wanted, None) if isinstance(wanted, str) else ("", wanted)
            try:
                if str(wanted) in twice:
                    raise RejectedRequest(ErrorCode.INVALID_REQUEST, "Duplicate topic in the request.")
                topic = find_doomed(wanted, self.state.existing(), broker=self._settings.broker)
            except RejectedRequest as refusal:
                outcomes.append(refused(name, refusal, topic_id=topic_id))
                continue
            self._doom(turn, topic)
            outcomes.append(TopicOutcome(topic.name, topic_id=topic.topic_id))
        turn.asks.append(Ask(sender, number, outcomes))

    def _plan_alterations(self, turn: _Turn, sender: bytes, number: int, request: AlterConfigs) -> None:
        state = self.state
        altering = Altering(state.topics, state.broker_configs, self._slots.all, self._topic_defaults())
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
            if not request.validate_only and kind == ResourceType.TOPIC:
                self._alter_topic(turn, state.topics[name], configs)
            elif not request.validate_only:
                self._alter_broker(turn, name, configs)
            outcomes.append(ConfigOutcome(kind, name))
        turn.config_asks.append(ConfigAsk(sender, number, outcomes))

    def _topic_defaults(self) -> dict[str, str]:
        """What is set on all brokers makes this of the topic settings."""
        return BrokerConfigs(of_all=self.state.broker_configs.get("", {})).topic_defaults(self._settings)

    def _alter_topic(self, turn: _Turn, before: TopicImage, configs: dict[str, str]) -> None:
        if configs == before.configs:
            return
        turn.operations += topic_alteration(before.name, configs)
        turn.altered.add(before.name)
        self.state.add(replace(before, configs=configs))
        turn.undo.append(lambda: self.state.add(before))

    def _alter_broker(self, turn: _Turn, node_id: str, configs: dict[str, str]) -> None:
        stored = self.state.broker_configs
        before = stored.get(node_id)
        if configs == (before or {}):
            return
        turn.operations += broker_alteration(node_id, configs, is_new=before is None)
        turn.brokers_altered = True
        # A new mapping: the image keeps the one it was given.
        self.state.broker_configs = {**stored, node_id: configs}

        def undo() -> None:
            self.state.broker_configs = stored

        turn.undo.append(undo)

    def _decide(self, turn: _Turn, plan: TopicPlan) -> None:
        """Gives the planned partitions rows and leaders, and takes the topic into the books."""
        state = self.state
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
                plan.name, plan.topic_id, tuple(added), dict(plan.configs), plan.name in INTERNAL_TOPICS
            )
            turn.operations += creation(topic, self._fence.epoch)
        else:
            topic = replace(before, partitions=(*before.partitions, *added))
            turn.operations += growth(topic, plan.first, self._fence.epoch)
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

    def _doom(self, turn: _Turn, topic: TopicImage) -> None:
        state = self.state
        turn.operations += deletion_mark(topic.name)
        turn.first.pop(topic.name, None)
        turn.altered.discard(topic.name)
        turn.doomed[topic.name] = state.deletions[topic.name] = Deletion.of(topic, self._slots.all)
        state.remove(topic.name)

        def undo() -> None:
            del state.deletions[topic.name]
            state.add(topic)

        turn.undo.append(undo)

    # Carrying out

    def _divided(self, turn: _Turn) -> _Turn:
        """The turn to go on with: a new one where this one is as large a change as the store takes at once."""
        if len(turn.operations) <= OPERATIONS_AT_ONCE:
            return turn
        self._carry_out(turn)
        return _Turn()

    def _carry_out(self, turn: _Turn) -> None:
        if turn.operations:
            try:
                self._store.multi([self._fence.check, *turn.operations])
            except StorageFault as fault:
                _logger.error("nothing was changed: %s", fault)
                for undo in reversed(turn.undo):
                    undo()
                for ask in turn.asks:
                    self._answer_topics(ask, [blamed(fault, outcome) for outcome in ask.outcomes])
                for asked in turn.config_asks:
                    told = tuple(blamed_configs(fault, outcome) for outcome in asked.outcomes)
                    self._answer(asked.sender, asked.number, ConfigOutcomes(told))
                return
        state = self.state
        for name in turn.doomed:
            state.hide(name)
        if turn.doomed and state.dirty:
            self._publish()
        for deletion in turn.doomed.values():
            for partition in deletion.topic.partitions:
                state.rows.withdraw(partition.row)
        appearing = {name: state.topics[name] for name in turn.first}
        for name, topic in appearing.items():
            for partition in topic.partitions[turn.first[name] :]:
                state.rows.write(partition)
        number = self._next_wave()
        waiting = self._tell(turn, appearing, number)
        if turn.brokers_altered:
            state.dirty = True
            self.leadership.stop(stopped_slots(state.broker_configs))
        self._begin(
            Wave(
                number,
                waiting,
                appearing,
                frozenset(turn.doomed),
                turn.asks,
                frozenset(turn.altered),
                turn.config_asks,
            )
        )

    def _tell(self, turn: _Turn, appearing: dict[str, TopicImage], number: int) -> set[Role]:
        """Sends every worker and replica its part; whose answers are waited for."""
        copies, state = self._copies, self.state
        for name, topic in appearing.items():
            for partition in topic.partitions[turn.first[name] :]:
                copies.touch(name, partition.partition)
        for name in turn.altered:
            for partition in state.topics[name].partitions:
                copies.touch(name, partition.partition)
        for name, deletion in turn.doomed.items():
            for partition in deletion.topic.partitions:
                copies.touch(name, partition.partition)
        # A worker that is down is waited for by who creates; new settings wait for nobody who is down, since the next
        # life begins with them. Followers are waited for by nobody who only creates.
        concerned = {
            owner_of(partition.leader)
            for name, topic in appearing.items()
            for partition in topic.partitions[turn.first[name] :]
        }
        orders = copies.orders()
        for slot in self._slots.all:
            defaults = self._log_defaults(slot) if turn.brokers_altered else None
            for half in self._slots.halves(slot):
                order = orders.get(half)
                if not self.lines.is_up(half) or (order is None and defaults is None):
                    continue
                order = order or Order()
                if half.kind is RoleKind.IOPROC or order.removed or turn.altered or defaults is not None:
                    concerned.add(half)
                sent = self.lines.assign(half, order, waves=(number,), log_defaults=defaults)
                copies.sent(half, sent, order)
        return concerned

    def _send_orders(self) -> None:
        """What the answers and deaths of this turn have made possible."""
        for half, order in self._copies.orders().items():
            self._copies.sent(half, self.lines.assign(half, order, waves=()), order)

    def _log_defaults(self, slot: int) -> dict[str, str]:
        return BrokerConfigs.of(self.state.broker_configs, slot).log_defaults(self._settings)

    def _next_wave(self) -> int:
        self._wave_number += 1
        return self._wave_number

    def _begin(self, wave: Wave) -> None:
        self._waves[wave.number] = wave
        if wave.waiting:
            opening_ms = OPENING_MS * sum(len(topic.partitions) for topic in wave.appearing.values())
            self._alarm_of[wave.number] = self._alarms(
                ASSIGN_TIMEOUT_MS + opening_ms, lambda: self._overdue(wave)
            )

    def _overdue(self, wave: Wave) -> None:
        wave.overdue = True
        late = ", ".join(sorted(str(worker) for worker in wave.waiting))
        _logger.warning("no answer to an assignment in time from: %s", late)

    def _forget_deleted(self) -> StorageFault | None:
        """Removes from the store what every worker has deleted; the fault that kept it from doing so."""
        state = self.state
        gone = [deletion for deletion in state.deletions.values() if not deletion.waiting]
        if not gone:
            return None
        try:
            for operations in packed([forgetting(deletion.topic) for deletion in gone]):
                self._store.multi([self._fence.check, *operations])
        except StorageFault as fault:
            _logger.error("deleted topics are not forgotten yet: %s", fault)
            return fault
        for deletion in gone:
            del state.deletions[deletion.topic.name]
            for partition in deletion.topic.partitions:
                if partition.row != NO_ROW:
                    state.rows.give_back(partition.row)
            self._copies.forget(deletion.topic)
        return None

    # Workers

    def _welcome(self, hello: WorkerHello | ReplicaHello) -> None:
        index = hello.worker if isinstance(hello, WorkerHello) else 0
        kind = RoleKind.IOPROC if isinstance(hello, WorkerHello) else RoleKind.REPLICA
        half = Role(kind, index, hello.slot)
        had_life = self.lines.is_up(half)
        if not self.lines.hello(half, hello.generation):
            return
        order = Order()
        if half in self._slots:
            if had_life:
                self.leadership.lost(half)
            self.leadership.came(half)
            order = self._copies.full_order(half)
        waves = tuple(number for number, wave in self._waves.items() if half in wave.waiting)
        defaults = self._log_defaults(hello.slot)
        number = self.lines.assign(half, order, waves=waves, full=True, log_defaults=defaults)
        if half in self._slots:
            self._copies.sent(half, number, order, full=True)

    def _confirmed(self, number: int, answer: Assigned) -> None:
        confirmation = self.lines.confirmed(number, answer)
        if confirmation is None:
            return
        sent, failures = confirmation.sent, confirmation.failures
        for partition, (code, why) in failures.items():
            _logger.error("%s: %s failed with error %d: %s", sent.worker, partition, code, why)
        failed = {partition.rpartition("-")[0] for partition in failures}
        for wave_number in sent.waves:
            wave = self._waves.get(wave_number)
            if wave is not None:
                wave.waiting.discard(sent.worker)
                wave.failures.update(failures)
                if failed & wave.doomed:
                    wave.overdue = True  # nobody will finish it before the worker's next life
        if sent.worker in self._slots:
            self._opened_in_vain(sent.worker, failures)
            self._removed(self._copies.confirmed(sent.worker, number, failures), sent.worker.slot)
        halves = [half for slot in self._slots.all for half in self._slots.halves(slot)]
        if sent.full and self.lines.all_assigned(halves):
            self.state.rows.end_quarantine()

    def _opened_in_vain(self, half: Role, failures: Collection[str]) -> None:
        """Who cannot open what it is to lead lets another lead it."""
        if half.kind is RoleKind.IOPROC and failures:
            named = (partition.rpartition("-") for partition in failures)
            self.leadership.storage_failed(half.slot, [(name, int(number)) for name, _, number in named])

    def _removed(self, places: Collection[Place], slot: int) -> None:
        for name, topic_id, number in places:
            deletion = self.state.deletions.get(name)
            if deletion is not None and deletion.topic.topic_id == topic_id:
                deletion.waiting.discard((slot, number))
            self.leadership.has_left(name, number, slot)

    # Slots

    def _other_slots_live(self) -> None:
        """Registers the slots that are live by now, and no others."""
        live = self._slots.live()
        _logger.info("live slots: %s", ", ".join(map(str, live)) or "none")
        self.state.live = live
        self.state.dirty = True
        try:
            register(self._store, self._brokers, self._fence, live=live, clock=self._clock)
        except StorageFault as fault:
            _logger.error("registrations stay as they are, trying again in %d ms: %s", RETRY_MS, fault)
            self._alarms(RETRY_MS, self._other_slots_live)

    # Telling

    def _show(self, topic: TopicImage) -> None:
        """Lets clients see a topic that is new, or has grown."""
        current = self.state.topics.get(topic.name)
        if current is not None and current.topic_id == topic.topic_id:
            partitions = current.partitions[: len(topic.partitions)]
            self.state.show(topic, tuple(self.leadership.shown(current, each) for each in partitions))

    def _publish(self) -> None:
        state = self.state
        self._publisher.publish(
            ClusterImage(
                version=self._publisher.version + 1,
                cluster_id=self._cluster_id,
                controller_id=min(state.live, default=CONTROLLER_ID),
                controller_epoch=self._fence.epoch,
                slots=tuple(each for each in self._brokers if each.node_id in state.live),
                topics=state.visible,
                broker_configs=state.broker_configs,
            )
        )
        state.dirty = False

    def _answer_topics(self, ask: Ask, outcomes: list[TopicOutcome]) -> None:
        self._answer(ask.sender, ask.number, TopicOutcomes(tuple(outcomes), self._publisher.version))

    def _answer(self, sender: bytes, number: int, body: Body) -> None:
        self._send(sender, Envelope(number, body))

    def statistics(self) -> dict[str, int]:
        """Topics, partitions, changes and deletions on their way; for display."""
        return {
            "topics": len(self.state.topics),
            "partitions": self.state.rows.statistics().used,
            "waves": len(self._waves),
            "deletions": len(self.state.deletions),
        }
