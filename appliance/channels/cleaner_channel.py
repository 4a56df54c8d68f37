"""What the cleaner and the owners of logs say to each other.

    owner ──LOOK(row)──→ cleaner                       a segment was closed, or settings changed, in a compacted log
    cleaner ──SURVEY(row)──→ owner ──SURVEYED──→       how far may be cleaned
    cleaner ──SWAP(row, segments)──→ owner ──SWAPPED──→    put what I prepared into the place of these

A copy's owner is the worker of its slot where that leads, and the slot's replica where another one does.

All messages are 64 bytes, little endian:

    op u8, flags u8, pad u16, row u32, incarnation u64, a i64, b i64, c i64, d i64, directory i64, spare i64

| op | a | b | c | d |
|---|---|---|---|---|
| LOOK | - | - | - | - |
| SURVEY | - | - | - | - |
| SURVEYED | log start | first uncleanable offset | largest timestamp of the active segment's first batch, -1 | cuts |
| SWAP | base offset | end offset | bytes of the sources | cuts |
| SWAPPED | - | - | - | - |

`directory`, in SURVEYED, is the index of the slot's log directory that the partition lies in.
`flags` DONE on SURVEYED and SWAPPED: otherwise the owner does not hold that incarnation of the row, or the log is not
what the cleaner has read. WAITS on SURVEYED: closed segments wait for the last stable offset, whose move no LOOK tells,
or nothing can be said now; the cleaner asks again after a while. The cleaner asks one question at a time; LOOK may
come at any moment, and is a hint only.

`.cleaned` files of a partition are the cleaner's from a SURVEYED on until it says SWAP. From then on they are the
owner's until SWAPPED, and where an answer never comes, because one of the two died, the next opening of the log, or
the cleaner's next life after its first SURVEYED, removes them.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import Final

TO_CLEANER = FROM_CLEANER = Struct("<BBHIQqqqqqq")

assert TO_CLEANER.size == 64

# Fields by position in what they unpack.
OP: Final = 0
FLAGS: Final = 1
ROW: Final = 3
INCARNATION: Final = 4
# SURVEYED: the bounds of the log, LOG_START to CUTS, and where it lies
BOUNDS: Final = slice(5, 9)
DIRECTORY: Final = 9
# SWAP
BASE_OFFSET: Final = 5
END_OFFSET: Final = 6
SOURCE_BYTES: Final = 7
CUTS: Final = 8


class CleanerOp(IntEnum):
    """What is said between the cleaner and an owner."""

    LOOK = 1
    SURVEY = 2
    SURVEYED = 3
    SWAP = 4
    SWAPPED = 5


class CleanerFlag(IntEnum):
    """Bits of `flags`."""

    DONE = 1
    WAITS = 2
