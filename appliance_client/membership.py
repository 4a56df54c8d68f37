"""A consumer's place in its group: what both group protocols share.

The coordinator has a connection of its own, as in Kafka's clients: JoinGroup is answered when the group is ready, and
all answers behind it on the same connection would wait for that.

Whatever takes partitions away waits until the application is in `poll`, so that records being processed are not given
to another member, and so that its listener runs on its thread. The wait ends after `max.poll.interval.ms`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.find_coordinator import GROUP
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.errors import ErrorCode
from appliance_client.core import Core
from appliance_client.errors import (
    AuthenticationError,
    ClientError,
    CommitFailedError,
    TimedOutError,
    TransportError,
    error_of,
)
from appliance_client.network import COORDINATORS
from appliance_client.options import ConsumerOptions
from appliance_client.scheduling import Outcome, first_of
from appliance_client.values import GroupMetadata, OffsetAndMetadata, TopicPartition

logger = logging.getLogger("appliance_client")

_GONE: Final = (
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.FENCED_MEMBER_EPOCH,
)
_LOST_COORDINATOR: Final = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class Application(Protocol):
    """What a membership asks of the consumer it belongs to."""

    def in_poll(self, call: Callable[[], Any]) -> Outcome[Any]:
        """Call this on the application's thread, within its next poll."""

    def assigned(self, places: Sequence[TopicPartition]) -> None:
        """From now on these are read."""

    def hold(self, places: Sequence[TopicPartition]) -> Callable[[], None]:
        """What stops `poll` from handing out records of these, as they are assigned now."""

    def positions(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where the application has come to in them."""

    def failed(self, error: ClientError) -> None:
        """Have the next poll raise this."""

    def idle_s(self) -> float:
        """How long the application has not polled."""

    def topics(self) -> tuple[str, ...]:
        """What it is subscribed to now, patterns resolved."""

    def revoked(self, places: Sequence[TopicPartition]) -> Any:
        """Tell the listener; on the application's thread."""

    def lost(self, places: Sequence[TopicPartition]) -> Any:
        """Tell the listener; on the application's thread."""

    def gained(self, places: Sequence[TopicPartition]) -> Any:
        """Tell the listener; on the application's thread."""


class Coordinator:
    """The coordinator of a group: found, asked, found again. Offsets go through here with or without a membership."""

    def __init__(self, options: ConsumerOptions, core: Core, group_id: str) -> None:
        self.group_id = group_id
        self._options = options
        self._core = core
        self._node_id: int | None = None
        self.identity: Callable[[], GroupMetadata] = lambda: GroupMetadata(group_id)

    async def ask(
        self,
        api: ApiKey,
        request: Any,
        *,
        deadline_s: float,
        timeout_s: float | None = None,
        version_max: int | None = None,
    ) -> Any:
        """Send a request to the coordinator.

        Raises:
            TransportError: it cannot be reached, and must be found again; call again.
            TimedOutError: none was found before `deadline_s`.
        """
        if self._node_id is None:
            self._node_id = await self._core.network.find_coordinator(self.group_id, GROUP, deadline_s)
        try:
            return await self._core.network.call(
                COORDINATORS - self._node_id, api, request, timeout_s=timeout_s, version_max=version_max
            )
        except TransportError:
            self._node_id = None
            raise

    def moved(self, code: int) -> None:
        """An answer said so: where the coordinator is somewhere else, find it again."""
        if code in _LOST_COORDINATOR:
            self._node_id = None

    async def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        timeout_s: float,
        who: Callable[[], GroupMetadata] | None = None,
    ) -> None:
        """Commit offsets as the member that `who` says with each attempt, or that we are then.

        Raises:
            CommitFailedError: we are not in that generation any more.
            TimedOutError, BrokerError: the coordinator did not take them.
        """
        if not offsets:
            return
        deadline_s = self._core.scheduler.now_s + timeout_s
        topics: dict[str, list[OffsetCommitPartition]] = {}
        for place, each in offsets.items():
            topics.setdefault(place.topic, []).append(
                OffsetCommitPartition(place.partition, each.offset, each.metadata or "", each.leader_epoch)
            )
        listed = tuple(
            OffsetCommitTopic(name=name, partitions=tuple(parts)) for name, parts in topics.items()
        )

        def request(version: int) -> OffsetCommitRequest:
            member = (who or self.identity)()
            return OffsetCommitRequest(
                self.group_id,
                member.generation_id,
                member.member_id,
                listed,
                group_instance_id=member.group_instance_id if version >= 7 else None,
            )

        def code_of(answer: Any) -> int:
            return next((p.error_code for t in answer.topics for p in t.partitions if p.error_code), 0)

        await self._until_done(ApiKey.OFFSET_COMMIT, request, code_of, deadline_s, "commit")

    async def committed(
        self, places: Sequence[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """What the group has committed for each; waits for open transactions to decide (KIP-447).

        Raises:
            TimedOutError, BrokerError: the coordinator did not say.
        """
        deadline_s = self._core.scheduler.now_s + timeout_s
        topics: dict[str, list[int]] = {}
        for place in places:
            topics.setdefault(place.topic, []).append(place.partition)
        listed = tuple(
            OffsetFetchTopic(name=name, partition_indexes=tuple(parts)) for name, parts in topics.items()
        )

        def request(version: int) -> OffsetFetchRequest:
            if version < 8:
                return OffsetFetchRequest(self.group_id, listed, require_stable=version >= 7)
            who = self.identity()
            is_member = version >= 9 and self._options.group_protocol == "consumer" and who.member_id != ""
            group = OffsetFetchGroup(
                self.group_id,
                listed,
                member_id=who.member_id if is_member else None,
                member_epoch=who.generation_id if is_member else -1,
            )
            return OffsetFetchRequest(groups=(group,), require_stable=True)

        def code_of(answer: Any) -> int:
            group = answer.groups[0] if answer.groups else answer
            return group.error_code or next(
                (p.error_code for t in group.topics for p in t.partitions if p.error_code), 0
            )

        answer = await self._until_done(
            ApiKey.OFFSET_FETCH, request, code_of, deadline_s, "committed offsets"
        )
        group = answer.groups[0] if answer.groups else answer
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(places)
        for topic in group.topics:
            for part in topic.partitions:
                if part.committed_offset >= 0:
                    found[TopicPartition(topic.name, part.partition_index)] = OffsetAndMetadata(
                        part.committed_offset, part.metadata or "", part.committed_leader_epoch
                    )
        return found

    async def _until_done(
        self, api: ApiKey, request: Any, code_of: Callable[[Any], int], deadline_s: float, what: str
    ) -> Any:
        attempt = 0
        while True:
            error: ClientError
            try:
                answer = await self.ask(api, request, deadline_s=deadline_s, version_max=9)
            except AuthenticationError:
                raise
            except TransportError as lost:
                error = lost
            else:
                code = code_of(answer)
                if not code:
                    return answer
                self.moved(code)
                error = error_of(code)
                if code in _GONE:
                    raise CommitFailedError(code)
                if not error.retriable and code != ErrorCode.STALE_MEMBER_EPOCH:
                    raise error
            wait_s = self._core.network.backoff_s(attempt)
            attempt += 1
            if self._core.scheduler.now_s + wait_s > deadline_s:
                raise TimedOutError(f"{what}: {error}")
            await self._core.scheduler.sleep(wait_s)


class Membership:
    """The member itself. A subclass speaks one of the two protocols."""

    def __init__(
        self, options: ConsumerOptions, core: Core, coordinator: Coordinator, consumer: Application
    ) -> None:
        self.member_id = ""
        self.generation_id = -1
        self.owned: tuple[TopicPartition, ...] = ()
        self._options = options
        self._core = core
        self._scheduler = core.scheduler
        self._coordinator = coordinator
        self._consumer = consumer
        self._closing = False
        self._shared = False
        """Whether every member has every partition, so that none can be lost to another one."""
        self._former: GroupMetadata | None = None
        self.losses = 0
        """How often everything was lost. What was handed out before belongs to the member that we were then."""
        coordinator.identity = self.identity

    def identity(self) -> GroupMetadata:
        """Who we are in the group now."""
        return GroupMetadata(
            self._coordinator.group_id, self.generation_id, self.member_id, self._options.group_instance_id
        )

    def identity_since(self, losses: int) -> GroupMetadata:
        """Who we are; where everything was lost since there were so many `losses`, who we were before that.

        The coordinator refuses offsets of a member that is no more. As the member that joined again we could commit
        offsets of partitions that are another member's by now.
        """
        if losses != self.losses and self._former is not None:
            return self._former
        return self.identity()

    def committing_since(self, losses: int) -> GroupMetadata:
        """As `identity_since`, for a commit.

        Raises:
            CommitFailedError: everything was lost meanwhile. It is not asked of the coordinator, which could not know.
        """
        if losses != self.losses:
            raise CommitFailedError(
                ErrorCode.UNKNOWN_MEMBER_ID, "the member has lost its partitions; poll tells what it has now"
            )
        return self.identity()

    async def run(self) -> None:
        """Be a member until `leave`."""
        raise NotImplementedError

    async def leave(self) -> None:
        """Leave the group, so that others take over at once. What fails is only logged."""
        raise NotImplementedError

    def subscription_changed(self) -> None:
        """The consumer wants other topics, or they have other partitions."""
        raise NotImplementedError

    def watched_topics(self) -> Iterable[str]:
        """Topics of other members whose partitions this one must know."""
        return ()

    @property
    def _interval_s(self) -> float:
        return self._options.max_poll_interval_ms / 1000

    async def _in_poll(self, call: Callable[[], Any]) -> bool:
        """Have the application's thread call this; False where it did not poll for max.poll.interval.ms."""
        turn = self._consumer.in_poll(call)
        left_s = max(0.0, self._interval_s - self._consumer.idle_s())
        await first_of(turn, self._scheduler.sleep(left_s))
        return turn.done

    async def _revoke(self, places: Sequence[TopicPartition]) -> bool:
        """Give partitions up: commit where they stand, tell the listener. False where the application is stuck."""
        if not places:
            return True
        if not await self._in_poll(self._consumer.hold(places)):
            return False
        await self._commit_before_revoke(places)
        return await self._in_poll(lambda: self._consumer.revoked(places))

    async def _commit_before_revoke(self, places: Sequence[TopicPartition]) -> None:
        if not self._options.enable_auto_commit:
            return
        try:
            losses = self.losses
            await self._coordinator.commit(
                self._consumer.positions(places), 5.0, lambda: self.committing_since(losses)
            )
        except ClientError as error:
            logger.warning("auto commit before partitions are revoked: %s", error)

    async def _lose(self, *, member_id: str = "", generation_id: int) -> None:
        """Everything we owned is somebody else's by now. We are this member from now on."""
        self._former = self.identity()
        self.losses += 1
        self.member_id, self.generation_id = member_id, generation_id
        if self._shared:
            return  # what every member has is nobody else's
        places, self.owned = self.owned, ()
        self._consumer.assigned(())
        if places:
            self._consumer.in_poll(lambda: self._consumer.lost(places))

    def _is_stuck(self) -> bool:
        """Whether the application has not polled for max.poll.interval.ms."""
        return self._consumer.idle_s() > self._interval_s
