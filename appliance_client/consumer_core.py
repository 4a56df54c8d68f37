"""A consumer without I/O: subscription, assignment, commits. Both faces stand on it.

Everything here is called with `core.lock` held, by the thread that owns the sockets or by the application's.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from appliance_client.asked_order import AskedOrder
from appliance_client.classic_group import ClassicMembership
from appliance_client.consumer_group import ConsumerGroupMembership
from appliance_client.core import Core, logger
from appliance_client.deaths import Deaths, Plan
from appliance_client.errors import ClientError, IllegalStateError, OptionError
from appliance_client.fetching import Fetching
from appliance_client.handing_back import RetryTopics
from appliance_client.interceptors import ConsumerInterceptors, Records
from appliance_client.key_order import KeyOrder
from appliance_client.key_orders import KeyOrders
from appliance_client.listener import RebalanceListener
from appliance_client.membership import Coordinator, Membership
from appliance_client.options import ConsumerOptions, pattern_of
from appliance_client.ordered import Ordered
from appliance_client.reading import Reading
from appliance_client.scheduling import Outcome, Task
from appliance_client.values import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    TopicPartition,
    checked_name,
)

NOTHING: Final[Mapping[TopicPartition, int]] = MappingProxyType({})

__all__ = ["ConsumerCore", "RebalanceListener", "Records", "Turn"]


class Turn(NamedTuple):
    """A call that waits for the application's thread."""

    call: Callable[[], Any]
    outcome: Outcome[Any]


class ConsumerCore:
    """The state of a consumer. The faces add waiting."""

    def __init__(self, options: ConsumerOptions, core: Core) -> None:
        self.options = options
        self.core = core
        self.interceptors = ConsumerInterceptors(options.interceptors)
        self.turns: deque[Turn] = deque()
        self.on_news: Callable[[], None] = lambda: None
        """Called when poll has something to do."""
        self.coordinator = (
            Coordinator(options, core, options.group_id) if options.group_id is not None else None
        )
        self.fetching = Fetching(options, core, self._committed if self.coordinator is not None else None)
        self.fetching.on_news = self._news
        self.fetching.on_take = self._taking
        self.retry_topics = RetryTopics(options.group_id or "") if options.retry_topics else None
        # Only a consumer that commits by itself knows what was processed.
        self.deaths = Deaths() if options.retry_topics and options.enable_auto_commit else None
        self.ordered = Ordered() if options.retry_topics else None
        self._asked_order: AskedOrder | None = None
        if self.retry_topics is not None and self.ordered is not None:
            self._asked_order = AskedOrder(core.network, self.retry_topics, self.ordered)
        self.key_orders = KeyOrders(self.fetching, finds_deaths=self.deaths is not None)
        self.by_key = self.key_orders.partitions
        """Partitions of which the group asks for the order of keys."""
        self._names: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._listener: RebalanceListener | None = None
        self._assigned_by_hand = False
        self._membership: Membership | None = None
        self._losses = 0
        """Of the membership when records were handed out last."""
        self._running: Task[None] | None = None
        self._polls = False
        self._polled_s = core.scheduler.now_s
        self._next_commit_s = core.scheduler.now_s + options.auto_commit_interval_ms / 1000
        core.pump = self.fetching.pump
        core.metadata.on_change = self._metadata_changed
        core.metadata.in_use = self._topics_in_use
        core.metadata.on_refused = self.failed

    def _news(self) -> None:
        self.on_news()

    # ── subscription ─────────────────────────────────────────────────────────────────────────────────────

    def subscribe(
        self,
        topics: Iterable[str] | str,
        pattern: str | re.Pattern[str] | None,
        listener: RebalanceListener | None,
    ) -> None:
        """Read these topics, or those that match, as a member of the group."""
        if self._assigned_by_hand:
            raise IllegalStateError("partitions are assigned by hand; unsubscribe first")
        if self.coordinator is None:
            raise OptionError("subscribe needs a group.id; assign reads without one")
        listed = (topics,) if isinstance(topics, str) else tuple(topics)
        names = tuple(sorted({checked_name(each) for each in listed}))
        if bool(names) == (pattern is not None):
            raise OptionError("give topics or a pattern, one of both")
        compiled = None if pattern is None else pattern_of(pattern)
        if self.retry_topics is not None:
            if pattern is not None:
                raise OptionError("retry.topics needs the names of topics, and takes no pattern")
            added = self.retry_topics.add(names)
            self.fetching.from_start = frozenset(added)
            names = tuple(sorted({*names, *added}))
        self._names = names
        self._pattern = compiled
        self._listener = listener
        metadata = self.core.metadata
        if self._pattern is not None:
            metadata.all_topics = True
            metadata.request_update()
        else:
            metadata.want(*names)
        if self._membership is None:
            kind = ClassicMembership if self.options.group_protocol == "classic" else ConsumerGroupMembership
            self._membership = kind(self.options, self.core, self.coordinator, self)
            self._losses = 0
            self._polled_s = self.core.scheduler.now_s
            self._running = self.core.background(self._run_membership(self._membership))
        else:
            self._membership.subscription_changed()
        self.core.touch()

    async def _run_membership(self, membership: Membership) -> None:
        if self._pattern is not None:
            while not self.core.metadata.topics:
                await self.core.metadata.updated()
        await membership.run()

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions, without a group's help."""
        if self._membership is not None:
            raise IllegalStateError("a subscription is under way; unsubscribe first")
        listed = list(places)
        self._assigned_by_hand = bool(listed)
        self.fetching.assign(listed)

    async def unsubscribe(self) -> None:
        """Give everything up and leave the group."""
        membership, self._membership = self._membership, None
        if membership is not None:
            await self._leave(membership)
        self._names, self._pattern, self._listener = (), None, None
        self._assigned_by_hand = False
        self.core.metadata.all_topics = False
        self.fetching.assign(())

    async def _leave(self, membership: Membership) -> None:
        if self._running is not None:
            self._running.cancel()
            self._running = None
        if self._commits_by_itself and membership.owned:
            offsets = self.positions(membership.owned)
            await self._auto_commit(offsets, 5.0, "auto commit before leaving the group")
        await membership.leave()
        while self.turns:
            self.turns.popleft().outcome.resolve(None)

    def topics(self) -> tuple[str, ...]:
        """What is subscribed to now."""
        if self._pattern is None:
            return self._names
        hides = self.options.exclude_internal_topics
        return tuple(
            sorted(
                topic.name
                for topic in self.core.metadata.topics.values()
                if self._pattern.match(topic.name)
                and not topic.error_code
                and not (hides and topic.is_internal)
            )
        )

    def _topics_in_use(self) -> set[str]:
        watched = () if self._membership is None else self._membership.watched_topics()
        return {*self._names, *watched, *(place.topic for place in self.fetching.readings)}

    def _metadata_changed(self) -> None:
        self.core.touch()
        own = {*self._names, *(place.topic for place in self.fetching.readings)} - self.fetching.from_start
        for error in self.core.metadata.refusals(own):
            self.failed(error)
        if self._membership is not None:
            self._membership.subscription_changed()

    # ── what a membership asks (membership.Application) ──────────────────────────────────────────────────

    def in_poll(self, call: Callable[[], Any]) -> Outcome[Any]:
        """Call this on the application's thread, within its next poll."""
        turn = Turn(call, Outcome())
        self.turns.append(turn)
        self.on_news()
        return turn.outcome

    def assigned(self, places: Sequence[TopicPartition]) -> None:
        """From now on these are read."""
        if self._membership is not None:
            self.fetching.assign(places)

    def hold(self, places: Sequence[TopicPartition]) -> Callable[[], None]:
        """What stops `poll` from handing out records of these. Called late it does nothing to a later assignment."""
        held = [self.fetching.readings[place] for place in places if place in self.fetching.readings]

        def stop() -> None:
            for reading in held:
                reading.held = True

        return stop

    def positions(
        self, places: Iterable[TopicPartition], not_given: Mapping[TopicPartition, int] = NOTHING
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where the application has come to; nothing of a partition whose position is not known yet.

        Args:
            not_given: from this offset on, what was taken for the application has not come to it.
        """
        found = {}
        for place in places:
            reading = self.fetching.readings.get(place)
            in_order = self.key_order(place) if self.by_key else None
            if in_order is not None and reading is not None:
                all_given = in_order.all_given(reading.position, not_given.get(place))
                if all_given is not None:
                    found[place] = all_given
            elif place in not_given and reading is not None and reading.position is not None:
                found[place] = OffsetAndMetadata(not_given[place])
            elif reading is not None and reading.position is not None:
                text = "" if self.ordered is None else self.ordered.text(place, reading.position)
                found[place] = OffsetAndMetadata(reading.position, text, reading.position_epoch)
        return found

    def failed(self, error: ClientError) -> None:
        """Have the next poll raise this."""
        self.fetching.tell(error)

    def idle_s(self) -> float:
        """How long the application has not polled."""
        return 0.0 if self._polls else self.core.scheduler.now_s - self._polled_s

    def revoked(self, places: Sequence[TopicPartition]) -> Any:
        """Tell the listener. What its method returns may be awaitable, in asyncio."""
        return None if self._listener is None else self._listener.on_partitions_revoked(list(places))

    def lost(self, places: Sequence[TopicPartition]) -> Any:
        """Tell the listener. What its method returns may be awaitable, in asyncio."""
        return None if self._listener is None else self._listener.on_partitions_lost(list(places))

    def gained(self, places: Sequence[TopicPartition]) -> Any:
        """Tell the listener, of nothing too: the first rebalance may bring nothing."""
        return None if self._listener is None else self._listener.on_partitions_assigned(list(places))

    # ── polling ──────────────────────────────────────────────────────────────────────────────────────────

    def poll_begins(self) -> None:
        """The application polls: all that it was given before it has processed."""
        self._polls = True
        self.key_orders.polls(is_done=self._commits_by_itself)
        if not self._commits_by_itself:
            return
        now_s = self.core.scheduler.now_s
        if now_s >= self._next_commit_s:
            self._next_commit_s = now_s + self.options.auto_commit_interval_ms / 1000
            offsets = self.positions(self.fetching.readings)
            if offsets:
                limit_s = self.options.default_api_timeout_ms / 1000
                self.core.background(self._auto_commit(offsets, limit_s, "auto commit", self.owner()))

    def _taking(self) -> None:
        if self._membership is not None:
            self._losses = self._membership.losses

    def owner(self) -> Callable[[], GroupMetadata]:
        """What says as which member to commit the records that the application processes now."""
        assert self.coordinator is not None
        if self._membership is None:
            return self.coordinator.identity
        return partial(self._membership.committing_since, self._losses)

    def poll_ends(self) -> None:
        """The application goes on with what it got."""
        self._polls = False
        self._polled_s = self.core.scheduler.now_s

    def turn_ends(self) -> None:
        """The poll goes on. The time of a listener's turn counts against max.poll.interval.ms, as in Kafka."""
        self._polls = True

    @property
    def _commits_by_itself(self) -> bool:
        return self.options.enable_auto_commit and self.coordinator is not None

    async def _auto_commit(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata],
        timeout_s: float,
        what: str,
        who: Callable[[], GroupMetadata] | None = None,
    ) -> None:
        """Commit; a failure is only logged, as `what`."""
        try:
            await self.commit(offsets, timeout_s, who)
        except ClientError as error:
            logger.warning("%s: %s", what, error)

    # ── offsets ──────────────────────────────────────────────────────────────────────────────────────────

    async def commit(
        self,
        offsets: dict[TopicPartition, OffsetAndMetadata] | None,
        timeout_s: float,
        who: Callable[[], GroupMetadata] | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Commit these, or the positions of all assigned partitions. `who` is `owner()` of an earlier moment."""
        if self.coordinator is None:
            raise OptionError("commit needs a group.id")
        if offsets is None:
            what = self.positions(self.fetching.readings)
        else:
            what = {place: self._with_order(place, each) for place, each in offsets.items()}
        await self.coordinator.commit(what, timeout_s, who or self.owner())
        if what:
            self.interceptors.committed(what)
        return what

    async def _committed(
        self, places: list[TopicPartition]
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        found = await self.committed(places, self.options.default_api_timeout_ms / 1000)
        if self._asked_order is not None:
            await self._asked_order.ask({place.topic for place in places})
        for place, committed in found.items():
            # After a seek meanwhile, the marks that are committed are about other records.
            counts = None if self._was_sought(place) else committed
            if self.deaths is not None:
                self.deaths.found(place, counts)
            if self.ordered is not None:
                self._begin_in_order(place, counts, self.ordered)
        return found

    def _was_sought(self, place: TopicPartition) -> bool:
        reading = self.fetching.readings.get(place)
        return reading is not None and (reading.position is not None or reading.wants != "committed")

    def _begin_in_order(
        self, place: TopicPartition, committed: OffsetAndMetadata | None, ordered: Ordered
    ) -> None:
        self.by_key.pop(place, None)
        self.fetching.most.pop(place, None)
        rules = ordered.rules.get(place.topic)
        if rules is None or place not in self.fetching.readings:
            return
        if rules.is_by_key:
            self.key_orders.begin(place, rules, committed)
            return
        self.fetching.most[place] = 1
        self._wait(place, ordered.found(place, committed))

    # ── the order of keys ────────────────────────────────────────────────────────────────────────────────

    def take(self, records_max: int) -> Records:
        """As `Fetching.take`, in the order that the group asks for, and what may have killed by itself."""
        readings = self.fetching.readings
        turns = () if self.deaths is None else self.deaths.turns(readings, self.core.scheduler.now_s)
        if not turns:
            return self._take(records_max)
        for some in turns:
            before = dict(self.fetching.most)
            self.fetching.most.update((place, 0) for place in readings if place not in some)
            try:
                taken = self._take(records_max)
            finally:
                self.fetching.most = before
            if taken:
                return taken
        return {}

    def _take(self, records_max: int) -> Records:
        if not self.by_key:
            return self.fetching.take(records_max)
        return self.key_orders.take(records_max, self.core.scheduler.now_s)

    def key_order(self, place: TopicPartition) -> KeyOrder | None:
        """Return what keeps the order of keys in a partition; None if the group does not ask for it."""
        return self.key_orders.of(place)

    def _with_order(self, place: TopicPartition, said: OffsetAndMetadata) -> OffsetAndMetadata:
        """Return what to commit where the application says that all is done below an offset."""
        in_order = self.key_order(place) if self.by_key else None
        return said if in_order is None else in_order.done_below(said.offset)

    def give_back(self, place: TopicPartition, offset: int) -> None:
        """What was taken at `offset` and behind it has not come to the application."""
        in_order, reading = self.key_order(place), self.fetching.readings.get(place)
        if in_order is not None:
            in_order.give_back(offset)
        elif reading is not None:
            reading.seek(offset)

    def sought(self, place: TopicPartition) -> None:
        """The application reads on at another offset: what it was given before does not count."""
        if self.deaths is not None:
            self.deaths.sought(place)
        rules = None if self.ordered is None else self.ordered.rules.get(place.topic)
        if rules is not None and rules.is_by_key and place in self.fetching.readings:
            self.key_orders.begin(place, rules, None)
        reading, asked = self.fetching.readings.get(place), self._asked_order
        if rules is None and reading is not None and asked is not None and place.topic not in asked.known:
            # In the first `on_partitions_assigned`, nobody has asked for the order yet: nothing is given before.
            reading.not_before_s = math.inf
            self.core.background(self._begin_sought(place, reading, asked))

    async def _begin_sought(self, place: TopicPartition, reading: Reading, asked: AskedOrder) -> None:
        attempt = 0
        while place.topic not in asked.known and self.fetching.readings.get(place) is reading:
            try:
                await asked.ask({place.topic})
            except ClientError as error:
                if not error.retriable:
                    self.failed(error)
                await self.core.scheduler.sleep(self.core.network.backoff_s(attempt))
                attempt += 1
        if self.fetching.readings.get(place) is reading and reading.not_before_s == math.inf:
            reading.not_before_s = 0.0
            if self.ordered is not None:
                self._begin_in_order(place, None, self.ordered)
            self.core.touch()
            self.on_news()

    # ── the order of a partition ─────────────────────────────────────────────────────────────────────────

    def _wait(self, place: TopicPartition, wait_s: float) -> None:
        """Hand nothing of the partition out for so long."""
        reading = self.fetching.readings.get(place)
        if reading is not None and wait_s > 0:
            reading.not_before_s = self.core.scheduler.now_s + wait_s
            self.core.background(self._wake(wait_s))

    async def _wake(self, wait_s: float) -> None:
        await self.core.scheduler.sleep(wait_s)
        self.on_news()

    def keep(self, record: ConsumerRecord) -> dict[TopicPartition, OffsetAndMetadata] | None:
        """Keep a record that has failed, and have it come again; return the mark to commit.

        None if it is to be handed back.
        """
        place = TopicPartition(record.topic, record.partition)
        rules = None if self.ordered is None else self.ordered.rules.get(place.topic)
        if rules is not None and rules.is_by_key:
            return self._keep_in_key_order(place, record)
        again = None if self.ordered is None else self.ordered.failed(record)
        if again is None or self.ordered is None:
            return None
        if place not in self.fetching.readings:
            return {}  # the next consumer gets it
        self.go_on(place, record.offset)
        self._wait(place, self.ordered.rules[record.topic].wait_s(again.times))
        self.core.touch()
        return {place: OffsetAndMetadata(record.offset, self.ordered.text(place, record.offset))}

    def _keep_in_key_order(
        self, place: TopicPartition, record: ConsumerRecord
    ) -> dict[TopicPartition, OffsetAndMetadata] | None:
        in_order = self.key_order(place)
        if in_order is None:
            return {}  # the next consumer gets it
        wait_s = in_order.keep(record, self.core.scheduler.now_s)
        if wait_s is None:
            return None
        self.core.background(self._wake(wait_s))
        self.core.touch()
        return {place: in_order.failures()}

    # ── records that kill ────────────────────────────────────────────────────────────────────────────────

    def plan(self, records: Records) -> Plan | None:
        """What to do with records before they are given; None if nothing is to be done (`deaths`)."""
        ordered = self.ordered
        if ordered is None or not records:
            return None
        left_out = self.deaths.left_out(records, self.core.scheduler.now_s) if self.deaths else set()
        for place in left_out:
            self._take_again(place, records[place][0].offset)
        records = {place: each for place, each in records.items() if each and place not in left_out}
        in_order = {place for place in records if place.topic in ordered.rules} - self.by_key.keys()
        others = {
            place: each[:1] if place in in_order else each
            for place, each in records.items()
            if place not in self.by_key
        }
        plan = Plan(others, {}, [], {})
        if self.deaths is not None:
            plan = self.deaths.plan(others, self.core.scheduler.now_s)
        for place in in_order:
            ordered.give(place, others[place][0])
            plan.next_offsets[place] = others[place][0].offset + 1
        marks = {place: ordered.beside(place, mark) for place, mark in plan.marks.items()}
        plan.marks.clear()
        plan.marks.update((place, mark) for place, mark in marks.items() if place in self.fetching.readings)
        plan.marks.update(self.key_orders.marks())
        for place, each in records.items():
            if self.key_orders.is_deadly(place, each[0].offset):
                plan.dead.append(each[0])
            elif place in self.by_key:
                plan.given[place] = each
            elif place in plan.next_offsets:
                self.fetching.most[place] = 1
            else:
                self.fetching.most.pop(place, None)
        for place, offset in plan.next_offsets.items():
            self.go_on(place, offset)
        return plan if plan.marks or plan.dead or plan.next_offsets or left_out else None

    def put_back(self, plan: Plan, dead: Sequence[ConsumerRecord]) -> None:
        """The application gets nothing of the plan, and `dead` were not handed back: take all of them again."""
        if self.deaths is not None:
            self.deaths.put_back(
                plan._replace(
                    marks={place: each for place, each in plan.marks.items() if place not in self.by_key}
                ),
                [each for each in dead if (each.topic, each.partition) not in self.by_key],
                self.core.scheduler.now_s,
            )
        for record in (*dead, *(some[0] for some in plan.given.values() if some)):
            self._take_again(TopicPartition(record.topic, record.partition), record.offset)

    def _take_again(self, place: TopicPartition, offset: int) -> None:
        """Have what was taken at `offset` and behind it be taken again."""
        if place in self.by_key:
            self.give_back(place, offset)
        else:
            self.go_on(place, offset)

    def go_on(self, place: TopicPartition, offset: int) -> None:
        """Read on at `offset`, if the partition is still this consumer's."""
        reading = self.fetching.readings.get(place)
        if reading is not None and reading.position != offset:
            reading.seek(offset)
            self.core.touch()

    async def mark(self, marks: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit marks. A failure is only logged: then a death is not counted."""
        if self.coordinator is None or not marks:
            return
        try:
            await self.coordinator.commit(marks, self.options.default_api_timeout_ms / 1000, self.owner())
        except ClientError as error:
            logger.warning("marks of what is processed were not committed: %s", error)

    async def committed(
        self, places: list[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed."""
        if self.coordinator is None:
            raise OptionError("committed offsets need a group.id")
        return await self.coordinator.committed(places, timeout_s)

    def refuse_columns(self) -> None:
        """Raises IllegalStateError where interceptors want to see records, or the group asks for an order."""
        if self.ordered is not None and self.ordered.rules:
            raise IllegalStateError(
                "the group asks for the order (retry.ordered); poll_arrow keeps none. Use poll"
            )
        if self.interceptors:
            raise IllegalStateError("interceptors see records; poll_arrow has none. Use poll")

    def group_metadata(self) -> GroupMetadata:
        """Who this consumer is in its group, for `send_offsets_to_transaction`."""
        if self.coordinator is None:
            raise OptionError("there is no group.id")
        if self._membership is None:
            return self.coordinator.identity()
        return self._membership.identity_since(self._losses)

    async def close(self) -> None:
        """Commit and leave the group."""
        if self._membership is not None:
            await self.unsubscribe()
        elif self._commits_by_itself:
            offsets = self.positions(self.fetching.readings)
            await self._auto_commit(offsets, 5.0, "auto commit while closing")
