"""A coordinator's runtime and the owner of its logs, over real rings and real logs, in the test's own process.

The test says who does the next step and who dies between two steps. The owner is a worker's handlers without its loop:

    ring ──fetch_requests──→ asked ──append_next──→ held ──answer──→ ring
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

from appliance.channels.control_channel import AssignedPartition
from appliance.channels.request_channel import ERROR, LENGTH_BYTES, OP, POSITION, ROW, Op, refusal
from appliance.channels.roles import COORDINATOR, Role, RoleKind
from appliance.channels.wiring import Attachment, Wiring
from appliance.clock import ManualClock
from appliance.cluster import ClusterImage, PartitionImage, TopicImage, TopicPartition
from appliance.config import Settings
from appliance.control.coordinator.group_machines import GroupMachines
from appliance.control.coordinator.runtime.effects import Answer
from appliance.control.coordinator.runtime.runtime import CoordinatorRuntime, Share, TopicShards
from appliance.control.coordinator.runtime.shard import State
from appliance.control.coordinator.runtime.state_machine import Service
from appliance.control.coordinator.topics import ImageTopics
from appliance.control.coordinator.transaction_machines import TransactionMachines
from appliance.ioproc.handlers.fetch import fetch
from appliance.ioproc.handlers.permit_transaction import permit_transaction
from appliance.ioproc.handlers.produce import produce
from appliance.ioproc.handlers.write_marker import write_marker
from appliance.ioproc.partition import Partition
from appliance.ipc.agent import Timers
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.shared_memory import remove_directory
from appliance.log.config import LogSettings
from appliance.log.file_names import partition_directory_name
from appliance.log.partition_log import PartitionLog
from appliance.partition_access.access import PartitionAccess
from appliance.protocol.errors import ErrorCode
from tests.support.private_directory import new_private_directory
from tests.support.published import publisher_in

WORKER = Role(RoleKind.IOPROC, 0, 0)
TURNS_MAX = 200
TICK_MS = 60
"""More than the pause after which a shard looks again."""


class Nobody:
    """Takes the answers to requests, of which there are none here."""

    def respond(self, reply: Any, response: Any) -> None:
        raise AssertionError("no request was made")

    def answer_in_pieces(
        self, replies: list[Any], elements: Iterator[Any], make: Callable[[tuple[Any, ...]], Any]
    ) -> None:
        raise AssertionError("no request was made")

    def respond_in_pieces(self, answers: Sequence[Answer]) -> None:
        raise AssertionError("no request was made")

    def go_on(self, action: Callable[[], None]) -> None:
        action()


class Host:
    """Args:
    path: where the logs lie.
    topic: what the service is registered for; it exists from the start, with so many `partitions`.
    make_service: a new life's service.
    """

    def __init__(
        self,
        path: Path,
        topic: str,
        make_service: Callable[[Host], Service],
        *,
        partitions: int = 2,
        share: Share | None = None,
    ) -> None:
        settings = Settings(data_dir=path)
        self.settings = replace(settings, broker=replace(settings.broker, coordinator_pool_bytes=4 << 20))
        self.topic = topic
        self.topic_id = UUID(int=77)
        self.partitions = partitions
        self.share = Share() if share is None else share
        self.clock = ManualClock()
        self.asked: deque[tuple[Any, ...]] = deque()
        self.held: deque[tuple[Any, ...]] = deque()
        self.epoch = 0
        self._make_service = make_service
        self._memory = new_private_directory()
        self._bells = {role: Doorbell.create_eventfd() for role in (WORKER, COORDINATOR)}
        self.wiring = Wiring(self.settings, "appliance-test", self._memory, self._bells)
        self.wiring.create_standing_regions()
        self._generations = {WORKER: 1, COORDINATOR: 1}
        self.wiring.create_for(WORKER, 1, {})
        self.wiring.create_for(COORDINATOR, 1, {WORKER: 1})
        self.worker = Attachment(self.wiring, WORKER, 1, {COORDINATOR: 1})
        self.coordinator = Attachment(self.wiring, COORDINATOR, 1, {WORKER: 1})
        self._publisher = publisher_in(self._memory)
        self.led: list[Partition] = []
        self.is_led = False
        self.lead()
        self.publish_image()
        self._begin()

    def close(self) -> None:
        self.stop_leading()
        for descriptor in self._bells.values():
            os.close(descriptor)
        remove_directory(self._memory)

    # The coordinator

    def _begin(self) -> None:
        assert self.coordinator.pool is not None
        self.timers = Timers()
        self.access = PartitionAccess(
            self.coordinator,
            BufferPool(self.coordinator.pool.view),
            directories={0: self.settings.log_directories(0)},
            is_lone=lambda: False,
        )
        self.image = ImageTopics(self.coordinator.image)
        self.runtime = CoordinatorRuntime(
            self.settings,
            self.image,
            self.access,
            self.coordinator.partitions,
            responder=Nobody(),
            timers=self.timers,
            clock=self.clock,
            share=self.share,
        )
        self.service = self._make_service(self)
        self.shards: TopicShards = self.runtime.register(self.service)
        if isinstance(self.service, (GroupMachines, TransactionMachines)):
            self.service.shards = self.shards

    def turn(self) -> None:
        """One turn of the coordinator: answers, the image, what is due, writes."""
        reader = self.coordinator.inbound.get(WORKER)
        self.runtime.follow_image()
        if reader is not None:
            self.access.take(reader.drain())
        self.timers.run_due(self.clock.monotonic_ns())
        self.runtime.turn()
        self.access.publish()

    def kill_coordinator(self) -> None:
        """Its memory is gone, and its rings; what the owner has not taken from them was never asked."""
        self.asked.clear()
        self.held.clear()
        self._generations[COORDINATOR] += 1
        generation = self._generations[COORDINATOR]
        self.worker.peer_down(COORDINATOR)
        self.wiring.create_for(COORDINATOR, generation, {WORKER: self._generations[WORKER]})
        self.coordinator = Attachment(
            self.wiring, COORDINATOR, generation, {WORKER: self._generations[WORKER]}
        )
        assert self.worker.peer_up(COORDINATOR, generation)
        self._begin()

    # The owner

    def lead(self) -> None:
        """The owner opens its logs and serves them."""
        root = self.settings.log_directories(0)[0]
        table = self.worker.partitions
        for number in range(self.partitions):
            log = PartitionLog.open(
                root / partition_directory_name(TopicPartition(self.topic, number)),
                settings=LogSettings(),
                clock=self.clock,
            )
            assigned = AssignedPartition(
                self.topic, self.topic_id, number, number, 1, 0, self.epoch, (0,), (0,), {}
            )
            partition = Partition(assigned, log, table=table, slot=0, min_insync_replicas=1, clock=self.clock)
            partition.serve()
            self.led.append(partition)
        self.is_led = True

    def stop_leading(self) -> None:
        """The logs are as a killed worker leaves them: not closed in good order, nothing flushed."""
        self.led.clear()
        self.is_led = False

    def kill_worker(self) -> None:
        """The owner dies with what it was asked, appended or not; `lead_again` is its next life."""
        self.asked.clear()
        self.held.clear()
        self.stop_leading()
        self.coordinator.peer_down(WORKER)
        self.runtime.worker_down(WORKER)

    def lead_again(self) -> None:
        """The owner's next life has opened its logs."""
        self._generations[WORKER] += 1
        generation = self._generations[WORKER]
        peers = {COORDINATOR: self._generations[COORDINATOR]}
        self.wiring.create_for(WORKER, generation, peers)
        self.worker = Attachment(self.wiring, WORKER, generation, peers)
        self.lead()
        if WORKER in self.coordinator.generations:
            # A coordinator that began while the owner was dead is attached to the rings of the dead one.
            self.coordinator.peer_down(WORKER)
            self.runtime.worker_down(WORKER)
        assert self.coordinator.peer_up(WORKER, generation)
        self.runtime.follow_image()
        self.runtime.worker_up(WORKER)

    def fetch_requests(self) -> None:
        """The owner takes what was asked from the ring."""
        reader = self.worker.inbound.get(COORDINATOR)
        if reader is not None and self.is_led:
            self.asked += reader.drain()

    def append_next(self, *, error: int = 0) -> None:
        """The owner does the oldest thing that it was asked; it refuses a PRODUCE that is to meet an `error`."""
        message = self.asked.popleft()
        partition = self.led[message[ROW]]
        if message[OP] == Op.FETCH:
            self.held.append(fetch(partition, message))
        elif error:
            self.held.append(refusal(message, error))
        elif message[OP] == Op.PERMIT_TRANSACTION:
            self.held.append(permit_transaction(partition, message))
        elif message[OP] == Op.WRITE_MARKER:
            self.held.append(write_marker(partition, message, now_ms=self.clock.now_ms()))
            partition.publish()
        else:
            view = self.worker.pools[COORDINATOR].view
            batch = view[message[POSITION] : message[POSITION] + message[LENGTH_BYTES]]
            answer = produce(partition, message, batch, 0)
            assert answer is not None
            if not answer[ERROR]:
                partition.publish()
            self.held.append(answer)

    def answer(self) -> None:
        """The owner answers what it has done."""
        writer = self.worker.outbound[COORDINATOR]
        while self.held:
            assert writer.put(*self.held.popleft())
        writer.publish()

    def new_epoch(self) -> None:
        """The leader changes, and it is the same slot again."""
        self.epoch += 1
        for partition in self.led:
            partition.leader_epoch = self.epoch
        self.publish_image()

    def publish_image(self) -> None:
        topic = TopicImage(
            self.topic,
            self.topic_id,
            tuple(
                PartitionImage(number, number, 1, 0, self.epoch, (0,), (0,))
                for number in range(self.partitions)
            ),
            internal=True,
        )
        version = self._publisher.version + 1
        self._publisher.publish(ClusterImage(version, "c", 0, 1, (), {self.topic: topic}))

    # Both

    def settle(self) -> None:
        """Everybody lives and works until there is nothing left to do."""
        if not self.is_led:
            self.lead_again()
        for _ in range(TURNS_MAX):
            self.clock.advance(TICK_MS)
            self.turn()
            self.fetch_requests()
            while self.asked:
                self.append_next()
            self.answer()
            self.turn()
            statistics = self.runtime.statistics()
            owned = sum(self.share.has(shard.number) for shard in self.shards.shards)
            if statistics == {"loaded": owned, "loading": 0, "waiting": 0, "in_flight": 0}:
                return
        raise AssertionError(f"nothing settles: {self.runtime.statistics()}")

    def is_active(self, partition: int) -> bool:
        shards = self.shards.shards
        return bool(shards) and shards[partition].state is State.ACTIVE

    def log_ends(self) -> list[int]:
        return [partition.log.log_end_offset for partition in self.led]


NOT_ENOUGH = int(ErrorCode.NOT_ENOUGH_REPLICAS)
DISK = int(ErrorCode.KAFKA_STORAGE_ERROR)
