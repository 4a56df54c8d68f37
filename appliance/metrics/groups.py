"""Committed offsets and members of consumer groups, asked of the coordinators over rings.

    metrics process ──ListGroups, OffsetFetch, DescribeGroups, ConsumerGroupDescribe──→ coordinator
                    ←─────────────────────────── answers ───────────────────────────────

These are requests of Kafka's protocol, as network processes hand them over (`channels.coordinator_channel`), so the
coordinator serves them like any other, and nothing of them passes a listener. They are asked one at a time of each
coordinator, GROUPS_AT_ONCE groups at most in each, and no more than a question has room for. A round begins
`metrics.groups.interval.ms` after the one before, and only while somebody reads the page. A coordinator that dies costs
the round: what the last whole round has found stays. So a lag is of the round: beside each committed offset lies where
the partition ended when the answer came.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from appliance.channels.coordinator_channel import CoordinatorFlag, CoordinatorOp
from appliance.channels.partition_table import HIGH_WATERMARK, LAST_STABLE_OFFSET, PartitionTable
from appliance.channels.roles import Role, RoleKind
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.cluster import CONSUMER_OFFSETS, ClusterImage
from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from appliance.protocol.apis.list_groups import ListedGroup, ListGroupsRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchResponse
from appliance.protocol.messages import decode_response, encode_request

GROUPS_AT_ONCE: Final = 50
_START_BYTES: Final = 256
"""A question's header, client id and counts take less than this."""
_NAME_BYTES: Final = 16
"""What stands beside a group's name in a question takes less than this."""
OFFSETS_MAX: Final = 200_000
"""Committed offsets of all groups that have series. A group that would exceed this has none."""
NUMBER_MAX: Final = (1 << 32) - 1
CLIENT_ID: Final = "appliance-metrics"
CONNECTION: Final = (1 << 32) - 1
"""Of this process's requests. Numbers of network processes' sessions are small (`RequestLines.receive`)."""
_NO_ADDRESS: Final = bytes(16)
_SIZE_BYTES: Final = 4
_CONSUMER: Final = "consumer"

Steps = Generator[tuple[ApiKey, int, Any], bytes | None, None]
"""Asks (api key, version, request), and is sent the frame of the answer; None where the coordinator refuses it."""
Place = tuple[str, int]
"""Topic and partition."""
Committed = dict[Place, int]
"""Topic and partition → committed offset."""


class End(NamedTuple):
    """Where an incarnation of a partition ended at some moment."""

    incarnation: int
    high_watermark: int
    last_stable_offset: int


@dataclass(slots=True)
class Group:
    """A group as the last round has found it."""

    name: str
    committed: Committed = field(default_factory=dict)
    members: int = 0
    ends: dict[Place, End] = field(default_factory=dict)
    """Of the partitions in `committed` that were served when the committed offset was noted."""
    commit_ms: dict[Place, int] = field(default_factory=dict)
    """When each offset was committed, since 1970."""


@dataclass(slots=True)
class Round:
    """What one round has found."""

    groups: dict[str, Group] = field(default_factory=dict)
    offsets: int = 0
    unlisted: int = 0
    """Groups beyond a limit, which have no series of their own."""
    began_ns: int = 0
    """Monotonic; nothing that the round found is older. 0: there was none."""


class _Line:
    """The ring to and from one coordinator, with at most one question under way."""

    __slots__ = ("number", "pieces", "role", "slot", "steps")

    def __init__(self, role: Role) -> None:
        self.role = role
        self.slot = 0
        self.steps: Steps | None = None
        self.number = 0
        self.pieces: list[bytes] = []


class GroupQuestions:
    """The rounds.

    Args:
        attachment: has the rings and this process's pool.
        groups_max: how many groups have series.
        image: returns the current metadata image.
        clock: says when a round began.
    """

    def __init__(
        self,
        attachment: Attachment,
        *,
        groups_max: int,
        image: Callable[[], ClusterImage | None],
        clock: Clock,
    ) -> None:
        self._attachment = attachment
        self._groups_max = groups_max
        self._image = image
        self._clock = clock
        assert attachment.pool is not None
        self._pool = attachment.pool.view
        settings = attachment.wiring.settings
        self._share_bytes = len(self._pool) // settings.broker.coordinator_processes
        self._question_bytes = min(self._share_bytes, settings.group.request_max_bytes)
        self._lines: dict[Role, _Line] = {}
        self._round = Round()
        self.found = Round()
        """Of the last round that ended."""
        self.rounds = 0
        self.failed_rounds = 0
        self._has_failed = False
        self._number = 0

    @property
    def is_under_way(self) -> bool:
        """Whether a round is under way."""
        return bool(self._lines)

    def begin(self) -> None:
        """Begin a round, unless one is under way."""
        if self._lines:
            return
        coordinators = sorted(
            (role for role in self._attachment.outbound if role.kind is RoleKind.COORDINATOR),
            key=lambda role: role.index,
        )
        self._round = Round(began_ns=self._clock.monotonic_ns())
        self._has_failed = not coordinators
        for role in coordinators:
            line = self._lines[role] = _Line(role)
            line.steps = self._steps(line)
        for line in list(self._lines.values()):
            self._advance(line, None)

    def hear(self) -> None:
        """Take the answers that have come."""
        for role, reader in list(self._attachment.inbound.items()):
            if role.kind is RoleKind.COORDINATOR and not reader.is_empty():
                self._take(role, reader.drain())

    def coordinator_down(self, role: Role) -> None:
        """A coordinator died: what it was asked is not answered."""
        if self._lines.pop(role, None) is not None:
            self._has_failed = True
            self._end_if_done()

    def _take(self, role: Role, messages: list[tuple[Any, ...]]) -> None:
        writer = self._attachment.outbound.get(role)
        pool = self._attachment.pools.get(role)
        released = False
        for op, flags, _, number, position, length_bytes, inline in messages:
            if op != CoordinatorOp.ANSWER:
                continue
            if flags & CoordinatorFlag.INLINE:
                piece = inline[:length_bytes]
            else:
                piece = b"" if pool is None else bytes(pool.view[position : position + length_bytes])
                if writer is not None:
                    writer.put(CoordinatorOp.RELEASE, 0, 0, 0, position, 0, 0, _NO_ADDRESS, 0)
                    released = True
            line = self._lines.get(role)
            if line is None or number != line.number:
                continue
            line.pieces.append(piece)
            if flags & CoordinatorFlag.MORE:
                continue
            frame, line.pieces = b"".join(line.pieces), []
            self._advance(line, None if flags & CoordinatorFlag.REFUSED else frame)
        if released and writer is not None:
            writer.publish()
            self._attachment.bells[role].ring()

    def _advance(self, line: _Line, frame: bytes | None) -> None:
        """Go on with the questions to one coordinator; `frame` answers the last of them."""
        assert line.steps is not None
        try:
            self._ask(line, *line.steps.send(frame))
        except StopIteration:
            del self._lines[line.role]
            self._end_if_done()
        except (MalformedFrame, ValueError):
            del self._lines[line.role]
            self._has_failed = True
            self._end_if_done()

    def _end_if_done(self) -> None:
        if self._lines:
            return
        if self._has_failed:
            self.failed_rounds += 1
        else:
            self.rounds += 1
            self.found = self._round

    def _ask(self, line: _Line, key: ApiKey, version: int, request: Any) -> None:
        """Write a request into the pool and hand it to the coordinator.

        Raises:
            ValueError: the ring is full, or the request does not fit into this coordinator's part of the pool.
        """
        self._number = self._number % NUMBER_MAX + 1
        line.number = self._number
        frame = encode_request(key, version, request, line.number, client_id=CLIENT_ID)[_SIZE_BYTES:]
        coordinators = self._attachment.wiring.settings.broker.coordinator_processes
        position = line.role.index * self._share_bytes
        if len(frame) > self._share_bytes:
            raise ValueError(f"a question of {len(frame)} bytes")
        self._pool[position : position + len(frame)] = frame
        image = self._image()
        topic = None if image is None else image.topics.get(CONSUMER_OFFSETS)
        partitions = 0 if topic is None or coordinators == 1 else len(topic.partitions)
        writer = self._attachment.outbound.get(line.role)
        if writer is None or not writer.put(
            CoordinatorOp.REQUEST,
            0,
            line.slot,
            line.number,
            position,
            len(frame),
            CONNECTION,
            _NO_ADDRESS,
            partitions,
        ):
            raise ValueError("the ring is full")
        writer.publish()
        self._attachment.bells[line.role].ring()

    def _steps(self, line: _Line) -> Steps:
        """What one coordinator is asked, question by question; each is answered before the next."""
        image = self._image()
        for broker in () if image is None else image.slots:
            # A coordinator answers each broker slot for the groups whose partitions this slot leads.
            yield from self._steps_of(line, broker.node_id)

    def _steps_of(self, line: _Line, slot: int) -> Steps:
        line.slot = slot
        frame = yield ApiKey.LIST_GROUPS, 5, ListGroupsRequest()
        listed = _decoded(ApiKey.LIST_GROUPS, 5, frame)
        if listed.error_code:
            raise ValueError(f"ListGroups failed with {listed.error_code}")
        kinds = {each.group_id: each.group_type for each in sorted(listed.groups, key=_group_id)}
        questions = list(questions_about(list(kinds)[: self._groups_max], bytes_max=self._question_bytes))
        self._round.unlisted += len(kinds) - sum(map(len, questions))
        for some in questions:
            self._round.groups.update((name, Group(name)) for name in some)
            wanted = tuple(OffsetFetchGroup(name) for name in some)
            frame = yield ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=wanted, with_commit_times=True)
            self._note_committed(_decoded(ApiKey.OFFSET_FETCH, 8, frame))
            new = tuple(name for name in some if kinds[name].lower() == _CONSUMER)
            old = tuple(name for name in some if kinds[name].lower() != _CONSUMER)
            if new:
                frame = yield ApiKey.CONSUMER_GROUP_DESCRIBE, 0, ConsumerGroupDescribeRequest(new)
                self._note_members(_decoded(ApiKey.CONSUMER_GROUP_DESCRIBE, 0, frame))
            if old:
                frame = yield ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest(old)
                self._note_members(_decoded(ApiKey.DESCRIBE_GROUPS, 5, frame))

    def _note_committed(self, response: OffsetFetchResponse) -> None:
        for fetched in response.groups:
            group = self._round.groups.get(fetched.group_id)
            if group is None or fetched.error_code:
                continue
            count = sum(len(topic.partitions) for topic in fetched.topics)
            if self._round.offsets + count > OFFSETS_MAX:
                del self._round.groups[fetched.group_id]
                self._round.unlisted += 1
                continue
            self._round.offsets += count
            group.committed.update(
                ((topic.name, each.partition_index), each.committed_offset)
                for topic in fetched.topics
                for each in topic.partitions
                if each.committed_offset >= 0 and not each.error_code
            )
            group.commit_ms.update(
                ((topic.name, each.partition_index), each.commit_time_ms)
                for topic in fetched.topics
                for each in topic.partitions
                if each.commit_time_ms >= 0
            )
            group.ends = ends_of(self._image(), self._attachment.partitions, group.committed)

    def _note_members(self, response: DescribeGroupsResponse | ConsumerGroupDescribeResponse) -> None:
        for described in response.groups:
            group = self._round.groups.get(described.group_id)
            if group is not None:
                group.members = len(described.members)


def questions_about(names: Iterable[str], *, bytes_max: int) -> Iterator[list[str]]:
    """Yield the names that one question after the other is about; a name that fits into none is left out."""
    some: list[str] = []
    used_bytes = _START_BYTES
    for name in names:
        name_bytes = len(name.encode()) + _NAME_BYTES
        if _START_BYTES + name_bytes > bytes_max:
            continue
        if len(some) == GROUPS_AT_ONCE or used_bytes + name_bytes > bytes_max:
            yield some
            some, used_bytes = [], _START_BYTES
        some.append(name)
        used_bytes += name_bytes
    if some:
        yield some


def ends_of(image: ClusterImage | None, table: PartitionTable, wanted: Iterable[Place]) -> dict[Place, End]:
    """Return where partitions end now; those that nobody serves, or that are not there, are left out."""
    found: dict[Place, End] = {}
    for name, number in wanted:
        topic = None if image is None else image.topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            continue
        row, incarnation = topic.partitions[number].row, topic.partitions[number].incarnation
        if not table.serves(row, incarnation):
            continue
        at = table.at(row)
        end = End(incarnation, table.cells[at + HIGH_WATERMARK], table.cells[at + LAST_STABLE_OFFSET])
        if table.serves(row, incarnation):  # else the words may be of the row's next use
            found[name, number] = end
    return found


def _group_id(listed: ListedGroup) -> str:
    return listed.group_id


def _decoded(key: ApiKey, version: int, frame: bytes | None) -> Any:
    """Return the response in a frame.

    Raises:
        MalformedFrame: it does not parse.
    """
    if frame is None:
        raise ValueError("the coordinator refuses a question")
    return decode_response(key, version, memoryview(frame))[1]
