"""The face of the room: all groups of the coordinator, requests in, effects out.

    groups = Groups(settings, clock, partition_of=…, gate=…, topics=…, offsets=…)
    carry_out(groups.handle(request, client=client, reply=token))   # now and then an Answer, or an Append …
    carry_out(append.then(0))                                       # … which goes on when it is committed
    carry_out(groups.expire())                                      # when next_deadline_ms() has come

Whoever calls carries the effects out in their order and never calls back from within a call.

A partition of `__consumer_offsets` is taken over by `replay` of each of its records in order, then `loaded`; it is
given away by `unload`. In between the caller's `gate` refuses requests for its groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from appliance.clock import Clock
from appliance.config import GroupSettings
from appliance.control.coordinator.group import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    sync_group,
)
from appliance.control.coordinator.group import group_metadata_record as log_record
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_rebalance import (
    cancel_timers,
    end_join,
    end_sync,
    prepare,
    refused_join,
    restart_session,
)
from appliance.control.coordinator.group.classic_state import STATES, ClassicState
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.consumer_records import Change, GroupEpochChange, read_change
from appliance.control.coordinator.group.consumer_turns import restart_session as restart_consumer_session
from appliance.control.coordinator.group.consumer_turns import watch_rebalance
from appliance.control.coordinator.group.effects import CommittedOffsets, OffsetExpiry, Topics
from appliance.control.coordinator.group.group_book import GroupBook, unique_member_id
from appliance.control.coordinator.group.group_limits import GroupLimits
from appliance.control.coordinator.group.held_bytes import HeldBytes
from appliance.control.coordinator.group.subscription import PROTOCOL_TYPE
from appliance.control.coordinator.pieces import Steps
from appliance.control.coordinator.runtime.effects import Client, Effects
from appliance.errors import ApplianceDefect
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.heartbeat import HeartbeatRequest
from appliance.protocol.apis.join_group import JoinGroupRequest
from appliance.protocol.apis.leave_group import LeaveGroupRequest
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.apis.sync_group import SyncGroupRequest, SyncGroupResponse
from appliance.protocol.errors import ErrorCode
from appliance.protocol.primitives import INT16, Cursor

_HANDLERS: Final[dict[type, Callable[[GroupBook, Any, Client, object], None]]] = {
    JoinGroupRequest: join_group.handle,
    SyncGroupRequest: sync_group.handle,
    HeartbeatRequest: heartbeat.handle,
    LeaveGroupRequest: leave_group.handle,
    DescribeGroupsRequest: describe_groups.handle,
    ListGroupsRequest: list_groups.handle,
    DeleteGroupsRequest: delete_groups.handle,
    ConsumerGroupHeartbeatRequest: consumer_group_heartbeat.handle,
    ConsumerGroupDescribeRequest: consumer_group_describe.handle,
    leave_group.LeaveOfMany: leave_group.handle_many,
}
_IN_PIECES: Final[dict[type, Callable[[GroupBook, Any, Client, object], Steps[None]]]] = {
    SyncGroupRequest: sync_group.handle_in_pieces,
    LeaveGroupRequest: leave_group.handle_in_pieces,
    ConsumerGroupHeartbeatRequest: consumer_group_heartbeat.handle_in_pieces,
}
"""Those whose requests may hold thousands of elements that are looked at before they are answered."""

_GROUP_ID_NOT_FOUND_FROM = 9
"""Version of OffsetCommit from which an unknown group is called that; before, its generation is called old."""


_NO_GENERATION = -1


class GroupStatistics(msgspec.Struct, frozen=True):
    """How many groups and members there are, and how many members wait for an answer."""

    groups: int
    members: int
    pending_members: int
    waiting_to_join: int
    waiting_to_sync: int


class Groups:
    """Args:
    gate: (group id, slot the client spoke to) → 0, or NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE. Asked before a group is looked at.
    partition_of: group id → partition of `__consumer_offsets`.
    topics: the metadata image as the groups see it.
    offsets: what is committed in the groups' names.
    new_member_id: client id or group instance id → a member id that nobody has; tests make it predictable.
    """

    __slots__ = ("_book", "_replayed")

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock,
        *,
        partition_of: Callable[[str], int],
        gate: Callable[[str, int], int],
        topics: Topics,
        offsets: CommittedOffsets,
        new_member_id: Callable[[str], str] = unique_member_id,
    ) -> None:
        self._book = GroupBook(
            settings,
            clock,
            partition_of=partition_of,
            gate=gate,
            topics=topics,
            offsets=offsets,
            new_member_id=new_member_id,
        )
        self._book.again = self._dispatch
        self._replayed: dict[int, dict[str, None]] = {}

    # ── requests and time ─────────────────────────────────────────────────────────────────────────────────

    def handle(self, request: Any, *, client: Client, reply: object) -> Effects:
        """Takes a request in: a shape of one of the APIs of this room.

        Exactly one `Answer` with this `reply` comes out, here or of a later call.
        """
        self._dispatch(request, client, reply)
        return self._book.take_effects()

    def handle_in_pieces(self, request: Any, *, client: Client, reply: object) -> Iterator[Effects]:
        """As `handle`, in pieces of less than a millisecond where the request's own elements are what takes long.

        The effects of each piece are carried out before the next one is asked for; other calls may come in between.
        """
        in_pieces = _IN_PIECES.get(type(request))
        if in_pieces is None:
            yield self.handle(request, client=client, reply=reply)
            return
        for _ in in_pieces(self._book, request, client, reply):
            yield self._book.take_effects()
        yield self._book.take_effects()

    def _dispatch(self, request: Any, client: Client, reply: object) -> None:
        handler = _HANDLERS.get(type(request))
        if handler is None:
            raise ApplianceDefect(f"{type(request).__name__} is no request for a group")
        handler(self._book, request, client, reply)

    def next_deadline_ms(self) -> int | None:
        """When `expire` has something to do, in milliseconds of the clock's monotonic time; None: never."""
        return self._book.next_deadline_ms()

    def expire(self) -> Effects:
        """Does what is due: sessions that end, rebalances that have waited long enough."""
        for action in self._book.due():
            action()
        return self._book.take_effects()

    # ── what offsets ask ──────────────────────────────────────────────────────────────────────────────────

    def check_commit(
        self,
        group_id: str,
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        api_version: int,
    ) -> int:
        """Whether this member may commit offsets for the group now: 0 or an error code.

        A commit is a sign of life and restarts the member's session. A commit with neither member nor generation is
        for groups without members; the group need not exist. The gate was asked by the caller.
        """
        group = self._book.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            error = group.check_commit(member_id, generation, api_version)
            if error is ErrorCode.NONE and member_id in group.subscriptions:
                restart_consumer_session(self._book, group, member_id)
            return error
        if group is None:
            if generation < 0:
                return ErrorCode.NONE
            is_new = api_version >= _GROUP_ID_NOT_FOUND_FROM
            return ErrorCode.GROUP_ID_NOT_FOUND if is_new else ErrorCode.ILLEGAL_GENERATION
        if generation < 0 and group.state is ClassicState.EMPTY:
            return ErrorCode.NONE
        if generation < 0 and not member_id and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.fault_of(member_id, instance_id)
        if error is not ErrorCode.NONE:
            return error
        if generation != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        error = STATES[group.state].commit
        if error is ErrorCode.NONE:
            restart_session(self._book, group, group.members[member_id])
        return error

    def check_transactional_commit(
        self, group_id: str, *, member_id: str, instance_id: str | None, generation: int
    ) -> int:
        """Whether a producer that names this member may commit offsets for the group: 0 or an error code.

        Other than `check_commit` it takes anybody who names no member, does not mind a rebalance, and restarts no
        session.
        """
        group = self._book.groups.get(group_id)
        if group is None:
            return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
        names_nobody = not member_id and instance_id is None
        if isinstance(group, ConsumerGroup):
            if names_nobody and generation == _NO_GENERATION:
                return ErrorCode.NONE
            error = group.check_commit(member_id, generation, _GROUP_ID_NOT_FOUND_FROM)
            return ErrorCode.ILLEGAL_GENERATION if error is ErrorCode.STALE_MEMBER_EPOCH else error
        if generation < 0 and (names_nobody or group.state is ClassicState.EMPTY):
            return ErrorCode.NONE
        error = group.fault_of(member_id, instance_id)
        if error is ErrorCode.NONE and generation != group.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        return error

    def check_new(self, group_id: str) -> int:
        """Whether offsets may be committed for a group that has none: 0, or POLICY_VIOLATION where it would be one
        group too many."""
        limits = self._book.limits
        if group_id in self._book.groups or (
            limits.has_room_for_group() and limits.has_room_for_bytes(0, HeldBytes(group_id).bytes)
        ):
            return ErrorCode.NONE
        return ErrorCode.POLICY_VIOLATION

    def check_fetch(self, group_id: str, *, member_id: str | None, epoch: int, client: Client) -> int:
        """Whether this member may fetch the group's offsets: 0 or an error code. A classic group refuses nobody."""
        group = self._book.groups.get(group_id)
        return group.check_fetch(member_id, epoch) if isinstance(group, ConsumerGroup) else ErrorCode.NONE

    def offsets_seen(self, group_id: str) -> None:
        """Offsets are kept for this group: it exists from now on, if only for them."""
        groups = self._book.groups
        if group_id not in groups:
            groups[group_id] = ClassicGroup(group_id, self._book.clock.now_ms())

    def offset_expiry(self, group_id: str) -> OffsetExpiry | None:
        """From when on the group's offsets grow old; None: none of them expires now."""
        group = self._book.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            return OffsetExpiry(subscribed=frozenset(group.topics()))
        if group is None or group.protocol_type is None:
            return OffsetExpiry()
        if group.state is ClassicState.EMPTY:
            since_ms = group.state_timestamp_ms
            return OffsetExpiry(None if since_ms == log_record.UNKNOWN_TIME_MS else since_ms)
        if group.state is ClassicState.STABLE and group.topics is not None:
            return OffsetExpiry(subscribed=group.topics)
        return None

    def idle(self) -> list[str]:
        """The groups that nobody is in. The caller knows which of them have offsets."""
        return [group_id for group_id, group in self._book.groups.items() if group.may_go]

    def __len__(self) -> int:
        return len(self._book.groups)

    @property
    def limits(self) -> GroupLimits:
        return self._book.limits

    def remove_if_empty(self, group_id: str) -> Effects:
        """The last offset of the group is gone, or its tombstone on the way: forgets the group if nobody is in it.

        When that cannot be written the log has it still, and the next start finds it empty again.
        """
        book = self._book
        group = book.groups.get(group_id)
        if group is not None and group.may_go:
            del book.groups[group_id]
            records = delete_groups.end_of(group)
            if records:
                book.append(group_id, tuple(records), lambda _: None)
        return book.take_effects()

    def check_offset_delete(self, group_id: str) -> int:
        """Whether offsets of the group may be deleted at all (OffsetDelete): 0 or an error code.

        Of a group with members, only if they are consumers: then we can see which topics are not theirs.
        """
        group = self._book.groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if isinstance(group, ConsumerGroup) or group.protocol_type == PROTOCOL_TYPE:
            return ErrorCode.NONE
        if group.state is ClassicState.EMPTY:
            return ErrorCode.NONE
        return ErrorCode.NON_EMPTY_GROUP

    def topic_delete_check(self, group_id: str) -> Callable[[str], int]:
        """As of now: topic → GROUP_SUBSCRIBED_TO_TOPIC where the group's offsets of it must stay, else 0."""
        group = self._book.groups.get(group_id)
        if group is None:
            return lambda _: ErrorCode.NONE
        # Once for all topics: there may be as many to ask for as members have named.
        subscribed = (
            group.topics().__contains__ if isinstance(group, ConsumerGroup) else group.is_subscribed_to
        )
        return lambda topic: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed(topic) else ErrorCode.NONE

    # ── the log ───────────────────────────────────────────────────────────────────────────────────────────

    def replay(self, partition: int, key: bytes, value: bytes | None) -> None:
        """Takes in a record of that partition, in the log's order. Keys of other kinds are passed over.

        Raises:
            MalformedFrame: the record is none that Kafka writes.
        """
        groups = self._book.groups
        if INT16.unpack_from(key)[0] == log_record.GROUP_METADATA_KEY:
            group_id = Cursor(memoryview(key), INT16.size, len(key)).string()
            self._replayed.setdefault(partition, {})[group_id] = None
            if value is not None:
                groups[group_id] = ClassicGroup.from_log(group_id, log_record.read_value(value))
            elif isinstance(groups.get(group_id), ClassicGroup):
                del groups[group_id]
            return
        read = read_change(key, value)
        if read is not None:
            self._replayed.setdefault(partition, {})[read[0]] = None
            self._replay_change(*read, is_tombstone=value is None)

    def _replay_change(self, group_id: str, change: Change, *, is_tombstone: bool) -> None:
        groups = self._book.groups
        group = groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            if is_tombstone:
                return
            group = groups[group_id] = ConsumerGroup(group_id)
        group.apply(change)
        if isinstance(change, GroupEpochChange) and change.epoch is None:
            del groups[group_id]

    def loaded(self, partition: int) -> Effects:
        """All of the partition's records were replayed: its members' sessions begin anew."""
        book = self._book
        # Not by a look at all groups: after a start, each of many partitions would look at those of the others.
        for group_id in self._replayed.pop(partition, ()):
            group = book.groups.get(group_id)
            if group is None:
                continue
            if isinstance(group, ConsumerGroup):
                for member_id in group.subscriptions:
                    restart_consumer_session(book, group, member_id)
                    watch_rebalance(book, group, member_id)
                continue
            for member in group.members.values():
                restart_session(book, group, member)
            if len(group.members) > book.settings.max_size:
                prepare(book, group)
        return book.take_effects()

    def unload(self, partition: int) -> Effects:
        """Forgets the partition's groups; all who wait hear that their coordinator is elsewhere."""
        book = self._book
        self._replayed.pop(partition, None)
        error = ErrorCode.NOT_COORDINATOR
        for group in self._groups_of(partition):
            if isinstance(group, ConsumerGroup):
                group.cancel_all_timers()
                del book.groups[group.group_id]
                group.next_turns()
                continue
            cancel_timers(group)
            for member in group.members.values():
                end_join(book, group, member, refused_join(error, member.member_id))
                end_sync(book, member, SyncGroupResponse(error_code=error))
            group.move_to(ClassicState.DEAD, book.clock.now_ms())
            del book.groups[group.group_id]
        return book.take_effects()

    def _groups_of(self, partition: int) -> list[ClassicGroup | ConsumerGroup]:
        book = self._book
        return [group for group in book.groups.values() if book.partition_of(group.group_id) == partition]

    def metadata_changed(self) -> None:
        """There is a new metadata image: consumer groups look at their topics with the next heartbeat."""
        self._book.topics_version += 1
        self._book.topic_names.changed()

    # ── itself ────────────────────────────────────────────────────────────────────────────────────────────

    def statistics(self) -> GroupStatistics:
        groups = self._book.groups.values()
        classic = [group for group in groups if isinstance(group, ClassicGroup)]
        consumer = [group for group in groups if isinstance(group, ConsumerGroup)]
        members = [member for group in classic for member in group.members.values()]
        return GroupStatistics(
            groups=len(groups),
            members=len(members) + sum(len(group.subscriptions) for group in consumer),
            pending_members=sum(len(group.pending_joins) for group in classic),
            waiting_to_join=sum(member.joining is not None for member in members),
            waiting_to_sync=sum(member.syncing is not None for member in members),
        )

    def check(self) -> None:
        """Raises ApplianceDefect unless every group's invariants hold."""
        for group in self._book.groups.values():
            group.check()
