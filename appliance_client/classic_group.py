"""The classic group protocol (JoinGroup, SyncGroup, Heartbeat): eager, cooperative (KIP-429), static members (KIP-345).

    join ──▶ (leader: assign) ──▶ sync ──▶ take over ──▶ heartbeats ──rebalance──▶ join

Eager: all partitions are given up before the join. Cooperative: they are kept, what has to move is given up after the
sync, and the member joins once more so that it can be given to another one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, Final

from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.heartbeat import HeartbeatRequest
from appliance.protocol.apis.join_group import JoinGroupProtocol, JoinGroupRequest, JoinGroupResponse
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance.protocol.apis.sync_group import SyncGroupAssignment, SyncGroupRequest
from appliance.protocol.errors import ErrorCode
from appliance_client.assignors import (
    Assignor,
    Subscription,
    assignors_of,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from appliance_client.core import Core
from appliance_client.errors import (
    AuthenticationError,
    ClientError,
    IllegalStateError,
    TransportError,
    error_of,
)
from appliance_client.membership import Application, Coordinator, Membership
from appliance_client.options import ConsumerOptions
from appliance_client.scheduling import Event, first_of
from appliance_client.values import TopicPartition

logger = logging.getLogger("appliance_client")

PROTOCOL_TYPE: Final = "consumer"
_JOIN_SLACK_S: Final = 5.0
_FIND_S: Final = 60.0
_AGAIN: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS,
)
_FORGOTTEN: Final = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)


class _Rejoin(Exception):
    """Join again."""


class ClassicMembership(Membership):
    """A member of a classic group."""

    def __init__(
        self, options: ConsumerOptions, core: Core, coordinator: Coordinator, consumer: Application
    ) -> None:
        super().__init__(options, core, coordinator, consumer)
        self._assignors = assignors_of(options.strategies)
        # Two ways cannot be mixed: a group of both goes the eager one, until all members know the other (KIP-429).
        self._cooperative = all(each.cooperative for each in self._assignors)
        self._shared = all(getattr(each, "shared", False) for each in self._assignors)
        self._rejoin = Event()
        self._is_leader = False
        self._joined_topics: tuple[str, ...] = ()
        self._counts: dict[str, int] = {}

    def subscription_changed(self) -> None:
        """Join again where what we said, or as a leader what we assigned by, is not true any more."""
        topics = self._consumer.topics()
        counts = {name: self._partitions(name) for name in self._counts}
        if topics != self._joined_topics or (self._is_leader and counts != self._counts):
            self._rejoin.set()

    def watched_topics(self) -> Iterable[str]:
        """What it assigned by, as the leader."""
        return self._counts if self._is_leader else ()

    def _partitions(self, name: str) -> int:
        topic = self._core.metadata.topics.get(name)
        return 0 if topic is None or topic.error_code else topic.partitions

    async def run(self) -> None:
        """Join, stay, join again; until `leave`."""
        attempt = 0
        while not self._closing:
            try:
                await self._join()
                attempt = 0
                await self._stay()
            except _Rejoin:
                continue
            except TransportError as error:
                logger.info("group %s: %s", self._coordinator.group_id, error)
                if isinstance(error, AuthenticationError):
                    self._consumer.failed(error)
                await self._scheduler.sleep(self._core.network.backoff_s(attempt))
                attempt += 1
            except ClientError as error:
                if error.retriable:
                    await self._scheduler.sleep(self._core.network.backoff_s(attempt))
                    attempt += 1
                    continue
                self._consumer.failed(error)
                await self._lose(member_id=self.member_id, generation_id=self.generation_id)
                # The application decides: another poll tries again.
                await self._in_poll(lambda: None)
                await self._scheduler.sleep(1.0)

    async def _join(self) -> None:
        self._rejoin.clear()
        if not self._cooperative and self.owned:
            await self._give_up(self.owned)
            self.owned = ()
            self._consumer.assigned(())
        if self._is_stuck():
            await self._in_poll(lambda: None)
            while self._is_stuck():
                await self._scheduler.sleep(0.5)
        answer = await self._join_group()
        self.member_id = answer.member_id
        self.generation_id = answer.generation_id
        self._is_leader = answer.leader == answer.member_id
        chosen = next((each for each in self._assignors if each.name == answer.protocol_name), None)
        assignments: tuple[SyncGroupAssignment, ...] = ()
        if self._is_leader and not answer.skip_assignment:
            if chosen is None:
                raise error_of(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"assignor {answer.protocol_name}")
            assignments = await self._assign(chosen, answer)
        places = await self._sync_group(assignments, answer.protocol_name)
        strange = sorted({place.topic for place in places}.difference(self._joined_topics))
        if strange:
            # A static member comes back with another subscription, and the group has its partitions of before.
            logger.info("group %s: assigned %s, not subscribed to", self._coordinator.group_id, strange)
            self._core.metadata.request_update()
            await self._scheduler.sleep(self._core.network.backoff_s(0))
            raise _Rejoin
        await self._take_over(places, cooperative=chosen is not None and chosen.cooperative)

    async def _join_group(self) -> JoinGroupResponse:
        while True:
            topics = self._joined_topics = self._consumer.topics()
            said = Subscription(
                topics,
                owned=self.owned,
                generation_id=self.generation_id,
                rack=self._options.client_rack,
            )
            request = JoinGroupRequest(
                self._coordinator.group_id,
                self._options.session_timeout_ms,
                self.member_id,
                PROTOCOL_TYPE,
                tuple(JoinGroupProtocol(each.name, _metadata_of(each, said)) for each in self._assignors),
                rebalance_timeout_ms=self._options.max_poll_interval_ms,
                group_instance_id=self._options.group_instance_id,
            )
            answer: JoinGroupResponse = await self._coordinator.ask(
                ApiKey.JOIN_GROUP,
                request,
                deadline_s=self._scheduler.now_s + _FIND_S,
                timeout_s=self._interval_s + _JOIN_SLACK_S,
            )
            code = answer.error_code
            if not code:
                return answer
            if code == ErrorCode.MEMBER_ID_REQUIRED:
                self.member_id = answer.member_id
                continue
            await self._judge(code)

    async def _judge(self, code: int) -> None:
        """Raise what an error of join, sync or heartbeat means."""
        self._coordinator.moved(code)
        if code in _FORGOTTEN:
            forgets = code == ErrorCode.UNKNOWN_MEMBER_ID
            await self._lose(member_id="" if forgets else self.member_id, generation_id=-1)
            raise _Rejoin
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            raise _Rejoin
        if code in _AGAIN:
            await self._scheduler.sleep(self._core.network.backoff_s(0))
            raise _Rejoin
        raise error_of(code)

    async def _assign(self, chosen: Assignor, answer: JoinGroupResponse) -> tuple[SyncGroupAssignment, ...]:
        members: dict[str, Subscription] = {}
        for each in answer.members:
            try:
                members[each.member_id] = decode_subscription(each.metadata, each.group_instance_id)
            except MalformedFrame as error:
                raise error_of(
                    ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"member {each.member_id}: {error}"
                ) from None
        names = sorted({topic for each in members.values() for topic in each.topics})
        self._core.metadata.want(*names)
        if any(name not in self._core.metadata.topics for name in names):
            fresh = self._core.metadata.updated()
            await first_of(fresh, self._scheduler.sleep(self._options.request_timeout_ms / 1000))
        self._counts = {name: self._partitions(name) for name in names}
        try:
            assigned = chosen.assign({name: count for name, count in self._counts.items() if count}, members)
            return tuple(
                SyncGroupAssignment(member, encode_assignment(assigned.get(member, []))) for member in members
            )
        except Exception as error:  # the application's own assignor
            raise IllegalStateError(
                f"the assignor {chosen.name} raised {type(error).__name__}: {error}"
            ) from error

    async def _sync_group(
        self, assignments: tuple[SyncGroupAssignment, ...], protocol_name: str | None
    ) -> tuple[TopicPartition, ...]:
        answer = await self._coordinator.ask(
            ApiKey.SYNC_GROUP,
            SyncGroupRequest(
                self._coordinator.group_id,
                self.generation_id,
                self.member_id,
                assignments,
                group_instance_id=self._options.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=protocol_name,
            ),
            deadline_s=self._scheduler.now_s + _FIND_S,
            timeout_s=self._interval_s + _JOIN_SLACK_S,
        )
        if answer.error_code:
            await self._judge(answer.error_code)
        try:
            return decode_assignment(answer.assignment)
        except MalformedFrame as error:
            raise error_of(
                ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"an assignment that does not parse: {error}"
            ) from None

    async def _take_over(self, places: Sequence[TopicPartition], *, cooperative: bool) -> None:
        new = tuple(sorted(places))
        given_up = tuple(place for place in self.owned if place not in new)
        gained = tuple(place for place in new if place not in self.owned)
        if cooperative and given_up:
            await self._give_up(given_up)
            self._rejoin.set()
        self.owned = new
        # The listener is told first, as in Kafka: it may seek.
        self._consumer.assigned(new)
        self._consumer.in_poll(lambda: self._consumer.gained(gained))

    async def _give_up(self, places: Sequence[TopicPartition]) -> None:
        """Revoke partitions while heartbeats go on; leave the group where the application is stuck."""
        beats = self._core.background(self._beat(during_revoke=True))
        try:
            polled = await self._revoke(places)
        finally:
            beats.cancel()
        if not polled:
            await self._leave_stuck()

    async def _stay(self) -> None:
        """Heartbeats until the group rebalances. Raises what ends them."""
        beats = self._scheduler.spawn(self._beat(during_revoke=False))
        await first_of(beats, self._rejoin.wait())
        if beats.done:
            beats.result()
        else:
            beats.cancel()

    async def _beat(self, *, during_revoke: bool) -> None:
        interval_s = self._options.heartbeat_interval_ms / 1000
        last_s = self._scheduler.now_s
        while not self._closing:
            await self._scheduler.sleep(interval_s)
            if self._is_stuck() and not during_revoke:
                await self._leave_stuck()
            request = HeartbeatRequest(
                self._coordinator.group_id,
                self.generation_id,
                self.member_id,
                self._options.group_instance_id,
            )
            try:
                answer: Any = await self._coordinator.ask(
                    ApiKey.HEARTBEAT, request, deadline_s=self._scheduler.now_s + _FIND_S
                )
            except ClientError as error:
                if (
                    self._scheduler.now_s - last_s > self._options.session_timeout_ms / 1000
                    and not during_revoke
                ):
                    logger.warning(
                        "group %s: no heartbeat for a session: %s", self._coordinator.group_id, error
                    )
                continue
            last_s = self._scheduler.now_s
            if not answer.error_code or during_revoke:
                continue
            await self._judge(answer.error_code)

    async def _leave_stuck(self) -> None:
        logger.warning(
            "group %s: the application did not poll for max.poll.interval.ms (%d); leaving the group",
            self._coordinator.group_id,
            self._options.max_poll_interval_ms,
        )
        await self._leave_group("the application does not poll")
        await self._lose(generation_id=-1)
        raise _Rejoin

    async def leave(self) -> None:
        """Leave, unless the member is static: its place is kept for the session timeout."""
        self._closing = True
        if self.member_id and self._options.group_instance_id is None:
            await self._leave_group("the consumer is closed")

    async def _leave_group(self, reason: str) -> None:
        def request(version: int) -> LeaveGroupRequest:
            if version < 3:
                return LeaveGroupRequest(self._coordinator.group_id, self.member_id)
            return LeaveGroupRequest(
                self._coordinator.group_id,
                members=(
                    MemberIdentity(
                        self.member_id, self._options.group_instance_id, reason if version >= 5 else None
                    ),
                ),
            )

        try:
            await self._coordinator.ask(
                ApiKey.LEAVE_GROUP, request, deadline_s=self._scheduler.now_s + 5.0, timeout_s=5.0
            )
        except ClientError as error:
            logger.info("leaving group %s: %s", self._coordinator.group_id, error)


def _metadata_of(assignor: Assignor, said: Subscription) -> bytes:
    if not assignor.cooperative:
        said = said._replace(generation_id=said.generation_id if said.owned else -1)
    return encode_subscription(said)
