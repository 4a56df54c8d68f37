"""DeleteGroups (42), versions 0-2: groups without members go, and with them their committed offsets.

Groups are deleted some at a time, and others are served in between. Of these, the tombstones of one partition are one
batch, so a group is never deleted by halves. A group is out of the book when
its tombstones are on their way: whoever comes in between makes a new one, whose records follow them in the log. If
they cannot be written the group is back, unless another has taken its name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, TypeAlias

from appliance.control.coordinator.group.append_errors import for_member
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_rebalance import cancel_timers
from appliance.control.coordinator.group.classic_state import STATES
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.consumer_records import record_of
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.group_metadata_record import tombstone
from appliance.control.coordinator.runtime.effects import Client, Record
from appliance.protocol.apis.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from appliance.protocol.errors import ErrorCode

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup

GROUPS_AT_ONCE: Final = 50
"""Each with its offsets: a few milliseconds' work."""


def handle(book: GroupBook, request: DeleteGroupsRequest, client: Client, reply: object) -> None:
    """Answers when every partition's tombstones are in the log."""
    _Deletion(book, reply, client, deque(dict.fromkeys(request.groups_names))).go_on()


def _fault(book: GroupBook, group: AnyGroup | None, *, group_id: str, client: Client) -> int:
    error = book.fault_of(group_id, client)
    if error:
        return error
    if isinstance(group, ConsumerGroup):
        return ErrorCode.NONE if group.is_empty and not group.is_busy else ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.GROUP_ID_NOT_FOUND if group is None else STATES[group.state].delete


def end_of(group: AnyGroup) -> list[Record]:
    """The tombstones of all that the log has of an empty group, whose timers end."""
    if isinstance(group, ConsumerGroup):
        group.cancel_all_timers()
        return [record_of(group.group_id, change) for change in group.end()]
    cancel_timers(group)
    return [tombstone(group.group_id)] if group.in_log else []


class _Deletion:
    """One request under way, which is answered with the last of its appends. `left`: the groups not yet looked at."""

    __slots__ = ("_book", "_client", "_left", "_reply", "_results", "_waits_for")

    def __init__(self, book: GroupBook, reply: object, client: Client, left: deque[str]) -> None:
        self._book = book
        self._reply = reply
        self._client = client
        self._left = left
        self._results: dict[str, int] = {}
        self._waits_for = 1  # the groups that are left

    def go_on(self) -> None:
        """Deletes the next groups."""
        book, left = self._book, self._left
        by_partition: dict[int, list[AnyGroup]] = {}
        for _ in range(min(len(left), GROUPS_AT_ONCE)):
            group_id = left.popleft()
            group = book.groups.get(group_id)
            error = self._results[group_id] = _fault(book, group, group_id=group_id, client=self._client)
            if group is not None and not error:
                by_partition.setdefault(book.partition_of(group_id), []).append(group)
        self._waits_for += len(by_partition)
        for groups in by_partition.values():
            self._delete(groups)
        if left:
            book.go_on(self.go_on)
        else:
            self._ended_one()

    def _ended_one(self) -> None:
        self._waits_for -= 1
        if self._waits_for == 0:
            self._answer()

    def _delete(self, groups: Sequence[AnyGroup]) -> None:
        book = self._book
        records: list[Record] = []
        for group in groups:
            records += book.offsets.tombstones(group.group_id)
            records += end_of(group)
            del book.groups[group.group_id]

        def written(error_code: int) -> None:
            if error_code:
                for group in groups:
                    if group.group_id not in book.groups:
                        book.groups[group.group_id] = group
                    self._results[group.group_id] = for_member(error_code)
            self._ended_one()

        if records:
            book.append(groups[0].group_id, tuple(records), written)
        else:
            written(0)

    def _answer(self) -> None:
        results = (DeletableGroupResult(name, error_code=error) for name, error in self._results.items())
        self._book.answer_in_pieces(
            self._reply, results, lambda results: DeleteGroupsResponse(results=results)
        )
