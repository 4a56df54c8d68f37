"""ListGroups (16), versions 0-5: the groups that the slot a client speaks to coordinates.

Filters by state and by type ignore case and blanks; one that names nothing we know lets nothing through.
"""

from __future__ import annotations

from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.effects import Client
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.subscription import PROTOCOL_TYPE
from appliance.protocol.apis.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC = "classic"
CONSUMER = "consumer"


def handle(book: GroupBook, request: ListGroupsRequest, client: Client, reply: object) -> None:
    states = {text.strip().lower() for text in request.states_filter}
    types = {text.strip().lower() for text in request.types_filter}
    listed = (_listed(group) for group in book.groups.values() if not book.fault_of(group.group_id, client))
    chosen = tuple(
        one
        for one in listed
        if (not states or one.group_state.lower() in states) and (not types or one.group_type in types)
    )
    book.answer(reply, ListGroupsResponse(groups=chosen))


def _listed(group: ClassicGroup | ConsumerGroup) -> ListedGroup:
    if isinstance(group, ConsumerGroup):
        return ListedGroup(group.group_id, PROTOCOL_TYPE, group_state=group.state.value, group_type=CONSUMER)
    return ListedGroup(
        group.group_id, group.protocol_type or "", group_state=group.state.value, group_type=CLASSIC
    )
