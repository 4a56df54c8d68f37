"""A coordinator without a process: requests go in, answers are kept by token, appends wait to be committed."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any
from uuid import UUID

from appliance.clock import ManualClock
from appliance.config import GroupSettings
from appliance.control.coordinator.group.effects import Topic
from appliance.control.coordinator.group.group_book import shown
from appliance.control.coordinator.group.groups import Groups
from appliance.control.coordinator.runtime.effects import (
    Answer,
    AnswerInPieces,
    Append,
    Client,
    Effects,
    GoOn,
    Record,
)
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.heartbeat import HeartbeatRequest
from appliance.protocol.apis.join_group import JoinGroupProtocol, JoinGroupRequest, JoinGroupResponse
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance.protocol.apis.sync_group import SyncGroupAssignment, SyncGroupRequest
from appliance.protocol.errors import ErrorCode

GROUP = "readers"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
DELAY_MS = 3_000


def subscription(*topics: str, version: int = 0) -> bytes:
    """The metadata of a classic consumer."""
    out = version.to_bytes(2) + len(topics).to_bytes(4)
    for topic in topics:
        out += len(topic).to_bytes(2) + topic.encode()
    return out + b"\xff\xff\xff\xff"


class Offsets:
    """Committed offsets, as far as groups ask: which groups have any."""

    def __init__(self) -> None:
        self.groups: dict[str, list[Record]] = {}

    def has_offsets(self, group_id: str) -> bool:
        return group_id in self.groups

    def tombstones(self, group_id: str) -> Sequence[Record]:
        return self.groups.get(group_id, [])


class Cluster:
    """The metadata image of a scene."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.configs: dict[str, dict[str, str]] = {}

    def create(self, name: str, partitions: int) -> Topic:
        topic_id = UUID(int=len(self.topics) + 1)
        self.topics[name] = Topic(name, topic_id, partitions)
        return self.topics[name]

    def by_name(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def by_id(self, topic_id: UUID) -> Topic | None:
        return next((topic for topic in self.topics.values() if topic.topic_id == topic_id), None)

    def names(self) -> Sequence[str]:
        return list(self.topics)

    def group_configs(self, group_id: str) -> Mapping[str, str]:
        return self.configs.get(group_id, {})


class Scene:
    """`commits`: whether an append is committed as soon as it is asked for."""

    def __init__(self, *, commits: bool = True, **settings: Any) -> None:
        self.settings = GroupSettings(**{"initial_rebalance_delay_ms": DELAY_MS, **settings})
        self.commits = commits
        self.clock = ManualClock()
        self.offsets = Offsets()
        self.cluster = Cluster()
        self.refusals: dict[str, int] = {}
        self.answers: dict[int, Any] = {}
        self.appends: deque[Append] = deque()
        self._committing = False
        self.log: list[tuple[int, Record]] = []
        self._tokens = count(1)
        self._ids = count(1)
        self.groups = self._start()

    def _start(self) -> Groups:
        return Groups(
            self.settings,
            self.clock,
            partition_of=lambda group_id: sum(group_id.encode()) % 3,
            gate=lambda group_id, _: self.refusals.get(group_id, 0),
            topics=self.cluster,
            offsets=self.offsets,
            new_member_id=lambda prefix: f"{shown(prefix)}-{next(self._ids)}",
        )

    def restart(self) -> None:
        """The process dies with all it had in memory, and another one reads the log."""
        self.appends.clear()
        self.groups = self._start()
        for partition, record in self.log:
            self.groups.replay(partition, record.key, record.value)
        for partition in range(3):
            self.carry_out(self.groups.loaded(partition))

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────────

    def send(self, request: Any, *, version: int = 5, client_id: str = "c") -> int:
        """Hands a request in; the token under which its answer will be."""
        token = next(self._tokens)
        client = Client(client_id, "/127.0.0.1", slot=0, api_version=version)
        self.carry_out(self.groups.handle(request, client=client, reply=token))
        return token

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            match effect:
                case Answer(reply, response):
                    self._answered(reply, response)
                case AnswerInPieces(reply, elements, make):
                    self._answered(reply, make(tuple(elements)))
                case GoOn(action):
                    self.carry_out(action())
                case Append():
                    self.appends.append(effect)
        if self.commits and not self._committing:
            self.commit()

    def _answered(self, reply: Any, response: Any) -> None:
        assert isinstance(reply, int)
        assert reply not in self.answers, "a request was answered twice"
        self.answers[reply] = response

    def commit(self, error: int = 0) -> None:
        """The appends that wait are in the log, or have failed."""
        self._committing = True
        while self.appends:
            append = self.appends.popleft()
            if not error:
                self.log += [(append.partition, record) for record in append.records]
            self.carry_out(append.then(error))
        self._committing = False

    def ask(self, request: Any, *, version: int = 5, client_id: str = "c") -> Any:
        """The answer of a request that is answered at once."""
        return self.answers[self.send(request, version=version, client_id=client_id)]

    def pass_time(self, duration_ms: int) -> None:
        """Lets time pass, with every deadline in it met on its millisecond."""
        end_ms = self.clock.monotonic_ns() // 1_000_000 + duration_ms
        while True:
            now_ms = self.clock.monotonic_ns() // 1_000_000
            due_ms = self.groups.next_deadline_ms()
            if due_ms is None or due_ms > end_ms:
                self.clock.advance(end_ms - now_ms)
                self.carry_out(self.groups.expire())
                return
            self.clock.advance(max(due_ms - now_ms, 0))
            self.carry_out(self.groups.expire())

    # ── members ───────────────────────────────────────────────────────────────────────────────────────────

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: dict[str, bytes] | None = None,
        version: int = 5,
        group_id: str = GROUP,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
    ) -> int:
        offered = {"range": subscription("orders")} if protocols is None else protocols
        request = JoinGroupRequest(
            group_id,
            session_ms,
            member_id,
            protocol_type,
            protocols=tuple(JoinGroupProtocol(name, data) for name, data in offered.items()),
            rebalance_timeout_ms=rebalance_ms,
            group_instance_id=instance_id,
        )
        return self.send(request, version=version)

    def enter(self, **join: Any) -> tuple[str, int]:
        """A dynamic member gets its id and joins with it: (member id, token of the second request)."""
        token = self.join(**join)
        response = self.answers[token]
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        return response.member_id, self.join(response.member_id, **join)

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        version: int = 3,
        group_id: str = GROUP,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> int:
        request = SyncGroupRequest(
            group_id,
            generation,
            member_id,
            assignments=tuple(SyncGroupAssignment(*item) for item in (assignments or {}).items()),
            group_instance_id=instance_id,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
        )
        return self.send(request, version=version)

    def heartbeat(
        self, member_id: str, generation: int, *, instance_id: str | None = None, group_id: str = GROUP
    ) -> int:
        request = HeartbeatRequest(group_id, generation, member_id, group_instance_id=instance_id)
        error: int = self.ask(request, version=3).error_code
        return error

    def leave(self, *members: MemberIdentity, group_id: str = GROUP) -> list[int]:
        response = self.ask(LeaveGroupRequest(group_id, members=members), version=5)
        assert response.error_code == 0
        return [member.error_code for member in response.members]

    def joined(self, token: int) -> JoinGroupResponse:
        response = self.answers[token]
        assert isinstance(response, JoinGroupResponse)
        assert response.error_code == 0
        return response

    def stable(self, size: int = 2, **join: Any) -> list[str]:
        """A stable group of dynamic members, each assigned its own name; the leader first."""
        entered = [self.enter(**join) for _ in range(size)]
        self._wait_for(entered[0][1])
        generation = self.joined(entered[0][1]).generation_id
        members = [member_id for member_id, _ in entered]
        for member_id in members[1:]:
            self.sync(member_id, generation)
        self.sync(members[0], generation, {member_id: member_id.encode() for member_id in members})
        assert self.state() == "Stable"
        return members

    def static(self, *instance_ids: str, **join: Any) -> list[str]:
        """A stable group of static members, each assigned its instance id; the leader first."""
        tokens = [self.join(instance_id=instance_id, **join) for instance_id in instance_ids]
        self._wait_for(tokens[0])
        members = [self.joined(token).member_id for token in tokens]
        generation = self.joined(tokens[0]).generation_id
        for member_id in members[1:]:
            self.sync(member_id, generation)
        named = dict(zip(members, instance_ids, strict=True))
        self.sync(members[0], generation, {member_id: name.encode() for member_id, name in named.items()})
        assert self.state() == "Stable"
        return members

    def _wait_for(self, token: int) -> None:
        for _ in range(10_000):
            if token in self.answers:
                return
            self.pass_time(DELAY_MS)
        raise AssertionError(f"request {token} is not answered")

    # ── what is seen ──────────────────────────────────────────────────────────────────────────────────────

    def describe(self, group_id: str = GROUP, *, version: int = 5) -> Any:
        return self.ask(DescribeGroupsRequest((group_id,)), version=version).groups[0]

    def state(self, group_id: str = GROUP) -> str:
        state: str = self.describe(group_id).group_state
        return state
