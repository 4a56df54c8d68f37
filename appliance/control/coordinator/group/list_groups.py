"""ListGroups (16), versions 0-5: the groups that the slot a client speaks to coordinates.

Filters by state and by type ignore case and blanks; one that names nothing we know lets nothing through.

The list is made in pieces, so it is no picture of one moment: it has every group that exists from the request to the
answer, and may have those that come or go meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.subscription import PROTOCOL_TYPE
from appliance.control.coordinator.runtime.effects import Client
from appliance.protocol.apis.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC = "classic"
CONSUMER = "consumer"


def handle(book: GroupBook, request: ListGroupsRequest, client: Client, reply: object) -> None:
    states = {text.strip().lower() for text in request.states_filter}
    types = {text.strip().lower() for text in request.types_filter}
    book.answer_in_pieces(
        reply, _chosen(book, client, states, types), lambda groups: ListGroupsResponse(groups=groups)
    )


def _chosen(book: GroupBook, client: Client, states: set[str], types: set[str]) -> Iterator[ListedGroup]:
    for group_id in list(book.groups):
        group = book.groups.get(group_id)
        if group is None or book.fault_of(group_id, client):
            continue
        one = _listed(group)
        if (not states or one.group_state.lower() in states) and (not types or one.group_type in types):
            yield one


def _listed(group: ClassicGroup | ConsumerGroup) -> ListedGroup:
    if isinstance(group, ConsumerGroup):
        return ListedGroup(group.group_id, PROTOCOL_TYPE, group_state=group.state.value, group_type=CONSUMER)
    return ListedGroup(
        group.group_id, group.protocol_type or "", group_state=group.state.value, group_type=CLASSIC
    )
