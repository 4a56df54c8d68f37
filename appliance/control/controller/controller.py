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
from collections.abc import Callable, Collection, Mapping, Sequence

from appliance.channels.control_channel import (
    AllocateProducerIds,
    AlterAcls,
    AlterConfigs,
    AlterPartitions,
    AlterQuotas,
    AlterReassignments,
    AlterScram,
    Assigned,
    Body,
    ConfigOutcomes,
    CopiesMoved,
    CreatePartitions,
    CreateToken,
    CreateTopics,
    DeleteTopics,
    ElectLeaders,
    Envelope,
    ExpireToken,
    LogsAhead,
    MoveCopies,
    PartitionsOffline,
    RenewToken,
    ReplicaHello,
    TopicOutcome,
    TopicOutcomes,
    WorkerHello,
)
from appliance.channels.metadata_image import ImagePublisher
from appliance.channels.roles import Role, RoleKind, workers_of
from appliance.clock import Clock
from appliance.cluster import BrokerSlot, ClusterImage, TopicImage
from appliance.config import Settings
from appliance.config.dynamic import FILE
from appliance.config.loggers import levels
from appliance.control.controller.alarms import Alarms
from appliance.control.controller.assignments import Assignments
from appliance.control.controller.cluster_state import NO_ROW, ClusterState
from appliance.control.controller.copies import Copies, Order, Place
from appliance.control.controller.copy_moves import CopyMoves
from appliance.control.controller.deciding import Deciding, Turn
from appliance.control.controller.leadership import RETRY_MS, Leadership
from appliance.control.controller.outcomes import blamed, blamed_configs, blamed_of_image
from appliance.control.controller.partition_commands import PartitionCommands
from appliance.control.controller.producer_ids import allocate
from appliance.control.controller.slot_states import SlotStates
from appliance.control.controller.takeover import CONTROLLER_ID, Fence, register, stopped_slots
from appliance.control.controller.token_sweeps import TokenSweeps
from appliance.control.controller.topic_store import (
    OPERATIONS_AT_ONCE,
    forgetting,
    packed,
)
from appliance.control.controller.wave import Ask, Wave
from appliance.control.controller.waves import Waves
from appliance.control.controller.worker_lines import WorkerSessions
from appliance.control.store.metadata_store import MetadataStore
from appliance.errors import StorageFault

_logger = logging.getLogger(__name__)

Message = tuple[bytes, Envelope]
PartitionRequest = AlterPartitions | ElectLeaders | AlterReassignments | PartitionsOffline | LogsAhead


class Controller:
    """Decides for the cluster that `state` describes. Single-threaded; the duty cycle calls `turn` and
    `settle`.

    Args:
        state: as `takeover.take_over` found it.
        registrations: the session that the slots are registered by.
        fence: this controller's right to change the store.
        slots: as `take_over` was given them.
        brokers: the slots as clients are told of them.
        presume: whether there may have been a controller before in this instance, which gave orders.
        held: processes that run no more, though the kernel does not let them end.
        send: puts a message on its way to the process of that identity.
        log_from: takes the levels from which the processes log, when they may have changed.
        alarms: for the deadline of a change.
    """

    __slots__ = (
        "_alarms",
        "_assignments",
        "_brokers",
        "_clock",
        "_cluster_id",
        "_copies",
        "_copy_moves",
        "_deciding",
        "_fence",
        "_log_from",
        "_partition_commands",
        "_publisher",
        "_registrations",
        "_send",
        "_settings",
        "_slots",
        "_store",
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
        registrations: MetadataStore,
        fence: Fence,
        cluster_id: str,
        settings: Settings,
        slots: SlotStates,
        brokers: Sequence[BrokerSlot],
        presume: bool,
        held: Collection[Role] = (),
        log_from: Callable[[dict[str, str]], object] = lambda _: None,
        publisher: ImagePublisher,
        send: Callable[[bytes, Envelope], None],
        alarms: Alarms,
        clock: Clock,
    ) -> None:
        self.state = state
        self._store = store
        self._registrations = registrations
        self._fence = fence
        self._log_from = log_from
        self._cluster_id = cluster_id
        self._settings = settings
        self._slots = slots
        self._brokers = tuple(brokers)
        self._publisher = publisher
        self._send = send
        self._alarms = alarms
        self._clock = clock
        self.lines = WorkerSessions(send, controller_epoch=fence.epoch, cluster_id=cluster_id)
        self._deciding = Deciding(
            state, store, slots=slots, settings=settings, controller_epoch=fence.epoch, clock=clock
        )
        self._copies = Copies(state, slots, is_up=self.lines.is_up)
        self._copy_moves = CopyMoves(self.lines, answer=self._answer)
        self._assignments = Assignments(state, self._copies, self.lines, slots=slots, settings=settings)
        self._waves = Waves(alarms)
        if presume:
            self._copies.presume_all()
        for half in held:
            if half in slots:
                self._copies.presume_held(half)
        self.leadership = Leadership(
            state,
            store,
            fence=fence,
            slots=slots,
            copies=self._copies,
            alarms=alarms,
            changed_slots=self._other_slots_live,
            topic_defaults=self._deciding.topic_defaults,
        )
        self._partition_commands = PartitionCommands(
            self.leadership, state, broker=settings.broker, alarms=alarms, answer=self._answer
        )
        # What the controller before left of reassignments.
        self.leadership.review()
        if publisher.version:
            # Clients know the cluster already; they should know who its controller is now.
            self._publish()
        workers = {worker for slot in slots.all for worker in workers_of(slot, workers=slots.workers)}
        self._waves.begin(Wave(self._waves.next_number(), workers, dict(state.topics), frozenset(), []))
        self._set_log_levels()
        if settings.delegation_tokens.are_enabled:
            TokenSweeps(
                state,
                interval_ms=settings.delegation_tokens.expiry_check_interval_ms,
                carry_out=self._carry_out,
                alarms=alarms,
                clock=clock,
            ).begin()

    def _set_log_levels(self) -> None:
        self._log_from(levels(self._settings.logging.level, self.state.broker_configs.get("", {})))

    # Turns

    def turn(self, messages: Sequence[Message]) -> None:
        """Takes what has arrived.

        Raises:
            StoreRefusal, SessionExpired: somebody else changed the store; this controller must go.
        """
        turn = Turn()
        hellos: list[WorkerHello | ReplicaHello] = []
        of_partitions: list[tuple[bytes, int, PartitionRequest]] = []
        for sender, envelope in self._without_reports(messages):
            _logger.debug("request %s of %s", type(envelope.body).__name__, sender.decode(errors="replace"))
            match envelope.body:
                case (
                    CreateTopics()
                    | CreatePartitions()
                    | DeleteTopics()
                    | AlterConfigs()
                    | AlterAcls()
                    | AlterScram()
                    | AlterQuotas()
                    | CreateToken()
                    | RenewToken()
                    | ExpireToken()
                ):
                    self._deciding.plan(turn, sender, envelope.id, envelope.body)
                    turn = self._divided(turn)
                case AllocateProducerIds():
                    self._answer(sender, envelope.id, allocate(self._store, self._fence, self._clock))
                case Assigned():
                    self._confirmed(envelope.id, envelope.body)
                case (
                    AlterPartitions()
                    | ElectLeaders()
                    | AlterReassignments()
                    | PartitionsOffline()
                    | LogsAhead()
                ):
                    of_partitions.append((sender, envelope.id, envelope.body))
                case MoveCopies():
                    self._copy_moves.ask(sender, envelope.id, envelope.body)
                case CopiesMoved():
                    self._copy_moves.answered(sender, envelope.id, envelope.body)
                case WorkerHello() | ReplicaHello():
                    hellos.append(envelope.body)
                case other:
                    _logger.warning(
                        "unexpected message %s from %s ignored",
                        type(other).__name__,
                        sender.decode(errors="replace"),
                    )
        if turn.asks or turn.config_asks or turn.image_asks:
            self._carry_out(turn)
        # After the commit: a full Assign holds what this turn decided, too.
        for hello in hellos:
            self._welcome(hello)
        # These write partitions and topics as the books have them; and who has just said hello may ask at once.
        for sender, number, request in of_partitions:
            self._alter_partitions(sender, number, request)

    def _without_reports(self, messages: Sequence[Message]) -> list[Message]:
        """Carry out what known workers report of later epochs; return the other messages.

        The worker sends its report before the `Assigned` that names the partition as a failure. By the failure alone
        another slot would be elected, in an epoch that the logs have passed.
        """
        others = []
        for message in messages:
            sender, envelope = message
            if isinstance(envelope.body, LogsAhead) and self._is_of(
                envelope.body.slot, sender, RoleKind.IOPROC
            ):
                self.leadership.raise_epochs(envelope.body)
            else:
                others.append(message)
        return others

    def _alter_partitions(self, sender: bytes, number: int, request: PartitionRequest) -> None:
        match request:
            case AlterPartitions() if self._is_of(request.slot, sender, RoleKind.IOPROC):
                self._answer(sender, number, self.leadership.alter(request))
            case AlterPartitions():
                _logger.warning(
                    "ISR change from %s ignored, because the process has not registered",
                    sender.decode(errors="replace"),
                )
            case ElectLeaders():
                self._partition_commands.elect(sender, number, request)
            case AlterReassignments():
                self._partition_commands.reassign(sender, number, request)
            case PartitionsOffline() if self._is_of(request.slot, sender, RoleKind.IOPROC, RoleKind.REPLICA):
                self.state.dirty = True
                self.leadership.storage_failed(request.slot, request.partitions, partial=request.partial)
            case PartitionsOffline():
                # Whoever has the copies now finds out for itself, and says so when it is told to hold them.
                _logger.warning(
                    "state of replicas from %s ignored, because the process is not running",
                    sender.decode(errors="replace"),
                )
            case LogsAhead() if self._is_of(request.slot, sender, RoleKind.IOPROC):
                self.leadership.raise_epochs(request)
            case LogsAhead():
                # The next life opens the logs, too, and reports the same.
                _logger.warning(
                    "later leader epochs from %s ignored, because the process is not running",
                    sender.decode(errors="replace"),
                )

    def _is_of(self, slot: int, sender: bytes, *kinds: RoleKind) -> bool:
        """Whether `sender` is the life that we know of one of these processes of the slot."""
        processes = self._slots.processes(slot)
        return any(each.kind in kinds and self.lines.is_from(each, sender) for each in processes)

    def reload(self, configs: Mapping[str, str]) -> None:
        """Let what the configuration file says now count; no store keeps it, because the file does."""
        # A new mapping: the image keeps the one it was given.
        self.state.broker_configs = {**self.state.broker_configs, FILE: dict(configs)}
        self._carry_out(Turn(brokers_altered=True))

    def process_down(self, role: Role, generation: int, *, held: bool = False) -> None:
        """That life of a process is over; the next one of a worker or a replica says hello.

        `held`: it runs no more, but what it has open is open still; called again when it has ended.
        """
        if role.kind not in (RoleKind.IOPROC, RoleKind.REPLICA):
            return
        unanswered = self.lines.down(role, generation)
        if unanswered is None:
            return
        self._copy_moves.down(role)
        for number in unanswered:
            self._copies.unsent(number)
        if role in self._slots:
            self.leadership.lost(role, held=held)

    def settle(self) -> None:
        """Finishes what can be finished: forgets deleted topics, publishes one image, answers who asked."""
        fault = self._forget_deleted()
        self.leadership.forget_left()
        self._assignments.send_rest()
        self.leadership.show()
        state = self.state
        # After a fault nobody waits for what the store could not forget: it is tried again, and answered now.
        unfinished = () if fault else state.deletions
        over = self._waves.take_over(unfinished, is_shown=self._publisher.version > 0)
        for wave in over:
            for topic in wave.appearing.values():
                self._show(topic)
            for name in wave.altered:
                state.show_configs(name)
        if state.dirty and (over or self._publisher.version):
            self._publish()
        self._partition_commands.settle()
        for wave in over:
            for ask in wave.asks:
                outcomes = [
                    wave.told(each, state.deletions, owner=self._slots.owner) for each in ask.outcomes
                ]
                if fault:
                    outcomes = [
                        blamed(fault, each) if each.name in wave.doomed else each for each in outcomes
                    ]
                self._answer_topics(ask, outcomes)
            for asked in wave.config_asks:
                told = tuple(map(wave.told_of_configs, asked.outcomes))
                self._answer(asked.sender, asked.number, ConfigOutcomes(told))
            for image_ask in wave.image_asks:
                self._answer(image_ask.sender, image_ask.number, image_ask.outcomes)

    # Carrying out

    def _divided(self, turn: Turn) -> Turn:
        """The turn to go on with: a new one where this one is as large a change as the store takes at once."""
        if len(turn.operations) <= OPERATIONS_AT_ONCE:
            return turn
        self._carry_out(turn)
        return Turn()

    def _carry_out(self, turn: Turn) -> bool:
        """Write what the turn decided, and begin its wave; return whether the store took it."""
        if turn.operations:
            try:
                self._store.multi([self._fence.check, *turn.operations])
            except StorageFault as fault:
                _logger.error("metadata change failed, nothing was changed: %s", fault)
                self._take_back(turn, fault)
                return False
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
        number = self._waves.next_number()
        waiting = self._assignments.of_turn(turn, appearing, number)
        state.dirty |= turn.groups_altered or turn.brokers_altered or turn.access_altered
        if turn.brokers_altered:
            self._set_log_levels()
        if turn.altered or turn.brokers_altered:
            self.leadership.stop(stopped_slots(state.broker_configs))
            # An unclean election may be allowed by now.
            self.leadership.review()
        self._waves.begin(
            Wave(
                number,
                waiting,
                appearing,
                frozenset(turn.doomed),
                turn.asks,
                frozenset(turn.altered),
                turn.config_asks,
                turn.image_asks,
            )
        )
        return True

    def _take_back(self, turn: Turn, fault: StorageFault) -> None:
        """The store did not take the turn: it has not happened, and who asked is told."""
        for undo in reversed(turn.undo):
            undo()
        for ask in turn.asks:
            self._answer_topics(ask, [blamed(fault, outcome) for outcome in ask.outcomes])
        for asked in turn.config_asks:
            told = tuple(blamed_configs(fault, outcome) for outcome in asked.outcomes)
            self._answer(asked.sender, asked.number, ConfigOutcomes(told))
        for image_ask in turn.image_asks:
            self._answer(image_ask.sender, image_ask.number, blamed_of_image(fault, image_ask.outcomes))

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
            _logger.error("cannot remove deleted topics from the metadata store yet: %s", fault)
            return fault
        for deletion in gone:
            del state.deletions[deletion.topic.name]
            for partition in deletion.topic.partitions:
                if partition.row != NO_ROW:
                    state.rows.give_back(partition.row)
            self.leadership.forget(deletion.topic)
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
                self._copy_moves.down(half)
                self.leadership.lost(half)
            self.leadership.came(half)
            order = self._copies.full_order(half)
        number = self._assignments.send_all(half, order, waves=self._waves.waiting_for(half))
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
                if wave_number in confirmation.waves:
                    wave.waiting.discard(sent.worker)
                if not wave.overdue:
                    self._waves.extend(wave)
                wave.failures.update(failures)
                if failed & wave.doomed:
                    wave.overdue = True  # nobody will finish it before the worker's next life
        if sent.worker in self._slots:
            self._opened_in_vain(sent.worker, failures)
            self._removed(self._copies.confirmed(sent.worker, number, failures), sent.worker.slot)
        processes = [each for slot in self._slots.all for each in self._slots.processes(slot)]
        if sent.full and self.lines.all_assigned(processes):
            self.state.rows.end_quarantine()

    def _opened_in_vain(self, half: Role, failures: Collection[str]) -> None:
        """Who cannot open what it is to lead lets another lead it."""
        if half.kind is RoleKind.IOPROC and failures:
            named = (partition.rpartition("-") for partition in failures)
            places = [(name, int(number)) for name, _, number in named]
            # What is so for the life of the worker was said by a word of its own.
            self.leadership.storage_failed(half.slot, places, lasting=False)

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
            register(
                self._registrations,
                self._brokers,
                self._fence,
                live=live,
                clock=self._clock,
                listeners=self._settings.listeners,
            )
        except StorageFault as fault:
            _logger.error("cannot update broker registrations, retrying in %d ms: %s", RETRY_MS, fault)
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
                group_configs=state.group_configs,
                acls=state.shown_acls,
                scram=state.shown_scram,
                quotas=state.shown_quotas,
                tokens=state.shown_tokens,
            )
        )
        state.dirty = False

    def _answer_topics(self, ask: Ask, outcomes: list[TopicOutcome]) -> None:
        self._answer(
            ask.sender, ask.number, TopicOutcomes(tuple(outcomes), self._publisher.version, ask.throttle_ms)
        )

    def _answer(self, sender: bytes, number: int, body: Body) -> None:
        self._send(sender, Envelope(number, body))

    def statistics(self) -> dict[str, int]:
        """Topics, partitions, changes and deletions on their way, replicas that left and joined an ISR; for display."""
        return {
            "topics": len(self.state.topics),
            "partitions": self.state.rows.statistics().used,
            "waves": len(self._waves),
            "deletions": len(self.state.deletions),
            "isr_shrinks": self.leadership.isr_shrinks,
            "isr_expansions": self.leadership.isr_expansions,
            "unclean_elections": self.leadership.unclean_elections,
        }
