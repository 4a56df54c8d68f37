"""An instance with nothing in it but a real controller process; the test plays supervisor, worker and network
process.
"""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import zmq

from appliance.channels.child import Child
from appliance.channels.control_channel import (
    AlteredPartitions,
    AlterPartitions,
    Assign,
    Assigned,
    AssignedPartition,
    Body,
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    Envelope,
    NewTopic,
    ReplicaHello,
    TopicOutcome,
    TopicOutcomes,
    WantedIsr,
    WorkerHello,
)
from appliance.channels.controller_link import ControllerLink
from appliance.channels.metadata_image import ImageReader
from appliance.channels.partition_table import PartitionTable
from appliance.channels.roles import CONTROLLER, Role, RoleKind, owner_of, replica_of, workers_of
from appliance.channels.supervision import (
    Failed,
    Message,
    PeerDown,
    Ready,
    Stop,
    SupervisionSocket,
    socket_pair,
)
from appliance.channels.wiring import Wiring
from appliance.clock import SystemClock
from appliance.cluster import ClusterImage, PartitionImage
from appliance.config import BrokerSettings, IoSettings, MetadataSettings, Settings
from appliance.config.sections.services import ServicesSettings
from appliance.control.controller.main import run
from appliance.control.store.metadata_store import MetadataStore
from appliance.control.store.opening import open_store
from appliance.ipc.shared_memory import Region, remove_directory
from tests.support.private_directory import new_private_directory
from tests.support.store import chosen_settings

WAIT_S = 30.0
NETPROC = Role(RoleKind.NETPROC, 0)

Disk = dict[tuple[str, int], UUID]
Opened = dict[tuple[str, int], Role]


class Worker:
    """Obeys like an I/O worker, or a replica process; its "disk" outlives it. A mute one reads and does not answer.

    `opened` is shared by all of a slot: a copy that two of them have open is a defect of the controller.
    """

    def __init__(
        self,
        wiring: Wiring,
        slot: int,
        *,
        generation: int,
        disk: Disk,
        opened: Opened,
        context: zmq.Context[zmq.Socket[bytes]],
        kind: RoleKind = RoleKind.IOPROC,
        index: int = 0,
    ) -> None:
        self.slot = slot
        self.kind = kind
        self.role = Role(kind, index, slot)
        self._workers = wiring.settings.io.workers
        self.disk = disk
        self.opened = opened
        self.answers: dict[int, Body] = {}
        self.led: dict[tuple[str, int], AssignedPartition] = {}
        self.commands: list[Assign] = []
        self.mute = False
        self.failures: dict[str, tuple[int, str]] = {}
        self.generation = generation
        self._unanswered: list[tuple[int, Assigned]] = []
        self.link = ControllerLink(wiring, self.role, generation, context=context)
        self.hello()

    def hello(self) -> None:
        """Said at the start of a life, and again when the supervisor tells of a new controller."""
        if self.kind is RoleKind.REPLICA:
            self.link.ask(ReplicaHello(self.slot, self.generation))
        else:
            self.link.ask(WorkerHello(self.slot, self.role.index, self.generation))

    def propose(self, *wanted: WantedIsr) -> int:
        """Asks the controller for other ISRs; the number of the question."""
        number = self.link.ask(AlterPartitions(self.slot, wanted))
        assert number is not None
        return number

    def die(self) -> None:
        """Lets go of everything without a word."""
        self.link.close()
        for key in [key for key, role in self.opened.items() if role is self.role]:
            del self.opened[key]

    def work(self) -> None:
        for envelope in self.link.receive():
            if isinstance(envelope.body, Assign):
                self._obey(envelope.id, envelope.body)
            else:
                self.answers[envelope.id] = envelope.body
        while self._unanswered and not self.mute:
            number, answer = self._unanswered.pop(0)
            self.link.send(Envelope(number, answer))

    def _obey(self, number: int, command: Assign) -> None:
        self.commands.append(command)
        if command.full:
            for key in list(self.led):
                self._let_go(key)
        for topic, _, partition in command.released:
            self._let_go((topic, partition))
        for topic, topic_id, partition in command.removed:
            self._let_go((topic, partition))
            if self.disk.get((topic, partition)) == topic_id:
                del self.disk[topic, partition]
        for assigned in command.partitions:
            key = (assigned.topic, assigned.partition)
            assert self.disk.setdefault(key, assigned.topic_id) == assigned.topic_id, "files of another topic"
            assert self.opened.setdefault(key, self.role) is self.role, f"{key} is open in another process"
            owner = owner_of(self.slot, assigned.topic_id, assigned.partition, workers=self._workers)
            assert self.role is (owner if assigned.leader == self.slot else replica_of(self.slot))
            self.led[key] = assigned
        self._unanswered.append((number, Assigned(command.controller_epoch, dict(self.failures))))

    def _let_go(self, key: tuple[str, int]) -> None:
        if self.led.pop(key, None) is not None:
            del self.opened[key]


class Instance:
    """Shared memory, sockets and one controller process at a time."""

    def __init__(
        self,
        data_dir: Path,
        *,
        slots: int = 1,
        workers: int = 1,
        broker: BrokerSettings | None = None,
        metadata: MetadataSettings | None = None,
        services: int = 0,
    ) -> None:
        self.settings = Settings(
            data_dir=data_dir,
            slots=slots,
            io=IoSettings(workers=workers),
            broker=broker or BrokerSettings(),
            metadata=metadata or chosen_settings(data_dir),
            services=ServicesSettings(processes=services),
        )
        self.generation = 0
        self.pid = 0
        self._closed = False
        self.error = data_dir.parent / "error"
        self.workers: dict[int, Worker] = {}
        """The first of each slot, by slot; the `others` by slot and index."""
        self.others: dict[tuple[int, int], Worker] = {}
        self._lost_others: dict[Role, int] = {}
        self.replicas: dict[int, Worker] = {}
        self.disks: dict[int, Disk] = {}
        self.opened: dict[int, Opened] = {}
        self.last_generations: dict[tuple[RoleKind, int], int] = {}
        self.answers: dict[int, Body] = {}
        self.supervision: SupervisionSocket | None = None
        self.held: frozenset[Role] = frozenset()
        plan = Wiring(self.settings, "appliance-test", new_private_directory(), {})
        bells = {role: os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for role in plan.planned}
        self.wiring = Wiring(self.settings, "appliance-test", plan.runtime_dir, bells)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._asker = ControllerLink(self.wiring, NETPROC, 1, context=self._context)
        self._regions: list[Region] = []
        self.new_memory()

    # The supervisor's part

    def halves(self) -> list[Role]:
        """Workers, and where there are several slots replica processes."""
        slots = range(self.settings.slots)
        count = self.settings.io.workers
        workers = [each for slot in slots for each in workers_of(slot, workers=count)]
        return workers + [Role(RoleKind.REPLICA, 0, slot) for slot in slots if len(slots) > 1]

    def new_memory(self) -> None:
        """Fresh shared memory, as after a restart of everything."""
        for region in self._regions:
            region.close()
        for path in self.wiring.runtime_dir.iterdir():
            if path.is_file():
                path.unlink()
        self.wiring.create_standing_regions()
        self._regions = [Region.open(self.wiring.image_name), Region.open(self.wiring.partitions_name)]
        self.images = ImageReader(self.wiring.runtime_dir, self._regions[0].view)
        self.table = PartitionTable(self._regions[1].view, slots=self.settings.slots)

    def start(self, before: Callable[[], None] | None = None) -> None:
        """Forks a controller and waits until it serves. `before` runs in the child."""
        self.launch(before)
        said = self.hear_child()
        assert said == [Ready()], said

    def launch(self, before: Callable[[], None] | None = None) -> None:
        self.generation += 1
        ours, theirs = socket_pair()
        pid = os.fork()
        if pid == 0:
            code = 70
            try:
                ours.close()
                if before is not None:
                    before()
                peers = {each: 1 for each in self.halves() if each not in self._lost_others}
                socket = SupervisionSocket(theirs)
                code = run(Child(CONTROLLER, self.generation, peers, self.wiring, socket, held=self.held))
            except BaseException as error:
                traceback.print_exc()
                self.error.write_text(str(error))
            finally:
                os._exit(code)
        theirs.close()
        self.pid = pid
        self.supervision = SupervisionSocket(ours)

    def hear_child(self) -> list[Message]:
        """What the child says next; empty when it ended without a word."""
        assert self.supervision is not None
        poll = select.poll()
        poll.register(self.supervision.fileno(), select.POLLIN)
        assert poll.poll(WAIT_S * 1000), "the child says nothing"
        return self.supervision.receive() or []

    def speaks(self, *, timeout_ms: int) -> bool:
        """Whether the child says something in time."""
        assert self.supervision is not None
        poll = select.poll()
        poll.register(self.supervision.fileno(), select.POLLIN)
        return bool(poll.poll(timeout_ms))

    def tell_child(self, message: Message) -> None:
        assert self.supervision is not None
        assert self.supervision.send(message)

    def failure(self) -> Failed:
        """Why the child that was launched cannot start."""
        (said,) = self.hear_child()
        assert isinstance(said, Failed)
        self.reap()
        return said

    def fault(self) -> str:
        """The error that ended the child that was launched (the supervisor's fork makes a Failed of it)."""
        assert self.hear_child() == []
        self.reap()
        return self.error.read_text()

    def open_store(self) -> MetadataStore:
        """A session of our own with the controller's store."""
        return open_store(self.settings, SystemClock())

    def change_store(self, path: str, data: bytes) -> None:
        """Writes a node behind the controller's back."""
        store = self.open_store()
        store.set(path, data)
        store.close()

    def remove_from_store(self, path: str) -> None:
        """Deletes a node behind the controller's back."""
        store = self.open_store()
        store.delete(path)
        store.close()

    def read_store(self, path: str) -> bytes:
        """What a node holds."""
        store = self.open_store()
        data = store.get(path).data
        store.close()
        return data

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self.reap()

    def stop(self) -> int:
        """A clean stop; the exit code."""
        self.tell_child(Stop(1_000))
        return self.reap()

    def reap(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        if self.supervision is not None:
            self.supervision.close()
            self.supervision = None
        return os.waitstatus_to_exitcode(status)

    def is_dead(self) -> bool:
        """Whether the controller has ended by itself; reaps it then."""
        if self.pid and os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            self.reap()
        return not self.pid

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.pid:
            self.kill()
        self._asker.close()
        for each in self.processes():
            each.link.close()
        self._context.term()
        for region in self._regions:
            region.close()
        remove_directory(self.wiring.runtime_dir)
        for bell in self.wiring.doorbells.values():
            os.close(bell)

    # The workers' part

    def start_worker(self, slot: int = 0) -> Worker:
        """A new life of the slot's worker; its disk is that of the life before."""
        return self._new_life(self.workers, slot, RoleKind.IOPROC)

    def start_replica(self, slot: int) -> Worker:
        """A new life of the slot's replica process, on the same disk as its worker."""
        return self._new_life(self.replicas, slot, RoleKind.REPLICA)

    def start_slots(self) -> None:
        """All workers and replica processes, until the first image says what they serve."""
        for slot in range(self.settings.slots):
            self.start_worker(slot)
            for index in range(1, self.settings.io.workers):
                self.start_other(slot, index)
            if self.settings.slots > 1:
                self.start_replica(slot)
        self.until(lambda: self.images.version > 0)

    def start_other(self, slot: int, index: int) -> Worker:
        """A new life of a worker that is not the slot's first, on the same disk."""
        lost = self._lost_others.pop(Role(RoleKind.IOPROC, index, slot), 0)
        self.others[slot, index] = Worker(
            self.wiring,
            slot,
            generation=lost + 1,
            disk=self.disks.setdefault(slot, {}),
            opened=self.opened.setdefault(slot, {}),
            context=self._context,
            index=index,
        )
        return self.others[slot, index]

    def lose_other(self, slot: int, index: int) -> None:
        """Kills one, and tells the controller of it, if there is one."""
        lost = self.others.pop((slot, index))
        lost.die()
        self._lost_others[lost.role] = lost.generation
        if self.pid:
            self.tell_child(PeerDown(RoleKind.IOPROC, index, slot, lost.generation))

    def processes(self) -> list[Worker]:
        return [*self.workers.values(), *self.others.values(), *self.replicas.values()]

    def lose(self, *processes: Worker) -> None:
        """Kills stand-ins, and tells the controller of it."""
        for each in processes:
            each.die()
            living = self.replicas if each.kind is RoleKind.REPLICA else self.workers
            self.last_generations[each.kind, each.slot] = each.generation
            del living[each.slot]
            self.tell_child(PeerDown(each.kind, 0, each.slot, each.generation))

    def _new_life(self, living: dict[int, Worker], slot: int, kind: RoleKind) -> Worker:
        before = living.get(slot)
        if before is not None:
            before.die()
            self.last_generations[kind, slot] = before.generation
        living[slot] = Worker(
            self.wiring,
            slot,
            generation=self.last_generations.get((kind, slot), 0) + 1,
            disk=self.disks.setdefault(slot, {}),
            opened=self.opened.setdefault(slot, {}),
            context=self._context,
            kind=kind,
        )
        return living[slot]

    def partition(self, topic: str, number: int = 0) -> PartitionImage:
        """As clients see it."""
        return self.image.topics[topic].partitions[number]

    def create_as(self, role: Role, *topics: NewTopic) -> tuple[TopicOutcome, ...]:
        """Have another process than a network process ask for topics; return how they fared."""
        link = ControllerLink(self.wiring, role, 1, context=self._context)
        try:
            number = link.ask(CreateTopics(topics))
            answers: dict[int | None, Body] = {}

            def is_answered() -> bool:
                answers.update({each.id: each.body for each in link.receive()})
                return number in answers

            self.until(is_answered)
        finally:
            link.close()
        answer = answers[number]
        assert isinstance(answer, TopicOutcomes)
        return answer.outcomes

    def propose(self, slot: int, *wanted: WantedIsr) -> AlteredPartitions:
        """Has the worker of `slot` propose ISRs; what it is told."""
        worker = self.workers[slot]
        number = worker.propose(*wanted)
        self.until(lambda: number in worker.answers)
        answer = worker.answers.pop(number)
        assert isinstance(answer, AlteredPartitions)
        return answer

    # The network process's part

    def ask(self, body: Body) -> int:
        number = self._asker.ask(body)
        assert number is not None
        return number

    def until(self, done: Callable[[], bool], *, or_dead: bool = False) -> bool:
        """Lets workers work and answers come until `done`; False when the controller died before."""
        deadline = time.monotonic() + WAIT_S
        poll = select.poll()
        for link in (self._asker, *(each.link for each in self.processes())):
            poll.register(link.fileno(), select.POLLIN)
        while True:
            for each in self.processes():
                each.work()
            for envelope in self._asker.receive():
                self.answers[envelope.id] = envelope.body
            if done():
                return True
            if or_dead and self.is_dead():
                return False
            assert time.monotonic() < deadline, "waited too long"
            poll.poll(20)

    def answer(self, number: int) -> Body:
        self.until(lambda: number in self.answers)
        return self.answers.pop(number)

    def outcomes(self, body: Body) -> list[TopicOutcome]:
        """Asks and waits; the image of the answer's version is out."""
        answer = self.answer(self.ask(body))
        assert isinstance(answer, TopicOutcomes)
        assert self.images.version >= answer.image_version
        return list(answer.outcomes)

    def create(self, *topics: NewTopic | str, validate_only: bool = False) -> list[TopicOutcome]:
        wanted = tuple(NewTopic(each) if isinstance(each, str) else each for each in topics)
        return self.outcomes(CreateTopics(wanted, validate_only=validate_only))

    def delete(self, *names: str) -> list[TopicOutcome]:
        return self.outcomes(DeleteTopics(names))

    def grow(self, name: str, count: int) -> TopicOutcome:
        (outcome,) = self.outcomes(CreatePartitions(name, count))
        return outcome

    @property
    def image(self) -> ClusterImage:
        image = self.images.current()
        assert image is not None
        return image
