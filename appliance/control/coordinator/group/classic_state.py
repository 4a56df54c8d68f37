"""The states of a classic group, as a table: where each may go, and how it answers.

    Empty                no members; offsets may be left
    PreparingRebalance   members are asked to join anew; join requests wait
    CompletingRebalance  the generation is made, its leader is asked for the assignment; sync requests wait
    Stable               every member has, or can fetch, its assignment
    Dead                 deleted or unloaded; whoever still has it in hand comes too late

Source: Kafka's `ClassicGroupState.java` and the branches of `GroupMetadataManager.java`. README.md shows the table.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from appliance.protocol.errors import ErrorCode


class ClassicState(Enum):
    """The value is Kafka's name, as DescribeGroups and ListGroups write it."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class StateRow(msgspec.Struct, frozen=True):
    """What a state does.

    `heartbeat`, `sync` and `commit` are the answers to a member of the right generation; WAITS instead of an answer
    means that the request is kept. `can_rebalance`: whether a change of members starts a rebalance.
    """

    next: frozenset[ClassicState]
    can_rebalance: bool
    heartbeat: ErrorCode
    sync: ErrorCode | None
    commit: ErrorCode
    delete: ErrorCode


WAITS = None

_E, _P, _C, _S, _D = ClassicState

STATES: dict[ClassicState, StateRow] = {
    _E: StateRow(
        next=frozenset({_P, _D}),
        can_rebalance=True,
        heartbeat=ErrorCode.UNKNOWN_MEMBER_ID,
        sync=ErrorCode.UNKNOWN_MEMBER_ID,
        commit=ErrorCode.NONE,
        delete=ErrorCode.NONE,
    ),
    _P: StateRow(
        next=frozenset({_C, _E, _D}),
        can_rebalance=False,
        heartbeat=ErrorCode.REBALANCE_IN_PROGRESS,
        sync=ErrorCode.REBALANCE_IN_PROGRESS,
        commit=ErrorCode.NONE,
        delete=ErrorCode.NON_EMPTY_GROUP,
    ),
    _C: StateRow(
        next=frozenset({_S, _P, _D}),
        can_rebalance=True,
        heartbeat=ErrorCode.NONE,
        sync=WAITS,
        commit=ErrorCode.REBALANCE_IN_PROGRESS,
        delete=ErrorCode.NON_EMPTY_GROUP,
    ),
    _S: StateRow(
        next=frozenset({_P, _D}),
        can_rebalance=True,
        heartbeat=ErrorCode.NONE,
        sync=ErrorCode.NONE,
        commit=ErrorCode.NONE,
        delete=ErrorCode.NON_EMPTY_GROUP,
    ),
    _D: StateRow(
        next=frozenset({_D}),
        can_rebalance=False,
        heartbeat=ErrorCode.COORDINATOR_NOT_AVAILABLE,
        sync=ErrorCode.COORDINATOR_NOT_AVAILABLE,
        commit=ErrorCode.COORDINATOR_NOT_AVAILABLE,
        delete=ErrorCode.GROUP_ID_NOT_FOUND,
    ),
}


def table_text() -> str:
    """The table in Markdown, as README.md has it; a test holds the two together."""
    lines = [
        "| state | may go to | rebalances on a change | heartbeat | sync | commit | delete |",
        "|---|---|---|---|---|---|---|",
    ]
    for state, row in STATES.items():
        following = ", ".join(other.value for other in ClassicState if other in row.next)
        sync = "waits" if row.sync is WAITS else row.sync.name
        lines.append(
            f"| {state.value} | {following} | {'yes' if row.can_rebalance else 'no'} | {row.heartbeat.name} | {sync} "
            f"| {row.commit.name} | {row.delete.name} |"
        )
    return "\n".join(lines)
