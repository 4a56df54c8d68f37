"""Who reads what: assignors of the classic group protocol, and the bytes in which members tell each other.

An assignor is any object with a `name`, `cooperative` (whether members keep what they own while the group rebalances,
KIP-429), and `assign(partitions, members)`. `partitions` says how many each topic has; `members` is what each member
subscribed to and owns. The result names for each member its partitions.

    range                each topic by itself: neighbouring partitions to each member, as Kafka's RangeAssignor
    roundrobin           all partitions in turn, as Kafka's RoundRobinAssignor
    sticky               balanced, and members keep what they own as far as balance allows
    cooperative-sticky   the same, without stopping the members that keep theirs
    broadcast            every member gets every partition of its topics. All share the group's committed offsets, which
                         the last commit wins: commit nothing, or use a group for each consumer instead

Source of the bytes: Kafka's `ConsumerProtocolSubscription.json` and `ConsumerProtocolAssignment.json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from appliance.errors import MalformedFrame
from appliance.protocol.primitives import INT16, INT32, Cursor, octets_bytes, string_bytes
from appliance_client.errors import OptionError
from appliance_client.values import TopicPartition

Assignment = dict[str, list[TopicPartition]]

NO_GENERATION: Final = -1
SUBSCRIPTION_VERSION: Final = 3
ASSIGNMENT_VERSION: Final = 1


class Subscription(NamedTuple):
    """What a member said when it joined."""

    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...] = ()
    generation_id: int = NO_GENERATION
    user_data: bytes | None = None
    rack: str | None = None
    group_instance_id: str | None = None


class Assignor(Protocol):
    """See the top of the file."""

    name: str
    cooperative: bool

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        """The partitions of each member."""


class Range:
    """Kafka's RangeAssignor."""

    name = "range"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        """Each topic by itself: the first members get one more where it does not divide."""
        result: Assignment = {member: [] for member in members}
        for topic in sorted({topic for each in members.values() for topic in each.topics}):
            count = partitions.get(topic, 0)
            wanting = sorted((m for m in members if topic in members[m].topics), key=_rank(members))
            quota, extra = divmod(count, len(wanting))
            start = 0
            for number, member in enumerate(wanting):
                stop = start + quota + (1 if number < extra else 0)
                result[member] += [TopicPartition(topic, index) for index in range(start, stop)]
                start = stop
        return result


class RoundRobin:
    """Kafka's RoundRobinAssignor."""

    name = "roundrobin"
    cooperative = False

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        """All partitions of all topics in turn, to those who subscribed."""
        result: Assignment = {member: [] for member in members}
        order = sorted(members, key=_rank(members))
        at = 0
        for place in _places(partitions, members):
            while place.topic not in members[order[at % len(order)]].topics:
                at += 1
            result[order[at % len(order)]].append(place)
            at += 1
        return result


class Sticky:
    """As balanced as subscriptions allow; then as few moves as possible."""

    name: ClassVar[str] = "sticky"
    cooperative: ClassVar[bool] = False

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        """Keep what is owned, hand out the rest to the poorest, then level out."""
        result = self._balanced(partitions, members)
        return {member: sorted(places) for member, places in result.items()}

    def _balanced(
        self, partitions: Mapping[str, int], members: Mapping[str, Subscription]
    ) -> dict[str, list[TopicPartition]]:
        places = _places(partitions, members)
        known = set(places)
        owner: dict[TopicPartition, str] = {}
        claims: dict[TopicPartition, int] = {}
        for member, said in members.items():
            owned, generation = owned_by(said)
            for place in owned:
                if place not in known or place.topic not in said.topics:
                    continue
                if place not in owner or generation > claims[place]:
                    owner[place], claims[place] = member, generation
                elif generation == claims[place]:
                    # Two owners of one generation: neither is believed, as in Kafka.
                    claims[place] = generation + 1
                    owner.pop(place)
        result: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for place, member in owner.items():
            result[member].append(place)
        for place in places:
            if place not in owner:
                wanting = [m for m in members if place.topic in members[m].topics]
                result[min(wanting, key=lambda m: (len(result[m]), m))].append(place)
        self._level(result, members)
        return result

    def _level(self, result: dict[str, list[TopicPartition]], members: Mapping[str, Subscription]) -> None:
        """Move partitions from the richest to a member with two less, until there is none."""
        moved = True
        while moved:
            moved = False
            for giver in sorted(result, key=lambda m: -len(result[m])):
                by_wealth = sorted((m for m in result if m != giver), key=lambda m: (len(result[m]), m))
                for taker in by_wealth:
                    if len(result[giver]) - len(result[taker]) < 2:
                        break
                    given = next(
                        (p for p in reversed(result[giver]) if p.topic in members[taker].topics), None
                    )
                    if given is not None:
                        result[giver].remove(given)
                        result[taker].append(given)
                        moved = True
                        break
                if moved:
                    break


class CooperativeSticky(Sticky):
    """Sticky; a partition that moves is given to nobody until its old owner has given it up (KIP-429)."""

    name = "cooperative-sticky"
    cooperative = True

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        """As sticky, without what somebody else still owns."""
        result = self._balanced(partitions, members)
        owner: dict[TopicPartition, tuple[int, str]] = {}
        for member, said in members.items():
            owned, generation = owned_by(said)
            for place in owned:
                # A member that missed a generation claims what is another one's since then.
                if place not in owner or generation >= owner[place][0]:
                    owner[place] = generation, member
        return {
            member: sorted(place for place in places if owner.get(place, (0, member))[1] == member)
            for member, places in result.items()
        }


class Broadcast:
    """Every member gets every partition, and keeps its position in it whoever comes, goes or is lost."""

    name = "broadcast"
    # Nothing is given to another member, so a rebalance has nothing to wait for: to give up and come back would be to
    # forget the positions, which a group that commits nothing has nowhere else.
    cooperative = True
    shared = True

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> Assignment:
        """All partitions of its topics to each member."""
        return {
            member: [
                TopicPartition(topic, index)
                for topic in sorted(said.topics)
                for index in range(partitions.get(topic, 0))
            ]
            for member, said in members.items()
        }


_NAMED: Final[dict[str, type[Any]]] = {
    each.name: each for each in (Range, RoundRobin, Sticky, CooperativeSticky, Broadcast)
}


def assignors_of(chosen: Sequence[Any]) -> list[Assignor]:
    """The assignors of `partition.assignment.strategy`: names, classes or objects.

    Raises:
        OptionError: a name is unknown, or there is none.
    """
    found: list[Assignor] = []
    for each in chosen:
        if isinstance(each, str):
            if each not in _NAMED:
                raise OptionError(f"partition.assignment.strategy: {each!r} is none of {', '.join(_NAMED)}")
            found.append(_NAMED[each]())
        else:
            found.append(each() if isinstance(each, type) else each)
    if not found:
        raise OptionError("partition.assignment.strategy names no assignor")
    return found


def _rank(members: Mapping[str, Subscription]) -> Any:
    """Static members by their instance id first, as Kafka orders them; they keep their place over restarts."""

    def rank(member: str) -> tuple[bool, str]:
        instance = members[member].group_instance_id
        return instance is None, instance or member

    return rank


def _places(partitions: Mapping[str, int], members: Mapping[str, Subscription]) -> list[TopicPartition]:
    topics = sorted({topic for each in members.values() for topic in each.topics})
    return [TopicPartition(topic, index) for topic in topics for index in range(partitions.get(topic, 0))]


def owned_by(said: Subscription) -> tuple[tuple[TopicPartition, ...], int]:
    """What a member owned and in which generation: from its fields, or from the user data of Kafka's sticky one."""
    if said.owned or not said.user_data:
        return said.owned, said.generation_id
    try:
        cursor = Cursor(memoryview(said.user_data), 0, len(said.user_data))
        if len(said.user_data) == INT32.size:
            return said.owned, cursor.int32()
        return _read_places(cursor), cursor.int32()
    except MalformedFrame:
        return said.owned, said.generation_id


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────


def encode_subscription(said: Subscription) -> bytes:
    """What a member says when it joins."""
    topics = b"".join(string_bytes(each) for each in sorted(said.topics))
    return (
        INT16.pack(SUBSCRIPTION_VERSION)
        + INT32.pack(len(said.topics))
        + topics
        + octets_bytes(said.user_data)
        + _places_bytes(said.owned)
        + INT32.pack(said.generation_id)
        + string_bytes(said.rack or None)
    )


def decode_subscription(raw: bytes, group_instance_id: str | None) -> Subscription:
    """What another member said, in any version.

    Raises:
        MalformedFrame: it does not parse.
    """
    cursor = Cursor(memoryview(raw), 0, len(raw))
    version = cursor.int16()
    topics = tuple(cursor.string() for _ in range(cursor.array_count(2)))
    user_data = cursor.nullable_octets()
    owned = _read_places(cursor) if version >= 1 else ()
    generation = cursor.int32() if version >= 2 else NO_GENERATION
    rack = cursor.nullable_string() if version >= 3 else None
    return Subscription(topics, owned, generation, user_data, rack, group_instance_id)


def encode_assignment(places: Sequence[TopicPartition]) -> bytes:
    """What the leader gives to a member."""
    return INT16.pack(ASSIGNMENT_VERSION) + _places_bytes(places) + octets_bytes(None)


def decode_assignment(raw: bytes) -> tuple[TopicPartition, ...]:
    """What a member was given; nothing in an empty assignment.

    Raises:
        MalformedFrame: it does not parse.
    """
    if not raw:
        return ()
    cursor = Cursor(memoryview(raw), 0, len(raw))
    cursor.int16()
    return _read_places(cursor)


def _places_bytes(places: Sequence[TopicPartition]) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        topics.setdefault(topic, []).append(partition)
    out = bytearray(INT32.pack(len(topics)))
    for topic, indexes in topics.items():
        out += string_bytes(topic) + INT32.pack(len(indexes))
        for index in indexes:
            out += INT32.pack(index)
    return bytes(out)


def _read_places(cursor: Cursor) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for _ in range(cursor.array_count(6)):
        topic = cursor.string()
        found += [TopicPartition(topic, cursor.int32()) for _ in range(cursor.array_count(4))]
    return tuple(found)
