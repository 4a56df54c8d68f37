"""The partition table: what every process may know about a partition without asking its owner.

One row per partition in shared memory, in it a group of words per slot. All words are 8-byte little-endian integers,
so that one word is one machine load or store on x86-64.

| word | written by | a reader may conclude |
|---|---|---|
| incarnation | controller | which use of the row this is; 0 = free |
| leader_slot, leader_epoch, isr_bits | controller | who should lead; for clients the metadata image decides |
| serving_incarnation | the leader's worker | it serves this one, these are its words; negative: its storage failed |
| log_start, high_watermark, last_stable_offset | the leader's worker | [log_start, high_watermark) is readable now |
| watchers | purgatory | > 0: the purgatory wants a poke when the high watermark moves |
| files_version | the leader's worker | unchanged: names of segments mean the files they meant; odd: in the change |
| serving_epoch | the leader's worker | under which leader epoch it serves the row |
| serving_epoch_start | the leader's worker | at which offset that begins; its epoch file has the earlier ones |
| active_segment | the leader's worker | its base offset; what lies below is in segments that are closed |
| watermark_incarnation | the leader's worker | which incarnation the high watermark is of: it outlives the leader |
| restart_log_end | the leader's worker | log end of its first leader: the watermark may be too low below it |
| slot[n].log_end | slot n's appender (worker or replica) | slot n holds the bytes below it |
| slot[n].caught_up_ms | slot n's appender | when slot n last had all of the leader's log |
| slot[n].followed_incarnation | slot n's replica | log_end is of this incarnation |
| slot[n].followed_epoch | slot n's replica | below log_end its bytes are this epoch's leader's; -1: nobody's |
| slot[n].closed_incarnation | slot n's appender | closed in good order; its negative: open; 0: never opened |
| slot[n].log_start | slot n's replica | slot n begins there, as log_end of an incarnation and an epoch |
| slot[n].size_bytes, directory | slot n's replica | of its copy, and which log directory has it, from 1 on; 0: none |
| slot[n].future_directory | slot n's replica | where its copy moves to, from 1 on; 0: nowhere |
| slot[n].future_bytes, future_end | slot n's replica | how far what is there has come |
| slot[n].damage_found | slot n's replica | the leader's log is damaged at this offset less one; 0: not known |
| slot[n].cut_to | slot n's appender | a recovery since the start cut complete batches up to there; 0: none |

Behind the rows lies, for each slot and row, what the slot's process that closed the log last leaves to the one that
opens it next (`leave`; the bytes are `log.handed_over`'s): incarnation, length, up to HANDED_BYTES_MAX bytes. It counts
for as long as `closed_incarnation` says so, and its epochs for as long as the slot leads with what it opened then.

Before a replica cuts its log it takes followed_epoch back, and sets it again after the log end: who reads the epoch it
knows, and then the log end, reads one that holds. A slot's appender is whoever the controller let have its copy.

Single words need no lock. Whoever needs two words that belong together reads `serving_incarnation` before and
after them (a row is never reused without changing it).
"""

from __future__ import annotations

from typing import Final, NamedTuple

WORD_BYTES: Final = 8
ROW_WORDS: Final = 16
SLOT_WORDS: Final = 13
HANDED_WORDS: Final = 64
HANDED_BYTES_MAX: Final = (HANDED_WORDS - 2) * WORD_BYTES

INCARNATION: Final = 0
LEADER_SLOT: Final = 1
LEADER_EPOCH: Final = 2
ISR_BITS: Final = 3
SERVING_INCARNATION: Final = 4
LOG_START: Final = 5
HIGH_WATERMARK: Final = 6
LAST_STABLE_OFFSET: Final = 7
WATCHERS: Final = 8
FILES_VERSION: Final = 9
SERVING_EPOCH: Final = 10
WATERMARK_INCARNATION: Final = 11
SERVING_EPOCH_START: Final = 12
ACTIVE_SEGMENT: Final = 13
RESTART_LOG_END: Final = 14

SLOT_LOG_END: Final = 0
SLOT_CAUGHT_UP_MS: Final = 1
SLOT_FOLLOWED_INCARNATION: Final = 2
SLOT_FOLLOWED_EPOCH: Final = 3
SLOT_CLOSED_INCARNATION: Final = 4
SLOT_LOG_START: Final = 5
SLOT_SIZE_BYTES: Final = 6
SLOT_DIRECTORY: Final = 7
SLOT_FUTURE_DIRECTORY: Final = 8
SLOT_FUTURE_BYTES: Final = 9
SLOT_FUTURE_END: Final = 10
SLOT_CUT_TO: Final = 11
SLOT_DAMAGE_FOUND: Final = 12

NOT_FOLLOWING: Final = -1
NOT_HELD: Final = 0
NEVER_OPENED: Final = 0
OPENING: Final = -(1 << 62)
"""Of `closed_incarnation`: whether there is a copy at all is about to be seen."""


def table_size_bytes(rows: int, slots: int) -> int:
    """Bytes of a table of `rows` partitions for `slots` slots."""
    return rows * (ROW_WORDS + (SLOT_WORDS + HANDED_WORDS) * slots) * WORD_BYTES


class CopyBefore(NamedTuple):
    """A slot's copy, before one of its halves opens it.

    `had_copy`: the slot has had one since the start. `closed`: whether who had it open last closed it in good order,
    None where nobody had. `left`: what that one left to the next; it holds where `closed`.
    """

    had_copy: bool
    closed: bool | None
    left: bytes | None


class PartitionTable:
    """A view of the table: `cells`, a memoryview of int64; a word is `cells[table.at(row) + HIGH_WATERMARK]`."""

    __slots__ = ("_bytes", "_rows", "cells", "row_words", "slots")

    def __init__(self, view: memoryview, *, slots: int) -> None:
        self.slots = slots
        self.row_words = ROW_WORDS + SLOT_WORDS * slots
        self._bytes = view.cast("B")
        self.cells = self._bytes.cast("q")
        self._rows = len(self.cells) // (self.row_words + HANDED_WORDS * slots)

    def __len__(self) -> int:
        return self._rows

    def column(self, word: int) -> list[int]:
        """One word of every row, such as `INCARNATION`."""
        return self.cells[word : self._rows * self.row_words : self.row_words].tolist()

    def at(self, row: int) -> int:
        """Index of the first word of `row` in `cells`."""
        return row * self.row_words

    def serves(self, row: int, incarnation: int) -> bool:
        """Whether the row's owner serves this incarnation of it now."""
        return bool(self.cells[row * self.row_words + SERVING_INCARNATION] == incarnation)

    def is_offline(self, row: int, incarnation: int) -> bool:
        """Whether the row's owner says that the storage of this incarnation failed."""
        return bool(self.cells[row * self.row_words + SERVING_INCARNATION] == -incarnation)

    def followed_copy(self, row: int, incarnation: int, slot: int) -> tuple[int, int, int] | None:
        """Log directory, size in bytes and log end of the copy that a slot follows with; None where it has none."""
        cells, own = self.cells, self.slot_at(row, slot)
        if cells[self.at(row) + INCARNATION] != incarnation or cells[own + SLOT_DIRECTORY] == NOT_HELD:
            return None
        return cells[own + SLOT_DIRECTORY] - 1, cells[own + SLOT_SIZE_BYTES], cells[own + SLOT_LOG_END]

    def future_copy(self, row: int, incarnation: int, slot: int) -> tuple[int, int, int] | None:
        """Log directory to which a followed copy moves, bytes that are there, and its lag in offsets; None: nowhere."""
        cells, own = self.cells, self.slot_at(row, slot)
        directory = cells[own + SLOT_FUTURE_DIRECTORY]
        if cells[self.at(row) + INCARNATION] != incarnation or directory == NOT_HELD:
            return None
        lag = max(0, cells[own + SLOT_LOG_END] - cells[own + SLOT_FUTURE_END])
        return directory - 1, cells[own + SLOT_FUTURE_BYTES], lag

    def had_copy(self, row: int, incarnation: int, slot: int) -> bool:
        """Whether the slot has had a copy since the start: a half has had it open, or followed with it."""
        cells, own = self.cells, self.slot_at(row, slot)
        return incarnation in (
            abs(cells[own + SLOT_CLOSED_INCARNATION]),
            cells[own + SLOT_FOLLOWED_INCARNATION],
        )

    def opening(self, row: int, incarnation: int, slot: int) -> CopyBefore:
        """Before a half of the slot opens its copy: whoever dies in between leaves a log that has to be recovered.

        What was known of the copy until now.
        """
        at = self.slot_at(row, slot) + SLOT_CLOSED_INCARNATION
        closed, had_copy = self.cells[at], self.had_copy(row, incarnation, slot)
        before = CopyBefore(
            had_copy,
            closed=None if closed == NEVER_OPENED else closed == incarnation,
            left=self.left(row, incarnation, slot),
        )
        self.cells[at] = -incarnation if had_copy else OPENING
        return before

    def opened(self, row: int, incarnation: int, slot: int, before: CopyBefore, *, cut_to: int = -1) -> None:
        """A half of the slot has its copy open, which was as `before` says: from now on there is one.

        `cut_to`: to open it, complete batches up to this offset were cut; -1 where none were.
        """
        if not before.closed:
            self._forget_left(row, slot)
        cells, own = self.cells, self.slot_at(row, slot)
        cells[own + SLOT_CUT_TO] = max(cut_to, cells[own + SLOT_CUT_TO] if before.had_copy else 0)
        cells[own + SLOT_CLOSED_INCARNATION] = -incarnation

    def cut_to(self, row: int, incarnation: int, slot: int) -> int:
        """Return up to which offset a recovery since the start has cut complete batches of the slot's copy; 0: none."""
        if not self.had_copy(row, incarnation, slot):
            return 0
        return self.cells[self.slot_at(row, slot) + SLOT_CUT_TO]

    def leave(self, row: int, incarnation: int, slot: int, state: bytes) -> bool:
        """Leaves `state` to whichever half of the slot opens the copy next, before it is said to be closed; False, and
        nothing is left, where there is no room for it."""
        cells, at = self.cells, self._handed_at(row, slot)
        cells[at] = 0
        if len(state) > HANDED_BYTES_MAX:
            return False
        start = (at + 2) * WORD_BYTES
        self._bytes[start : start + len(state)] = state
        cells[at + 1] = len(state)
        cells[at] = incarnation
        return True

    def left(self, row: int, incarnation: int, slot: int) -> bytes | None:
        """What was left of the slot's copy; None where nothing was."""
        cells, at = self.cells, self._handed_at(row, slot)
        if cells[at] != incarnation:
            return None
        start = (at + 2) * WORD_BYTES
        return bytes(self._bytes[start : start + cells[at + 1]])

    def _forget_left(self, row: int, slot: int) -> None:
        """The slot's copy was opened without what had been left of it."""
        at = self._handed_at(row, slot)
        if self.cells[at]:
            self.cells[at] = 0

    def _handed_at(self, row: int, slot: int) -> int:
        return self._rows * self.row_words + (slot * self._rows + row) * HANDED_WORDS

    def was_led(self, row: int, incarnation: int) -> bool:
        """Whether anybody has led this incarnation since the start: then its watermark, and its start, are known."""
        return bool(self.cells[self.at(row) + WATERMARK_INCARNATION] == incarnation)

    def is_watermark_known(self, row: int, incarnation: int) -> bool:
        """Whether the high watermark is at least what was acknowledged.

        After a start of everything the first leader has it from a checkpoint, up to a minute old. What its log holds
        beyond may have been acknowledged before. It is known again once all in-sync replicas have come as far.
        """
        cells, at = self.cells, self.at(row)
        return self.was_led(row, incarnation) and bool(
            cells[at + HIGH_WATERMARK] >= cells[at + RESTART_LOG_END]
        )

    def lacks(
        self, row: int, incarnation: int, slot: int, *, log_start: int, log_end: int, is_alone: bool
    ) -> str:
        """What a copy of the slot that was just opened to lead lacks of what it has had, or of the log; empty: nothing.

        Processes die and leave their files whole; where some have gone, others would cut their logs to what is left.
        Whoever is chosen from among several in sync has what is committed, or is not in sync. `is_alone`: it is the
        only one, perhaps by an unclean choice; then it may lack what it never had.
        """
        if not self.was_led(row, incarnation):
            return ""
        cells, at = self.cells, self.at(row)
        if log_start > cells[at + LOG_START]:
            return f"it begins at {log_start}, and the log at {cells[at + LOG_START]}"
        committed = cells[at + HIGH_WATERMARK]
        if is_alone:
            had = (
                cells[self.slot_at(row, slot) + SLOT_LOG_END] if self.had_copy(row, incarnation, slot) else 0
            )
            committed = min(had, committed)
        if log_end < committed:
            return f"it ends at {log_end}, and {'had' if is_alone else 'all is committed to'} {committed}"
        return ""

    def files_version(self, row: int) -> int:
        """Changes whenever a segment's name comes to mean another file."""
        return self.cells[row * self.row_words + FILES_VERSION]

    def slot_at(self, row: int, slot: int) -> int:
        """Index of the first word of slot `slot`'s column group of `row` in `cells`."""
        return row * self.row_words + ROW_WORDS + SLOT_WORDS * slot
