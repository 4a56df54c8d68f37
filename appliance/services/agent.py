"""The agent of a services process: reads the internal topics of delayed delivery, and delivers what is due.

    network processes ─ delayed records ─→ __delayed_5s, … ─→ forwarders ─→ the topics
                      └ doorbell ────────────────────────────→ (one for each partition of the internal topics)

Does: reads and appends through the rings of the workers; has the controller create the internal topics. Never: opens a
log for writing, keeps state that is not in a topic, serves a client, polls. Asleep it wakes for a doorbell, an answer,
and the next due record. While something waits it wakes once in CLOCK_LOOK_MS at least, because the clock may have been
set. Dies: its next life repeats each delivery that had not ended, and the logs recognize those that had.

Of several services processes each has the partitions p of the internal topics for which p modulo their number is its
index.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.channels.roles import Role, RoleKind
from appliance.channels.traffic_table import LATENESS, WORD_BYTES, stages_at
from appliance.clock import NS_PER_MS
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.shared_memory import Region
from appliance.partition_access.access import PartitionAccess
from appliance.partition_access.producer_ids import ProducerIdBlocks
from appliance.process.agent import AgentProcess
from appliance.services.complaints import Complaints
from appliance.services.delay_topics import DelayTopics
from appliance.services.deliveries import Counts
from appliance.services.forwarder import Forwarder, State
from appliance.services.observers import Observers
from appliance.services.overdue_rate import OverdueRate
from appliance.services.state_log import PAUSE_MS

CLOCK_LOOK_MS: Final = 1_000
LAST_TURN_MS: Final = 10


class ServicesAgent:
    """The loop and its state; `run` returns when the supervisor sends Stop, or is gone."""

    def __init__(self, process: AgentProcess) -> None:
        attachment, settings, clock = process.attachment, process.settings, process.clock
        assert attachment.pool is not None
        self._process = process
        self._attachment = attachment
        self._clock = clock
        self._controller = process.controller_link()
        self._producer_ids = ProducerIdBlocks(lambda: self._controller, clock)
        self._topics = DelayTopics(settings, attachment.image, clock)
        self._logs = PartitionAccess(
            attachment,
            BufferPool(attachment.pool.view, discard=attachment.pool.discard),
            directories={slot: settings.log_directories(slot) for slot in range(settings.slots)},
            is_lone=lambda: False,
        )
        self._counts = Counts()
        rate = settings.services.overdue_rate_max
        self._overdue_rate = OverdueRate(rate, clock) if rate else None
        self._lateness = _lateness_cells(process) if settings.counts_traffic else None
        self._complain = Complaints(process.warn, clock)
        self._forwarders: dict[int, Forwarder] = {}
        self._observers = Observers(process, self._logs) if process.role.index == 0 else None
        self._is_creating = False
        self._running = True
        self._until_ns = 0

    def run(self) -> None:
        """Deliver until Stop."""
        process = self._process
        process.publish_counters(self.counters)
        process.ready()
        self.turn(timeout_ms=0)
        while self._running:
            self.turn()
        for forwarder in self._forwarders.values():
            forwarder.stop()
        if self._observers is not None:
            self._observers.stop()
        process.stopping()
        while not all(each.is_at_rest for each in self._forwarders.values()):
            if self._clock.monotonic_ns() >= self._until_ns:
                break
            self.turn(timeout_ms=LAST_TURN_MS)
        self._say_dropped(is_last=True)
        self._controller.close()
        process.close()

    def turn(self, *, timeout_ms: int | None = None) -> None:
        """One turn; sleeps first until there is work, at most for `timeout_ms`."""
        process = self._process
        wanted_ms = self._timeout_ms() if timeout_ms is None else timeout_ms
        for descriptor, _ in process.cycle.wait(wanted_ms):
            if descriptor == process.supervision_fd and self._running:
                process.hear(self)
        self._producer_ids.hear()
        if not self._producer_ids.is_connected:
            self._controller.receive()  # a message that nobody reads would wake this process again and again
        for peer, reader in list(self._attachment.inbound.items()):
            if peer.kind is RoleKind.IOPROC:
                self._logs.take(reader.drain())
        if self._topics.follow_image():
            self._find_forwarders()
        self._is_creating = self._topics.create_missing(self._controller)
        for forwarder in self._forwarders.values():
            forwarder.turn()
        if self._observers is not None:
            self._observers.turn(self._controller)
        self._say_dropped()
        self._logs.publish()

    def _say_dropped(self, *, is_last: bool = False) -> None:
        self._counts.drops.tell(self._process.warn, self._clock.monotonic_ns(), is_last=is_last)

    def _find_forwarders(self) -> None:
        """Each partition that is this process's gets its forwarder, once all internal topics are there."""
        partitions = self._topics.partitions
        if not partitions:
            return
        processes = self._process.settings.services.processes
        for partition in range(self._process.role.index, partitions, processes):
            if partition not in self._forwarders:
                self._producer_ids.prepare()
                self._forwarders[partition] = Forwarder(
                    partition,
                    self._topics,
                    self._logs,
                    clock=self._clock,
                    take_producer_id=self._producer_ids.take,
                    counts=self._counts,
                    complain=self._complain,
                    overdue_rate=self._overdue_rate,
                )

    def _timeout_ms(self) -> int | None:
        """How long nothing is to be done; None: until somebody says something."""
        looks = [
            each for forwarder in self._forwarders.values() if (each := forwarder.next_look_ms()) is not None
        ]
        if self._observers is not None and (look_ms := self._observers.next_look_ms()) is not None:
            looks.append(look_ms)
        if self._is_creating or not self._topics.has_image:
            looks.append(PAUSE_MS)
        if (wait_ms := self._counts.drops.wait_ms(self._clock.monotonic_ns())) is not None:
            looks.append(wait_ms)
        return min(*looks, CLOCK_LOOK_MS) if looks else None

    def counters(self) -> Mapping[str, int]:
        """What this life has delivered, and what it could not. How late that was goes to shared memory."""
        statistics = [each.statistics() for each in self._forwarders.values()]
        if self._lateness is not None:
            self._counts.take_lateness(self._lateness)
        return {
            "delivered_records": self._counts.delivered,
            "waiting_deliveries": sum(each.open_deliveries for each in statistics),
            "repeated_records": sum(each.repeated for each in statistics),
            "dropped_records": self._counts.drops.total,
            "cancelled_records": self._counts.cancelled,
            "unread_records": sum(each.unread for each in statistics),
            "waiting_records": sum(each.waiting for each in statistics),
            "overdue_ms": max((each.overdue_ms for each in statistics), default=0),
            **({} if self._observers is None else self._observers.counters()),
        }

    @property
    def is_running(self) -> bool:
        """Whether every partition of this process is delivered from."""
        return all(each.state is State.RUNNING for each in self._forwarders.values())

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End when what is under way is answered."""
        self._running = False
        self._until_ns = self._clock.monotonic_ns() + within_ms * NS_PER_MS // 2

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """The next turn reads what a worker has that serves now. A new controller is asked for producer ids."""
        if peer.kind is RoleKind.CONTROLLER:
            self._producer_ids.controller_changed()

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """What a dead worker was asked has failed."""
        if not had_rings:
            return
        self._process.release(peer)
        if peer.kind is RoleKind.IOPROC:
            self._logs.worker_down(peer)


def _lateness_cells(process: AgentProcess) -> memoryview:
    """Return the words in which this process counts how late its deliveries were (`channels.traffic_table`)."""
    settings = process.settings
    number = settings.slots * settings.io.workers + process.role.index
    at = stages_at(number, rows=settings.broker.max_partitions)
    page = Region.open_page(process.wiring.logs_name, at * WORD_BYTES)
    return page.view.cast("B").cast("q")[LATENESS:]
