"""Groups and their committed offsets as state machines of `__consumer_offsets`: the first service of the runtime.

    record     key type 0, 1             the partition's `OffsetBook`
               key types 2, 3, 5-8, 16   the groups, which all partitions of this process share (`group/`)

Offsets that a transaction has written are in the book when the transaction's marker says so. Markers for this topic
come here (`write_marker`) and not to the owner of the log, because a shard is the only writer of its log.

The groups are in one place because their limits, their timers and the answer to ListGroups are of all of them. A record
belongs to the partition of its group, so a partition that is given away takes its groups along.

Offsets go, by tombstones, when they have had their time (`offsets/expiry`), when their topic is deleted, and when they
belong to an earlier topic of the same name. Groups without members and offsets go with the same look at all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import CONSUMER_OFFSETS
from appliance.config import GroupSettings, Settings
from appliance.control.coordinator.group.groups import Groups
from appliance.control.coordinator.offsets.expiry import expired
from appliance.control.coordinator.offsets.offset_book import OffsetBook, Replay
from appliance.control.coordinator.offsets.packed_offsets import all_end_with
from appliance.control.coordinator.runtime.effects import Append, Effects, Producer, Record
from appliance.control.coordinator.runtime.runtime import Share, TopicShards
from appliance.control.coordinator.runtime.shard import State
from appliance.control.coordinator.runtime.state_machine import BlockReplay, StateMachine, Steps
from appliance.control.coordinator.topics import ImageTopics
from appliance.control.coordinator.transaction.effects import Marker
from appliance.errors import CorruptFile
from appliance.journal import RateLimited
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.primitives import NO_UUID
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker
from appliance.protocol.records.offset_records import KEY_TYPE_BYTES, parse_key, parse_value

if TYPE_CHECKING:
    from appliance.control.coordinator.runtime.record_block import RecordBlock

RECORDS_A_WRITE: Final = 2000
EXPIRY_OFFSETS: Final = 5000
IDLE_GROUPS: Final = 200
MAKE_ROOM_PAUSE_MS: Final = 10_000
"""After a search for groups that nobody needs, which costs a look at all of them."""
PACKED_AT_ONCE: Final = 1024
"""Offsets that are packed before others have their turn: a millisecond at most, on a slow machine too."""
PACK_AFTER_MS: Final = 3_000
"""From a load to its packing: the coordinator's other partitions are loaded first, for which clients wait."""
PACK_PAUSE_MS: Final = 50
_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)

WriteMarker: TypeAlias = Callable[[int, Marker, Callable[[int], None]], None]
"""(partition of `__consumer_offsets`, marker, done), as `GroupMachines.write_marker`."""

_log = logging.getLogger(__name__)


def _nothing(_error: int) -> Effects:
    return []


def _no_more() -> None:
    """The book is packed."""


class GroupMachine:
    """Groups and offsets of one partition. `book` is another one after each load."""

    __slots__ = ("_owner", "_replay", "book", "number")

    def __init__(self, owner: GroupMachines, number: int) -> None:
        self.number = number
        self.book = OffsetBook()
        self._owner = owner
        self._replay: Replay | None = None

    # Loading

    def block_replay(self) -> BlockReplay | None:
        self.book = OffsetBook()
        replay = self._replay = Replay(self.book)
        other = self._replay_group_record

        def take(block: RecordBlock) -> None:
            # It takes numpy, which is loaded with the first record (decision 0053).
            from appliance.control.coordinator.offsets.offset_replay import replay_block

            replay_block(block, replay, other)

        return take

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: Record) -> None:
        """Take in an offset that a transaction has written, while serving. A load takes blocks."""
        key = parse_key(record.key)
        self.book.put_pending(producer_id, *key, record.value)
        self._owner.groups.offsets_seen(key.group)
        self._owner.expire_later()

    def replay_marker(
        self, offset: int, producer_id: int, producer_epoch: int, marker: EndTransactionMarker
    ) -> None:
        if self._replay is not None:
            self._replay.end_transaction(producer_id, committed=marker.committed)
        else:
            self.book.end_transaction(producer_id, committed=marker.committed)

    def _replay_group_record(self, key: bytes, value: bytes | None) -> None:
        self._owner.groups.replay(self.number, key, value)

    def loaded(self) -> Effects:
        if self._replay is not None:
            self._replay.done()
            self._replay = None
        owner, book = self._owner, self.book
        owner.pack_later(self)
        effects = owner.groups.loaded(self.number)
        named = book.groups()
        for group in named:
            owner.groups.offsets_seen(group)
        if named:
            effects += self._without_predecessors()
            owner.expire_later()
        return effects

    def unloaded(self) -> Effects:
        self.book = OffsetBook()
        self._replay = None
        return self._owner.groups.unload(self.number)

    # Serving

    def apply(self, records: Sequence[Record]) -> None:
        """Take over what committed records say of offsets; the groups take theirs on in `then`."""
        book = self.book
        for record in records:
            if record.key[:KEY_TYPE_BYTES] == b"\0\1":
                book.apply(record.key, record.value)

    def image_changed(self) -> Effects:
        """Delete the offsets in topics that were deleted, those in a new one of the same name excepted."""
        gone, ids = self._owner.gone, self._owner.ids
        if not gone:
            return []

        def is_old(topic: str, _partition: int, value: bytes) -> bool:
            if topic not in gone:
                return False
            topic_id = parse_value(value).topic_id
            return topic_id == NO_UUID or topic_id != ids.get(topic)

        effects: Effects = []
        for group in self.book.groups():
            if not gone.isdisjoint(self.book.topics_of(group)):
                effects += self._deletion(self.book.tombstones(group, is_old))
        return effects

    def _without_predecessors(self) -> Effects:
        """Delete what was committed to an earlier life of a topic that exists, after a load: no coordinator may have
        run when that topic was deleted.

        Topics that the image does not name are left to the offsets' retention: they may only not be led yet.
        """
        book, ids = self.book, self._owner.ids

        def is_old(topic: str, _partition: int, value: bytes) -> bool:
            return topic in ids and parse_value(value).topic_id not in (NO_UUID, ids[topic])

        effects: Effects = []
        for group in book.groups():
            for topic, partitions in book.of(group).items():
                topic_id = ids.get(topic)
                # Nearly every value ends with the topic's id, which costs no parsing.
                if topic_id is None or all_end_with(partitions, topic_id.bytes):
                    continue
                effects += self._deletion(book.tombstones(group, is_old))
                break
            else:
                if book.pending.is_open_in(group):
                    effects += self._deletion(book.tombstones(group, is_old))
        return effects

    def _deletion(self, records: Sequence[Record]) -> Effects:
        return [
            Append(self.number, tuple(records[at : at + RECORDS_A_WRITE]), _nothing)
            for at in range(0, len(records), RECORDS_A_WRITE)
        ]

    # Time

    def packing(self, book: OffsetBook) -> Steps:
        """Pack the book of the last load; end where it is forgotten meanwhile.

        The book is named when it is loaded, because the first step comes seconds later: another load may be under way
        then, which must not see its book change.
        """
        for offsets in book.packing():
            if self.book is not book:
                return
            yield offsets, []

    def tombstones(self) -> Steps:
        """Delete the offsets that have had their time, a group a step; end where the partition is given away."""
        for group in self.book.groups():
            if not self._owner.is_active(self):
                return
            yield self.book.count(group), self._expired(group)

    def _expired(self, group: str) -> Effects:
        owner = self._owner
        rule = owner.groups.offset_expiry(group)
        if rule is None:
            return []
        try:
            records = expired(
                self.book,
                group,
                now_ms=owner.clock.now_ms(),
                retention_ms=owner.settings.offsets.retention_minutes * 60_000,
                empty_since_ms=rule.since_ms,
                subscribed=rule.subscribed,
            )
        except CorruptFile as fault:
            _log.error("cannot check the offsets of group %s for expiry: %s", group, fault)
            return []
        effects = self._deletion(records)
        is_open = self.book.pending.is_open_in(group)
        if records and not is_open and len(records) == self.book.count(group):
            effects += owner.groups.remove_if_empty(group)
        return effects


def part_of_limits(group: GroupSettings, processes: int) -> GroupSettings:
    """Return the settings of one of several coordinators: each has an equal part of what all groups together may be."""
    return replace(
        group,
        max_count=max(1, group.max_count // processes),
        members_max=max(1, group.members_max // processes),
        members_max_bytes=max(1, group.members_max_bytes // processes),
        pending_members_max=max(1, group.pending_members_max // processes),
    )


class GroupMachines:
    """All groups of this process, with a machine for each partition.

    `shards` is what `CoordinatorRuntime.register` returned, set at once. `ids` is name → id of every topic, `gone` the
    topics that the newest image has no more, or has under another id.
    """

    def __init__(
        self,
        settings: Settings,
        topics: ImageTopics,
        clock: Clock,
        *,
        share: Share | None = None,
        elsewhere: WriteMarker | None = None,
    ) -> None:
        """Args:
        share: which partitions are this process's. Several coordinators share what is allowed of all groups.
        elsewhere: hands a marker to the coordinator process to which its partition belongs.
        """
        self._share = Share() if share is None else share
        self._elsewhere = elsewhere
        if self._share.processes > 1:
            settings = replace(settings, group=part_of_limits(settings.group, self._share.processes))
        self.settings = settings
        self.clock = clock
        self.shards: TopicShards | None = None
        self.by_partition: list[GroupMachine] = []
        self.ids: Mapping[str, UUID] = {}
        self.gone: frozenset[str] = frozenset()
        self.codec = Codec(settings.offsets.topic_compression_codec)
        self._topics = topics
        self._expires_later = False
        self._makes_room = False
        self._room_not_before_ns = 0
        self._complain_of_limits = RateLimited(_log.warning, clock, interval_ms=60_000)
        self.groups = Groups(
            settings.group, clock, partition_of=self.partition_of, topics=topics, offsets=self, gate=self.gate
        )

    # Where groups belong

    def partition_of(self, group: str) -> int:
        return group_partition(group, len(self.by_partition))

    def of(self, group: str) -> GroupMachine | None:
        """Return the machine of the group's partition; None where there is no topic."""
        return self.by_partition[self.partition_of(group)] if self.by_partition else None

    def gate(self, group: str, slot: int) -> int:
        """Return 0 if requests that name the group are served for a client of `slot`'s port, else their error."""
        topic = self.shards
        if topic is None or not topic.shards:
            return _NOT_AVAILABLE
        return topic.shards[self.partition_of(group)].gate(slot)

    def may_load(self, group: str) -> bool:
        """Return whether the group's partition is there and can be expected to be replayed."""
        topic = self.shards
        if topic is None or not topic.shards:
            return False
        return topic.shards[self.partition_of(group)].state is not State.FAILED

    def has_offsets(self, group_id: str) -> bool:
        """See `group.effects.CommittedOffsets`."""
        machine = self.of(group_id)
        return machine is not None and machine.book.has(group_id)

    def tombstones(self, group_id: str) -> Sequence[Record]:
        """See `group.effects.CommittedOffsets`."""
        machine = self.of(group_id)
        return machine.book.tombstones(group_id) if machine is not None else ()

    # Transactions

    def write_marker(self, partition: int, marker: Marker, done: Callable[[int], None]) -> None:
        """End the producer's transaction in a partition of `__consumer_offsets`.

        `done` gets 0 when the marker is committed, else an error. NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE and the outcomes of an append are worth asking again; INVALID_PRODUCER_EPOCH and
        TRANSACTION_COORDINATOR_FENCED are not. A marker that is there twice does no harm.
        """
        topic = self.shards
        if self._elsewhere is not None and not self._share.has(partition):
            self._elsewhere(partition, marker, done)
        elif topic is None or not 0 <= partition < len(topic.shards):
            done(_NOT_AVAILABLE)
        else:
            shard = topic.shards[partition]
            shard.look_later()
            shard.write_marker(
                Producer(marker.producer_id, marker.producer_epoch),
                EndTransactionMarker(marker.commit, marker.coordinator_epoch),
                done,
                transaction_version=marker.transaction_version,
            )

    @property
    def pending_bytes(self) -> int:
        """About as much memory as offsets of open transactions take."""
        return sum(machine.book.pending.bytes for machine in self.by_partition)

    # What the runtime asks

    @property
    def topic(self) -> str:
        return CONSUMER_OFFSETS

    def machines(self, partitions: int) -> Sequence[StateMachine]:
        self.by_partition = [GroupMachine(self, number) for number in range(partitions)]
        return self.by_partition

    def image_changed(self) -> Effects:
        before, self.ids = self.ids, self._topics.ids()
        self.gone = frozenset(name for name, topic_id in before.items() if self.ids.get(name) != topic_id)
        self.groups.metadata_changed()
        return []

    def next_deadline_ms(self) -> int | None:
        return self.groups.next_deadline_ms()

    def expire(self) -> Effects:
        return self.groups.expire()

    # Time

    def is_active(self, machine: GroupMachine) -> bool:
        """Return whether the machine is of a partition that is served now."""
        number = machine.number
        return (
            self.shards is not None
            and number < len(self.by_partition)
            and self.by_partition[number] is machine
            and self.shards.shards[number].state is State.ACTIVE
        )

    def pack_later(self, machine: GroupMachine) -> None:
        """Pack what a replay has put into the book one by one, while the machine serves."""
        packing = machine.packing(machine.book)

        def pack() -> Effects:
            assert self.shards is not None
            self.shards.run_in_steps(packing, at_once=PACKED_AT_ONCE, done=_no_more, pause_ms=PACK_PAUSE_MS)
            return []

        assert self.shards is not None
        self.shards.later(PACK_AFTER_MS, pack)

    def expire_later(self) -> None:
        """Look at all groups after the interval, and again as long as there are any."""
        if not self._expires_later:
            self._expires_later = True
            assert self.shards is not None
            self.shards.later(self.settings.offsets.retention_check_interval_ms, self._expire)

    def _expire(self) -> Effects:
        assert self.shards is not None
        self.shards.run_in_steps(self._expiry(), at_once=EXPIRY_OFFSETS, done=self._expiry_ended)
        return []

    def _expiry(self) -> Steps:
        for machine in list(self.by_partition):
            if self.is_active(machine):
                yield from machine.tombstones()

    def _expiry_ended(self) -> None:
        self._expires_later = False
        self._remove_idle()
        if len(self.groups):
            self.expire_later()

    def _remove_idle(self) -> None:
        """Remove groups without members and offsets; Kafka, too, does it when it looks at the offsets."""
        assert self.shards is not None
        self.shards.run_in_steps(self._idle(self.groups.idle()), at_once=IDLE_GROUPS, done=self._idle_ended)

    def _idle(self, names: Sequence[str]) -> Steps:
        for group in names:
            machine = self.of(group)
            is_unused = machine is not None and self.is_active(machine) and not machine.book.has(group)
            yield 1, self.groups.remove_if_empty(group) if is_unused else []

    def _idle_ended(self) -> None:
        self._makes_room = False

    def make_room(self) -> None:
        """A group or a member was refused: say so, and look now for groups that nobody needs."""
        limits, settings = self.groups.limits, self.settings.group
        self._complain_of_limits(
            f"{limits.refused_groups} new groups and {limits.refused_members} requests of members were refused since"
            f" the start. There are {len(self.groups)} groups (group.max.count = {settings.max_count}). Members are"
            f" bounded by group.members.max = {settings.members_max}, and their {limits.held.bytes} bytes by"
            f" group.max.bytes = {settings.max_bytes} and group.members.max.bytes = {settings.members_max_bytes}."
            " Delete groups, or raise the limit."
        )
        if not self._makes_room and self.clock.monotonic_ns() >= self._room_not_before_ns:
            self._makes_room = True
            self._room_not_before_ns = self.clock.monotonic_ns() + MAKE_ROOM_PAUSE_MS * NS_PER_MS
            self._remove_idle()

    def statistics(self) -> dict[str, int]:
        """Groups with offsets, and how many offsets they have."""
        told = [machine.book.statistics() for machine in self.by_partition]
        return {name: sum(each[name] for each in told) for name in ("groups", "offsets", "pending")}
