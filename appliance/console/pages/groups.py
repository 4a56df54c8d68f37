"""Consumer groups: the list, one group with members and lag, reset with a dry run, delete.

Ends of logs come from shared memory, so a lag costs no request. They are of topics that the broker has named in its
answer about this person's group.
"""

from __future__ import annotations

import re
import struct
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from appliance.console.kafka_link import BrokerFault, check, not_done, refusal
from appliance.console.pages.messages import time_ms
from appliance.console.pages.paging import part_of
from appliance.console.reading import fetch_once, offsets
from appliance.console.records import read_records
from appliance.console.server import Response
from appliance.console.visit import BadInput, NotThere, Visit
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.find_coordinator import GROUP, FindCoordinatorRequest
from appliance.protocol.apis.list_groups import ListedGroup, ListGroupsRequest
from appliance.protocol.apis.list_offsets import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.apis.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchRequest,
)

CONSUMER_TYPE: Final = "consumer"
PLACES: Final = ("beginning", "end", "offset", "time", "shift")
ASSIGNED_SHOWN: Final = 20
BEHIND_S: Final = 2.0
BEHIND_BYTES: Final = 4096
"""Of one fetch; the broker sends the first batch in any case."""
_CHANGE: Final = re.compile(r"\S+ [0-9]{1,9} [0-9]{1,18}")
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Position:
    """What a group has committed in a partition. `end` is None for a partition that is gone."""

    topic: str
    partition: int
    committed: int
    end: int | None

    @property
    def lag(self) -> int | None:
        """Records between the committed offset and the end."""
        return None if self.end is None else max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class Behind:
    """How old the next record is that a group will read in a partition; `seconds` is None where it is not known."""

    position: Position
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Member:
    """A member of a group, of either protocol."""

    member_id: str
    client_id: str
    host: str
    instance_id: str | None
    assigned: list[str]
    assigned_count: int


def groups(visit: Visit) -> Response:
    """The list: names and states, in pages."""
    wanted = visit.asked("q").strip()
    found = [each for each in _listed(visit) if wanted.lower() in each.group_id.lower()]
    part = part_of(visit, found)
    lags = _lags(visit, [each.group_id for each in part.rows])
    return visit.page("groups.html", part=part, q=wanted, lags=lags)


def _lags(visit: Visit, names: list[str]) -> dict[str, int]:
    """Return group → its lag, for those whose offsets the person may read: two requests, and one for each slot more."""
    if not names:
        return {}
    answer = visit.link.ask(
        ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=GROUP, coordinator_keys=tuple(names))
    )
    by_slot: dict[int, list[str]] = defaultdict(list)
    for each in answer.coordinators:
        if not each.error_code:
            by_slot[each.node_id].append(each.key)
    lags: dict[str, int] = {}
    for slot, keys in by_slot.items():
        wanted = OffsetFetchRequest(groups=tuple(map(OffsetFetchGroup, keys)))
        try:
            found = visit.link.ask(ApiKey.OFFSET_FETCH, 8, wanted, slot=slot)
        except BrokerFault:
            continue  # this slot is down; the others' groups are shown
        for each in found.groups:
            if not each.error_code:
                lags[each.group_id] = sum(position.lag or 0 for position in _committed(visit, each))
    return lags


def _listed(visit: Visit) -> list[ListedGroup]:
    """Return the groups of all slots, in order of their names.

    Raises:
        BrokerFault: no slot answers.
    """
    found: dict[str, ListedGroup] = {}
    fault: BrokerFault | None = None
    answered = 0
    for slot in visit.link.slots:
        try:
            answer = visit.link.ask(ApiKey.LIST_GROUPS, 5, ListGroupsRequest(), slot=slot)
            check(answer.error_code)
        except BrokerFault as error:
            fault = error
            continue
        answered += 1
        found |= {each.group_id: each for each in answer.groups}
    if fault is not None and not answered:
        raise fault
    return [found[name] for name in sorted(found)]


def group(visit: Visit) -> Response:
    """One group: its members, and how far it is behind."""
    listed = _group(visit, visit.asked("name"))
    positions = _positions(visit, listed.group_id)
    members, fault = [], ""
    try:
        members = _members(visit, listed)
    except BrokerFault as error:
        fault = str(error)
    part = part_of(visit, positions)
    return visit.page(
        "group.html",
        group=listed,
        members=members,
        fault=fault,
        part=part,
        rows=_behind(visit, part.rows),
        lag=sum(each.lag or 0 for each in positions),
    )


def _behind(visit: Visit, positions: Sequence[Position]) -> list[Behind]:
    """Return how far behind each position is in time: one fetch for each that has a lag, within BEHIND_S in all."""
    until_s = time.monotonic() + BEHIND_S
    now_ms = visit.site.clock.now_ms()
    found = []
    for each in positions:
        seconds: float | None = 0.0 if each.lag == 0 else None
        image = visit.image.topics.get(each.topic)
        if each.lag and image is not None and time.monotonic() < until_s:
            try:
                answer = fetch_once(visit.link, image, each.partition, each.committed, bytes_max=BEHIND_BYTES)
                record = next(read_records(answer, each.partition, from_offset=each.committed), None)
            except BrokerFault:
                record = None  # the person may not read this topic, or the offset is gone
            if record is not None and record.record.timestamp_ms >= 0:
                seconds = max(0.0, (now_ms - record.record.timestamp_ms) / 1000)
        found.append(Behind(each, seconds))
    return found


def _group(visit: Visit, name: str) -> ListedGroup:
    """Return a group as its coordinator lists it.

    Raises:
        NotThere: there is none, or the person may not see it.
    """
    for each in _listed(visit):
        if each.group_id == name:
            return each
    raise NotThere(f"there is no group {name}")


def _coordinator(visit: Visit, name: str) -> int:
    """Return the slot that coordinates a group.

    Raises:
        BrokerFault: none does now, or the person may not see the group.
    """
    answer = visit.link.ask(
        ApiKey.FIND_COORDINATOR, 4, FindCoordinatorRequest(key_type=GROUP, coordinator_keys=(name,))
    )
    (found,) = answer.coordinators
    check(found.error_code, found.error_message)
    return int(found.node_id)


def _positions(visit: Visit, name: str) -> list[Position]:
    """Return what a group has committed, in order.

    Raises:
        BrokerFault: the broker does not answer, or refuses.
    """
    answer = visit.link.ask(
        ApiKey.OFFSET_FETCH,
        8,
        OffsetFetchRequest(groups=(OffsetFetchGroup(name),)),
        slot=_coordinator(visit, name),
    )
    (found,) = answer.groups
    check(found.error_code)
    return _committed(visit, found)


def _committed(visit: Visit, found: OffsetFetchGroupResponse) -> list[Position]:
    return sorted(
        (
            Position(
                topic.name,
                each.partition_index,
                each.committed_offset,
                visit.look.end_offset(topic.name, each.partition_index),
            )
            for topic in found.topics
            for each in topic.partitions
            if each.committed_offset >= 0 and not each.error_code
        ),
        key=lambda each: (each.topic, each.partition),
    )


def _members(visit: Visit, listed: ListedGroup) -> list[Member]:
    """Return the members of a group.

    Raises:
        BrokerFault: the broker does not answer, or refuses.
    """
    slot = _coordinator(visit, listed.group_id)
    if listed.group_type.lower() == CONSUMER_TYPE:
        answer = visit.link.ask(
            ApiKey.CONSUMER_GROUP_DESCRIBE, 1, ConsumerGroupDescribeRequest((listed.group_id,)), slot=slot
        )
        (found,) = answer.groups
        check(found.error_code, found.error_message)
        return [
            _member(
                each,
                [
                    f"{topic.topic_name}-{partition}"
                    for topic in each.assignment.topic_partitions
                    for partition in topic.partitions
                ],
                each.instance_id,
            )
            for each in found.members
        ]
    answer = visit.link.ask(ApiKey.DESCRIBE_GROUPS, 5, DescribeGroupsRequest((listed.group_id,)), slot=slot)
    (described,) = answer.groups
    check(described.error_code)
    return [
        _member(each, assigned_partitions(each.member_assignment), each.group_instance_id)
        for each in described.members
    ]


def _member(each: Any, assigned: list[str], instance_id: str | None) -> Member:
    return Member(
        each.member_id,
        each.client_id,
        each.client_host,
        instance_id,
        assigned[:ASSIGNED_SHOWN],
        len(assigned),
    )


def assigned_partitions(data: bytes) -> list[str]:
    """Return `topic-partition` of an assignment of Kafka's consumer protocol; none where it is another protocol's.

    version int16 · topics [name · partitions [int32]] · user data. Source: ConsumerProtocolAssignment.json.
    """
    found: list[str] = []
    try:
        (topics,) = _INT32.unpack_from(data, 2)
        at = 6
        for _ in range(topics):
            (length,) = _INT16.unpack_from(data, at)
            if length < 0:
                return []
            name = data[at + 2 : at + 2 + length].decode()
            at += 2 + length
            (count,) = _INT32.unpack_from(data, at)
            at += 4
            for _ in range(count):
                (partition,) = _INT32.unpack_from(data, at)
                found.append(f"{name}-{partition}")
                at += 4
    except (struct.error, UnicodeDecodeError):
        return []  # the client's own bytes, which the broker does not check
    return found


# Reset


def reset_page(visit: Visit) -> Response:
    """The form, and what it would do once it is filled in."""
    listed = _group(visit, visit.asked("name"))
    positions = _positions(visit, listed.group_id)
    topic = visit.asked("topic")
    planned: list[tuple[Position, int]] = []
    text = ""
    if visit.asked("to"):
        try:
            planned = _planned(visit, positions, topic)
        except BadInput as error:
            text = str(error)
        else:
            text = "" if planned else "This would change nothing."
    return visit.page(
        "reset.html",
        status=400
        if text and not planned and visit.asked("to") and text != "This would change nothing."
        else 200,
        group=listed,
        topics=sorted({each.topic for each in positions}),
        topic=topic,
        places=PLACES,
        to=visit.asked("to", "beginning"),
        fields={name: visit.asked(name) for name in ("offset", "time", "shift")},
        planned=planned,
        text=text,
    )


def _planned(visit: Visit, positions: list[Position], topic: str) -> list[tuple[Position, int]]:
    """Return each position that would change, and its new offset. No offset leaves the log.

    Raises:
        BadInput: the form holds what it cannot hold.
        BrokerFault: the broker does not answer, or refuses.
    """
    place = visit.asked("to")
    if place not in PLACES:
        raise BadInput(f"to: must be one of {', '.join(PLACES)}")
    step = visit.number("shift", 0, minimum=-(1 << 62)) if place == "shift" else 0
    fixed = visit.number("offset", 0) if place == "offset" else 0
    since_ms = time_ms(visit.asked("time")) if place == "time" else 0
    by_topic: dict[str, list[Position]] = defaultdict(list)
    for each in positions:
        if not topic or each.topic == topic:
            by_topic[each.topic].append(each)
    planned = []
    for name, of_topic in by_topic.items():
        image = visit.image.topics.get(name)
        if image is None:
            continue
        there = [each for each in of_topic if each.partition < len(image.partitions)]
        numbers = [each.partition for each in there]
        starts = offsets(visit.link, image, numbers, EARLIEST_TIMESTAMP)
        ends = offsets(visit.link, image, numbers, LATEST_TIMESTAMP)
        at_time = offsets(visit.link, image, numbers, since_ms) if place == "time" else {}
        for each in there:
            start, end = starts.get(each.partition), ends.get(each.partition)
            if start is None or end is None:
                continue
            wanted = {
                "beginning": start,
                "end": end,
                "offset": fixed,
                "shift": each.committed + step,
                "time": end if at_time.get(each.partition, -1) < 0 else at_time.get(each.partition, end),
            }[place]
            target = min(max(wanted, start), end)
            if target != each.committed:
                planned.append((each, target))
    return planned


def reset(visit: Visit) -> Response:
    """Commit the offsets that the dry run has shown: the form sends them, so that no more than these change."""
    listed = _group(visit, visit.asked("name"))
    changes = _changes(visit.asked("changes"))
    by_topic: dict[str, list[OffsetCommitPartition]] = defaultdict(list)
    for topic, partition, offset in changes:
        by_topic[topic].append(OffsetCommitPartition(partition, offset, ""))
    wanted = OffsetCommitRequest(
        listed.group_id,
        topics=tuple(OffsetCommitTopic(name, partitions=tuple(each)) for name, each in by_topic.items()),
    )
    try:
        answer = visit.link.ask(ApiKey.OFFSET_COMMIT, 8, wanted, slot=_coordinator(visit, listed.group_id))
    except BrokerFault as fault:
        visit.failed(not_done("no offset was reset", fault))
        return visit.back_to("/group", name=listed.group_id)
    failures = [
        f"{topic.name}-{each.partition_index}: {refusal(each.error_code)}"
        for topic in answer.topics
        for each in topic.partitions
        if each.error_code
    ]
    if failures:
        visit.failed(f"{len(failures)} of {len(changes)} offsets were not reset: {failures[0]}")
    else:
        visit.done(f"group {listed.group_id}: {len(changes)} offsets were reset")
    return visit.back_to("/group", name=listed.group_id)


def _changes(text: str) -> list[tuple[str, int, int]]:
    """Return topic, partition and offset of each line `topic partition offset`.

    Raises:
        BadInput: a line is none.
    """
    found = []
    for line in text.splitlines():
        parts = line.split(" ")
        if len(line) > 400 or _CHANGE.fullmatch(line) is None:
            raise BadInput("the plan cannot be read: make the dry run again")
        found.append((parts[0], int(parts[1]), int(parts[2])))
    if not found:
        raise BadInput("the plan is empty: make the dry run again")
    return found


# Delete


def confirm_delete(visit: Visit) -> Response:
    """Ask whether to delete a group."""
    return _confirmation(visit, _group(visit, visit.asked("name")).group_id, text="")


def _confirmation(visit: Visit, name: str, *, text: str) -> Response:
    return visit.page(
        "confirm.html",
        status=400 if text else 200,
        title=f"Delete group {name}",
        what=f"This deletes the group {name} and its committed offsets. Its next member begins where its"
        " auto.offset.reset says. The broker refuses while the group has members.",
        name=name,
        noun="group",
        action="/group/delete",
        back="/group",
        text=text,
    )


def delete_group(visit: Visit) -> Response:
    """Delete a group whose name the person has written."""
    name = _group(visit, visit.asked("name")).group_id
    if visit.asked("typed") != name:
        return _confirmation(visit, name, text="The name that you have written is another one.")
    try:
        answer = visit.link.ask(
            ApiKey.DELETE_GROUPS, 2, DeleteGroupsRequest((name,)), slot=_coordinator(visit, name)
        )
        (result,) = answer.results
        check(result.error_code)
    except BrokerFault as fault:
        visit.failed(not_done(f"group {name} was not deleted", fault))
        return visit.back_to("/group", name=name)
    visit.done(f"group {name} deleted")
    return visit.back_to("/groups")
