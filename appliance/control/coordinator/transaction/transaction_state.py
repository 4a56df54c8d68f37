"""The states of a transaction, as a table: where each may go, and how it answers.

    Empty            the producer has its id and epoch, and has written nothing since
    Ongoing          partitions belong to the transaction; its producer may write to them
    PrepareCommit    the decision to commit is in the log; markers are on their way to the partitions
    PrepareAbort     the same for the decision to abort
    CompleteCommit   every partition has its marker
    CompleteAbort    the same after an abort

Kafka has two states more, which never reach its log. `Dead` is the time between the decision to forget an id and its
tombstone; `PrepareEpochFence` is the time between the decision to fence a producer and `PrepareAbort`. Neither exists
here, because a decision is one value that takes effect when its record is committed.

Three kinds of EndTxn are told apart (KIP-890):

    V1          EndTxn up to version 4; the epoch must be the stored one
    V2          EndTxn 5 with the stored epoch: the end of the current transaction
    V2_RETRY    EndTxn 5 with the epoch before it: a repetition, because an end raises the epoch by one

Source: `TransactionState.java` and the branches of `TransactionCoordinator.scala` of Apache Kafka 4.3. README.md shows
the table.
"""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Final, TypeAlias

import msgspec

from appliance.protocol.errors import ErrorCode


class TransactionState(IntEnum):
    """The number is the status byte of a record in `__transaction_state`."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5


class EndKind(Enum):
    """Which protocol an EndTxn speaks, and whether it repeats an earlier one."""

    V1 = "EndTxn up to 4"
    V2 = "EndTxn 5"
    V2_RETRY = "EndTxn 5, repeated"


class Initialize(Enum):
    """What InitProducerId does in a state."""

    BUMP = "raises the epoch"
    FENCE = "fences the producer and aborts"
    WAIT = "CONCURRENT_TRANSACTIONS"


END: Final = None
"""In place of an error: the transaction ends."""

EndAnswer: TypeAlias = ErrorCode | None


class StateRow(msgspec.Struct, frozen=True):
    """What a state does.

    `add` answers AddPartitionsToTxn and AddOffsetsToTxn; NONE means that the partitions are added. `end` has for each
    kind of EndTxn the answers to a commit and to an abort; END means that the transaction ends that way.
    """

    name: str
    next: frozenset[TransactionState]
    initialize: Initialize
    add: ErrorCode
    end: dict[EndKind, tuple[EndAnswer, EndAnswer]]


_E, _O, _PC, _PA, _CC, _CA = TransactionState
_NONE: Final = ErrorCode.NONE
_INVALID: Final = ErrorCode.INVALID_TXN_STATE
_FENCED: Final = ErrorCode.PRODUCER_FENCED
_WAIT: Final = ErrorCode.CONCURRENT_TRANSACTIONS

STATES: Final[dict[TransactionState, StateRow]] = {
    _E: StateRow(
        name="Empty",
        next=frozenset({_E, _O, _PA}),
        initialize=Initialize.BUMP,
        add=_NONE,
        end={
            EndKind.V1: (_INVALID, _INVALID),
            EndKind.V2: (_INVALID, END),
            EndKind.V2_RETRY: (_FENCED, _FENCED),
        },
    ),
    _O: StateRow(
        name="Ongoing",
        next=frozenset({_O, _PC, _PA}),
        initialize=Initialize.FENCE,
        add=_NONE,
        end={
            EndKind.V1: (END, END),
            EndKind.V2: (END, END),
            EndKind.V2_RETRY: (_FENCED, _FENCED),
        },
    ),
    _PC: StateRow(
        name="PrepareCommit",
        next=frozenset({_CC}),
        initialize=Initialize.WAIT,
        add=_WAIT,
        end={
            EndKind.V1: (_WAIT, _WAIT),
            EndKind.V2: (_FENCED, _FENCED),
            EndKind.V2_RETRY: (_WAIT, _WAIT),
        },
    ),
    _PA: StateRow(
        name="PrepareAbort",
        next=frozenset({_CA}),
        initialize=Initialize.WAIT,
        add=_WAIT,
        end={
            EndKind.V1: (_WAIT, _WAIT),
            EndKind.V2: (_FENCED, _FENCED),
            EndKind.V2_RETRY: (_WAIT, _WAIT),
        },
    ),
    _CC: StateRow(
        name="CompleteCommit",
        next=frozenset({_E, _O, _PA}),
        initialize=Initialize.BUMP,
        add=_NONE,
        end={
            EndKind.V1: (_NONE, _INVALID),
            EndKind.V2: (_INVALID, END),
            EndKind.V2_RETRY: (_NONE, _INVALID),
        },
    ),
    _CA: StateRow(
        name="CompleteAbort",
        next=frozenset({_E, _O, _PA}),
        initialize=Initialize.BUMP,
        add=_NONE,
        end={
            EndKind.V1: (_INVALID, _NONE),
            EndKind.V2: (_INVALID, END),
            EndKind.V2_RETRY: (_INVALID, _NONE),
        },
    ),
}

PREPARED: Final = frozenset({_PC, _PA})
"""The decision is in the log, and markers are owed."""


def table_text() -> str:
    """Return the table in Markdown, as README.md has it; a test keeps the two equal."""
    lines = [
        "| state | may go to | InitProducerId | AddPartitionsToTxn | EndTxn 0-4: commit, abort | EndTxn 5 | repeated |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in STATES.values():
        following = ", ".join(STATES[state].name for state in TransactionState if state in row.next)
        ends = " | ".join(", ".join(_cell(answer) for answer in row.end[kind]) for kind in EndKind)
        add = "adds" if row.add is ErrorCode.NONE else row.add.name
        lines.append(f"| {row.name} | {following} | {row.initialize.value} | {add} | {ends} |")
    return "\n".join(lines)


def _cell(answer: EndAnswer) -> str:
    return "ends" if answer is END else answer.name
