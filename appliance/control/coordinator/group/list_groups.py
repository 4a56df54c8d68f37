"""ListGroups (16), versions 0-5: the groups that the slot a client speaks to coordinates.

Filters by state and by type ignore case and blanks; one that names nothing we know lets nothing through.
"""

from __future__ import annotations

from appliance.control.coordinator.group.effects import Client
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.protocol.apis.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLASSIC = "classic"


def handle(book: GroupBook, request: ListGroupsRequest, client: Client, reply: object) -> None:
    states = {text.strip().lower() for text in request.states_filter}
    types = {text.strip().lower() for text in request.types_filter}
    listed = tuple(
        ListedGroup(
            group.group_id,
            group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC,
        )
        for group in book.groups.values()
        if (not states or group.state.value.lower() in states)
        and (not types or CLASSIC in types)
        and not book.fault_of(group.group_id, client)
    )
    book.answer(reply, ListGroupsResponse(groups=listed))
