"""The group protocol of KIP-848 (`group.protocol=consumer`): one heartbeat says and hears all.

The coordinator answers with the partitions that the member should have. The member gives up what it should not have,
says so with its next heartbeat, and is given more when others have given it up. Nobody stops reading what stays.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from typing import Final
from uuid import UUID, uuid4

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_heartbeat import (
    JOIN_GROUP_EPOCH,
    LEAVE_GROUP_EPOCH,
    LEAVE_GROUP_STATIC_EPOCH,
    UNCHANGED_MS,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    OwnedTopicPartitions,
)
from appliance.protocol.errors import ErrorCode
from appliance_client.core import Core
from appliance_client.errors import AuthenticationError, ClientError, TransportError, error_of
from appliance_client.membership import Application, Coordinator, Membership
from appliance_client.options import ConsumerOptions
from appliance_client.scheduling import Event, first_of
from appliance_client.values import TopicPartition

logger = logging.getLogger("appliance_client")

_FIND_S: Final = 60.0
_FENCED: Final = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
_AGAIN: Final = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
Target = tuple[tuple[UUID, tuple[int, ...]], ...]


class ConsumerGroupMembership(Membership):
    """A member of a consumer group."""

    def __init__(
        self, options: ConsumerOptions, core: Core, coordinator: Coordinator, consumer: Application
    ) -> None:
        super().__init__(options, core, coordinator, consumer)
        self.member_id = base64.urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        self.generation_id = JOIN_GROUP_EPOCH
        self._soon = Event()
        self._target: Target | None = None
        self._reconciling = False
        self._said_topics: tuple[str, ...] | None = None
        self._said_owned: tuple[TopicPartition, ...] | None = None
        self._interval_of_broker_s = 1.0

    def subscription_changed(self) -> None:
        """Say so with a heartbeat at once; or look again whether the target's topics are known by now."""
        if self._consumer.topics() != self._said_topics:
            self._soon.set()
        elif self._target is not None and not self._reconciling:
            self._reconcile_soon()

    async def run(self) -> None:
        """Heartbeats until `leave`."""
        attempt = 0
        while not self._closing:
            if not self._consumer.topics() and self.generation_id == JOIN_GROUP_EPOCH:
                await first_of(self._soon.wait(), self._scheduler.sleep(1.0))
                self._soon.clear()
                continue
            self._soon.set()  # wakes nobody, and lets go of waits that ended by their time
            self._soon.clear()
            try:
                if self._is_stuck():
                    await self._leave_stuck()
                    continue
                await self._heartbeat()
                attempt = 0
            except TransportError as error:
                logger.info("group %s: %s", self._coordinator.group_id, error)
                if isinstance(error, AuthenticationError):
                    self._consumer.failed(error)
                self._said_topics = self._said_owned = None
                await self._scheduler.sleep(self._core.network.backoff_s(attempt))
                attempt += 1
                continue
            except ClientError as error:
                if not error.retriable:
                    self._consumer.failed(error)
                    await self._lose(member_id=self.member_id, generation_id=self.generation_id)
                    await self._in_poll(lambda: None)
                await self._scheduler.sleep(1.0)
                continue
            await first_of(self._soon.wait(), self._scheduler.sleep(self._interval_of_broker_s))

    async def _heartbeat(self) -> None:
        joins = self.generation_id == JOIN_GROUP_EPOCH
        topics = self._consumer.topics()
        owned = self.owned
        says_all = joins or self._said_topics is None
        request = ConsumerGroupHeartbeatRequest(
            self._coordinator.group_id,
            self.member_id,
            self.generation_id,
            instance_id=self._options.group_instance_id,
            rack_id=(self._options.client_rack or None) if says_all else None,
            rebalance_timeout_ms=self._options.max_poll_interval_ms if says_all else UNCHANGED_MS,
            subscribed_topic_names=topics if says_all or topics != self._said_topics else None,
            server_assignor=self._options.group_remote_assignor if says_all else None,
            topic_partitions=self._ids(owned) if says_all or owned != self._said_owned else None,
        )
        answer: ConsumerGroupHeartbeatResponse = await self._coordinator.ask(
            ApiKey.CONSUMER_GROUP_HEARTBEAT, request, deadline_s=self._scheduler.now_s + _FIND_S
        )
        code = answer.error_code
        if code in _FENCED:
            logger.info("group %s: fenced, joining again", self._coordinator.group_id)
            await self._start_over()
            return
        if code in _AGAIN:
            self._coordinator.moved(code)
            self._said_topics = self._said_owned = None
            await self._scheduler.sleep(self._core.network.backoff_s(0))
            self._soon.set()
            return
        if code:
            raise error_of(code, answer.error_message)
        self._said_topics, self._said_owned = topics, owned
        self.generation_id = answer.member_epoch
        if answer.member_id:
            self.member_id = answer.member_id
        self._interval_of_broker_s = max(0.05, answer.heartbeat_interval_ms / 1000)
        if answer.assignment is not None:
            self._target = tuple(
                (each.topic_id, each.partitions)
                for each in answer.assignment.topic_partitions
                if each.topic_id is not None
            )
            self._reconcile_soon()

    def _ids(self, places: Sequence[TopicPartition]) -> tuple[OwnedTopicPartitions, ...]:
        topics: dict[str, list[int]] = {}
        for topic, partition in places:
            topics.setdefault(topic, []).append(partition)
        listed = []
        for name, parts in topics.items():
            known = self._core.metadata.topics.get(name)
            if known is not None and known.key.topic_id is not None:
                listed.append(OwnedTopicPartitions(known.key.topic_id, tuple(parts)))
        return tuple(listed)

    def _reconcile_soon(self) -> None:
        if not self._reconciling:
            self._reconciling = True
            self._core.background(self._reconcile())

    async def _reconcile(self) -> None:
        """Give up and take over until what is owned is the target, which may change meanwhile."""
        try:
            while self._target is not None and not self._closing:
                target = self._target
                places = self._places(target)
                if places is None:
                    await first_of(self._core.metadata.updated(), self._scheduler.sleep(5.0))
                    continue
                given_up = tuple(place for place in self.owned if place not in places)
                gained = tuple(place for place in places if place not in self.owned)
                if given_up and not await self._revoke(given_up):
                    return  # the application is stuck: the next heartbeat leaves
                if self._is_closing():  # `leave` was called meanwhile
                    return
                if self._target is not target and self._target is not None:
                    places = tuple(p for p in self.owned if p not in given_up)
                    gained = ()
                else:
                    self._target = None
                self.owned = tuple(sorted(places))
                self._consumer.assigned(self.owned)
                self._consumer.in_poll(lambda gained=gained: self._consumer.gained(gained))  # type: ignore[misc]
                self._soon.set()
        finally:
            self._reconciling = False

    def _places(self, target: Target) -> tuple[TopicPartition, ...] | None:
        names = self._core.metadata.names
        if any(topic_id not in names for topic_id, _ in target):
            return None
        return tuple(
            sorted(TopicPartition(names[topic_id], index) for topic_id, parts in target for index in parts)
        )

    async def _start_over(self) -> None:
        self._said_topics = self._said_owned = None
        self._target = None
        await self._lose(member_id=self.member_id, generation_id=JOIN_GROUP_EPOCH)
        self._soon.set()

    async def _leave_stuck(self) -> None:
        logger.warning(
            "group %s: the application did not poll for max.poll.interval.ms (%d); leaving the group",
            self._coordinator.group_id,
            self._options.max_poll_interval_ms,
        )
        await self._say_goodbye(LEAVE_GROUP_EPOCH)
        self._said_topics = self._said_owned = None
        self._target = None
        await self._lose(member_id=self.member_id, generation_id=JOIN_GROUP_EPOCH)
        while self._is_stuck() and not self._closing:
            await self._scheduler.sleep(0.5)

    def _is_closing(self) -> bool:
        return self._closing

    async def leave(self) -> None:
        """Leave; a static member only for a while (its partitions are kept for the session timeout)."""
        self._closing = True
        self._soon.set()
        if self.generation_id > 0:
            is_static = self._options.group_instance_id is not None
            await self._say_goodbye(LEAVE_GROUP_STATIC_EPOCH if is_static else LEAVE_GROUP_EPOCH)

    async def _say_goodbye(self, epoch: int) -> None:
        request = ConsumerGroupHeartbeatRequest(
            self._coordinator.group_id, self.member_id, epoch, instance_id=self._options.group_instance_id
        )
        try:
            await self._coordinator.ask(
                ApiKey.CONSUMER_GROUP_HEARTBEAT,
                request,
                deadline_s=self._scheduler.now_s + 5.0,
                timeout_s=5.0,
            )
        except ClientError as error:
            logger.info("leaving group %s: %s", self._coordinator.group_id, error)
