"""DeleteGroups (42), versions 0-2: groups without members go, and with them their committed offsets.

The tombstones of one partition are one batch, so a group is never deleted by halves. A group is out of the book when
its tombstones are on their way: whoever comes in between makes a new one, whose records follow them in the log. If
they cannot be written the group is back, unless another has taken its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from appliance.control.coordinator.group.append_errors import for_member
from appliance.control.coordinator.group.classic_group import ClassicGroup
from appliance.control.coordinator.group.classic_rebalance import cancel_timers
from appliance.control.coordinator.group.classic_state import STATES
from appliance.control.coordinator.group.consumer_group import ConsumerGroup
from appliance.control.coordinator.group.consumer_records import record_of
from appliance.control.coordinator.group.effects import Client, Record
from appliance.control.coordinator.group.group_book import GroupBook
from appliance.control.coordinator.group.group_metadata_record import tombstone
from appliance.protocol.apis.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)
from appliance.protocol.errors import ErrorCode

AnyGroup: TypeAlias = ClassicGroup | ConsumerGroup


def handle(book: GroupBook, request: DeleteGroupsRequest, client: Client, reply: object) -> None:
    """Answers when every partition's tombstones are in the log."""
    names = tuple(dict.fromkeys(request.groups_names))
    results: dict[str, int] = {}
    by_partition: dict[int, list[AnyGroup]] = {}
    for group_id in names:
        group = book.groups.get(group_id)
        results[group_id] = _fault(book, group, group_id=group_id, client=client)
        if group is not None and not results[group_id]:
            by_partition.setdefault(book.partition_of(group_id), []).append(group)
    _Deletion(book, reply, results=results, waits_for=len(by_partition)).start(list(by_partition.values()))


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
    """One request under way: it is answered with the last of its appends."""

    __slots__ = ("_book", "_reply", "_results", "_waits_for")

    def __init__(self, book: GroupBook, reply: object, *, results: dict[str, int], waits_for: int) -> None:
        self._book = book
        self._reply = reply
        self._results = results
        self._waits_for = waits_for

    def start(self, batches: Sequence[Sequence[AnyGroup]]) -> None:
        if not batches:
            self._answer()
        for groups in batches:
            self._delete(groups)

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
                    book.groups.setdefault(group.group_id, group)
                    self._results[group.group_id] = for_member(error_code)
            self._waits_for -= 1
            if self._waits_for == 0:
                self._answer()

        if records:
            book.append(groups[0].group_id, tuple(records), written)
        else:
            written(0)

    def _answer(self) -> None:
        results = tuple(DeletableGroupResult(name, error_code=error) for name, error in self._results.items())
        self._book.answer(self._reply, DeleteGroupsResponse(results=results))
