"""The runtime of a coordinator: the shards of the registered topics, and what their state machines want done.

    image, workers up and down ─→ shards: which to load, which to forget
    effects of a machine       ─→ Answer, AnswerInPieces, GoOn ─→ the responder
                                  Append ─→ the shard's next batch ─→ committed ─→ apply, then further effects

It knows no topic and no state machine but those that are registered (`state_machine`). Of a topic's partitions it loads
those that are its own (`Share`); the others belong to other coordinator processes and stay ABSENT.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol

from appliance.channels.partition_table import PartitionTable
from appliance.channels.roles import Role, coordinator_index
from appliance.clock import NS_PER_MS, Clock
from appliance.config import Settings
from appliance.control.coordinator.runtime.effects import (
    Answer,
    AnswerInPieces,
    Append,
    Effects,
    GoOn,
    Record,
)
from appliance.control.coordinator.runtime.shard import Pair, Shard, State
from appliance.control.coordinator.runtime.state_machine import Service, Steps
from appliance.ipc.agent import Timers
from appliance.journal import RateLimited
from appliance.partition_access.access import PartitionAccess
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode

EFFECTS_AT_ONCE: Final = 256
"""With more of one request or one deadline, the answers among them leave in slices of time."""
POOL_SHARES: Final = 4
"""So many batches of the largest size have room in the pool at once."""
STEPS_PAUSE_MS: Final = 5
"""Heartbeats are served between two stretches of `run_in_steps`."""
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)

_log = logging.getLogger(__name__)


class Responder(Protocol):
    """Answers requests, and keeps long ones going."""

    def respond(self, reply: Any, response: Any) -> None:
        """Answer a request."""
        ...

    def answer_in_pieces(
        self, replies: list[Any], elements: Iterator[Any], make: Callable[[tuple[Any, ...]], Any]
    ) -> None:
        """Answer requests that ask the same, in slices of time."""
        ...

    def respond_in_pieces(self, answers: Sequence[Answer]) -> None:
        """Answer many requests, in slices of time, after other work."""
        ...

    def go_on(self, action: Callable[[], None]) -> None:
        """Call `action` after other work."""
        ...


class Image(Protocol):
    """What the runtime sees of the metadata image."""

    def refresh(self) -> bool:
        """Take over the newest image; return whether it is another one."""
        ...

    def log_places(self, topic: str) -> tuple[LogPlace | None, ...]:
        """Return where each partition of `topic` is led, None where nowhere; empty without that topic."""
        ...

    def batch_bytes_max(self, topic: str, settings: Settings, slot: int) -> int:
        """Return the largest batch that `topic` takes where `slot` leads it."""
        ...


class TopicShards:
    """The shards of one registered topic; none while the topic does not exist."""

    __slots__ = ("_runtime", "has_image", "service", "shards")

    def __init__(self, runtime: CoordinatorRuntime, service: Service) -> None:
        self._runtime = runtime
        self.service = service
        self.shards: list[Shard] = []
        self.has_image = False
        """Whether an image has said if the topic exists."""

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being loaded."""
        return any(shard.state is State.LOADING for shard in self.shards)

    def carry_out(self, effects: Effects) -> None:
        """Carry out what a machine of this topic wants done, in order; many answers come last."""
        if len(effects) > EFFECTS_AT_ONCE:
            # The members of a large group. Each one's answer is its own, so it may leave after what else is to be done.
            answers = [effect for effect in effects if isinstance(effect, Answer)]
            effects = [effect for effect in effects if not isinstance(effect, Answer)]
            self._runtime.responder.respond_in_pieces(answers)
        for effect in effects:
            match effect:
                case Answer(reply, response):
                    self._runtime.responder.respond(reply, response)
                case AnswerInPieces(reply, elements, make):
                    self._runtime.responder.answer_in_pieces([reply], elements, make)
                case GoOn(action):
                    self._go_on(action)
                case Append():
                    self._append(effect)

    def _go_on(self, action: Callable[[], Effects]) -> None:
        self._runtime.responder.go_on(lambda: self.carry_out(action()))

    def _append(self, append: Append) -> None:
        partition, records, then, producer = append.partition, append.records, append.then, append.producer
        if partition >= len(self.shards):  # the topic was made anew with fewer partitions
            self.carry_out(then(_NOT_LEADER))
            return
        shard = self.shards[partition]

        def appended(error: int) -> None:
            if not error and producer is None:
                shard.machine.apply(records)
            self.carry_out(then(error))

        shard.write(pairs(records), appended, producer=producer, reserved_bytes=append.reserved_bytes)

    def later(self, delay_ms: int, action: Callable[[], Effects]) -> None:
        """Call `action` after `delay_ms` and carry out what it returns."""
        self._runtime.later(delay_ms, lambda: self.carry_out(action()))

    def run_in_steps(
        self, steps: Steps, *, at_once: int, done: Callable[[], None], pause_ms: int = STEPS_PAUSE_MS
    ) -> None:
        """Carry out steps until `at_once` elements were looked at, then pause; `done` is called after the last step.

        Each step may see a state that requests have changed in the pause before it.
        """
        looked_at = 0
        for elements, effects in steps:
            looked_at += elements
            self.carry_out(effects)
            if looked_at >= at_once:
                self._runtime.later(
                    pause_ms, lambda: self.run_in_steps(steps, at_once=at_once, done=done, pause_ms=pause_ms)
                )
                return
        done()


class Share:
    """Which partitions of each internal topic this process serves, as `channels.roles.coordinator_index` says."""

    __slots__ = ("index", "processes")

    def __init__(self, index: int = 0, processes: int = 1) -> None:
        self.index = index
        self.processes = processes

    def has(self, partition: int) -> bool:
        """Return whether the partition belongs to this process."""
        return coordinator_index(partition, processes=self.processes) == self.index


class CoordinatorRuntime:
    """All shards. Single-threaded; `turn` once in every turn of the process.

    `responder` is set before anything is registered.
    """

    def __init__(
        self,
        settings: Settings,
        image: Image,
        access: PartitionAccess,
        table: PartitionTable,
        *,
        responder: Responder,
        timers: Timers,
        clock: Clock,
        share: Share,
    ) -> None:
        self.responder = responder
        self.share = share
        self.appends = 0
        self._settings = settings
        self._image = image
        self._access = access
        self._table = table
        self._timers = timers
        self._clock = clock
        self._registered: list[TopicShards] = []
        self._by_topic: dict[str, TopicShards] = {}
        # In the order in which they were written to.
        self._dirty: dict[Shard, None] = {}
        self._complain = RateLimited(_log.warning, clock)

    def register(self, service: Service) -> TopicShards:
        """Serve the topic of `service` from the next image on."""
        topic = TopicShards(self, service)
        self._registered.append(topic)
        self._by_topic[service.topic] = topic
        return topic

    # Time

    def turn(self) -> bool:
        """End a turn: what is due, and what waits for its log. False: some writes must wait for room."""
        self.follow_image()
        for topic in self._registered:
            deadline_ms = topic.service.next_deadline_ms()
            if deadline_ms is not None and deadline_ms * NS_PER_MS <= self._clock.monotonic_ns():
                topic.carry_out(topic.service.expire())
        return self.flush()

    def flush(self) -> bool:
        """Send what waits for its log. False: some of it still waits; call again soon."""
        if not self._dirty:
            return True
        dirty, self._dirty = self._dirty, {}
        self.appends += len(dirty)
        for shard in dirty:
            if not shard.flush():
                self._dirty[shard] = None
        return not self._dirty

    def next_due_ns(self) -> int | None:
        """Return when `turn` has something to do that no message announces."""
        due_ms: int | None = None
        for topic in self._registered:
            deadline_ms = topic.service.next_deadline_ms()
            if deadline_ms is not None and (due_ms is None or deadline_ms < due_ms):
                due_ms = deadline_ms
        return None if due_ms is None else due_ms * NS_PER_MS

    # The image, the workers

    def follow_image(self) -> None:
        """Take over the newest image, if there is a newer one."""
        if self._image.refresh():
            for topic in self._registered:
                self._follow(topic)

    def _follow(self, topic: TopicShards) -> None:
        service = topic.service
        topic.has_image = True
        places = self._image.log_places(service.topic)
        if len(places) != len(topic.shards):
            # The topic is new, or another one: every key belongs elsewhere than before.
            for shard in topic.shards:
                shard.unload()
                self._dirty.pop(shard, None)
            topic.shards = self._new_shards(service, len(places))
        bytes_max = {
            leader: self._entry_bytes_max(service.topic, leader)
            for leader in {place.leader for place in places if place}
        }
        for shard, place in zip(topic.shards, places, strict=True):
            if not self.share.has(shard.number):
                continue
            if place is not None:
                shard.entry_bytes_max = bytes_max[place.leader]
            shard.follow(place)
        topic.carry_out(service.image_changed())
        for shard in topic.shards:
            if shard.state is State.ACTIVE:
                topic.carry_out(shard.machine.image_changed())

    def _entry_bytes_max(self, topic: str, leader: int) -> int:
        pool_share = self._settings.broker.coordinator_pool_bytes // POOL_SHARES
        return min(self._image.batch_bytes_max(topic, self._settings, leader), pool_share)

    def _new_shards(self, service: Service, partitions: int) -> list[Shard]:
        return [
            Shard(
                service.topic,
                number,
                machine,
                self._access,
                self._table,
                listener=self,
                now_ms=self._clock.now_ms,
                codec=service.codec,
                decompressed_bytes_max=self._settings.broker.max_decompressed_message_bytes,
            )
            for number, machine in enumerate(service.machines(partitions))
        ]

    def worker_up(self, worker: Role) -> None:
        """A worker serves: load what it leads."""
        for topic in self._registered:
            for shard in topic.shards:
                if shard.place is not None and shard.place.worker == worker:
                    shard.look()

    def worker_down(self, worker: Role) -> None:
        """A worker died and its rings are gone: what it led is loaded again from its next life."""
        self._access.worker_down(worker)
        for topic in self._registered:
            for shard in topic.shards:
                if shard.place is not None and shard.place.worker == worker:
                    shard.unload()

    # What shards say

    def loaded(self, shard: Shard) -> None:
        self._by_topic[shard.topic].carry_out(shard.machine.loaded())

    def unloaded(self, shard: Shard) -> None:
        self._by_topic[shard.topic].carry_out(shard.machine.unloaded())

    def dirty(self, shard: Shard) -> None:
        self._dirty[shard] = None

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._timers.add(self._clock.monotonic_ns() + delay_ms * NS_PER_MS, action)

    def warn(self, text: str) -> bool:
        return self._complain(text)

    def statistics(self) -> dict[str, int]:
        """Partitions by state, and what waits for its log."""
        shards = [shard for topic in self._registered for shard in topic.shards]
        told = [shard.statistics() for shard in shards]
        return {
            "loaded": sum(shard.state is State.ACTIVE for shard in shards),
            "loading": sum(shard.state is State.LOADING for shard in shards),
            "waiting": sum(each["waiting"] for each in told),
            "in_flight": sum(each["in_flight"] for each in told),
        }


def pairs(records: Sequence[Record]) -> list[Pair]:
    """Return key and value of each record."""
    return [(record.key, record.value) for record in records]
