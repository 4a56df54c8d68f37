"""Which leader epoch began at which offset: what followers and consumers cut diverging logs by.

    epoch  start offset          end offset of epoch 3 = 120, the start of the next one known
      1         0                end offset of epoch 4 = the log end, it is the latest
      3        40                end offset of epoch 2 = (1, 40): no such epoch, so the one before it, and where
      4       120                    the next one starts

The file, `leader-epoch-checkpoint`, has one `epoch offset` line each. It need not be replaced when an epoch begins
(`is_due` until it is): batches carry their epoch, and recovery reads it from them again. So it is written before a
recovery point moves past the first of them. A leader's file, which its followers read, lacks the latest entry at most,
and those that it was left by who had the log before, in shared memory (`handed_over`).
Source: `LeaderEpochFileCache.java`; KIP-101, KIP-279.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final, Self

from appliance.errors import ApplianceDefect, CorruptFile
from appliance.log.checkpoint import encode_entries, read_entries, replace_file
from appliance.log.file_names import LEADER_EPOCHS

UNDEFINED_EPOCH: Final = -1
UNDEFINED_OFFSET: Final = -1


class LeaderEpochs:
    """Epochs and their start offsets, both rising strictly. Lookups are O(log epochs)."""

    __slots__ = (
        "_cut_in_memory",
        "_directory",
        "_epochs",
        "_is_left",
        "_starts",
        "highest",
        "is_due",
        "latest",
    )

    def __init__(self, directory: Path, entries: Sequence[tuple[int, int]]) -> None:
        self._directory = directory
        # They seldom change, and are few.
        self._epochs = tuple(epoch for epoch, _ in entries)
        self._starts = tuple(start for _, start in entries)
        self.latest = self._epochs[-1] if entries else UNDEFINED_EPOCH
        # The highest one that was ever known here, also where it was cut or forgotten since.
        self.highest = self.latest
        self.is_due = False
        # The file's last entry, where it was forgotten here and not there.
        self._cut_in_memory: tuple[int, int] | None = None
        # All that the file lacks is known to others, too.
        self._is_left = False

    @classmethod
    def left(cls, directory: Path, entries: Sequence[tuple[int, int]], *, is_due: bool = True) -> Self:
        """As who had the log before has left them for all who may ask; the file, which lacks some, is due."""
        epochs = cls(directory, entries)
        epochs.is_due = epochs._is_left = is_due
        return epochs

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Reads the checkpoint of a partition directory.

        Raises:
            CorruptFile: it does not parse.
            StorageFault: it cannot be read.
        """
        return cls(directory, read_epochs(directory))

    @classmethod
    def empty(cls, directory: Path) -> Self:
        """No epoch known yet; the file is written when the first one begins."""
        return cls(directory, ())

    def assign(self, epoch: int, start_offset: int, *, write: bool = True) -> None:
        """Says that `epoch` begins at `start_offset`; entries it contradicts are dropped. Without `write` the file is
        due, unless an earlier entry was due already that nobody else knows.

        Raises:
            StorageFault: the file could not be replaced.
        """
        if not self._begin(epoch, start_offset):
            return
        if self._is_left and not write:
            self._is_left = False
        elif write or self.is_due:
            self.write()
        else:
            self.is_due = (epoch, start_offset) != self._cut_in_memory
            self._cut_in_memory = None

    def follow(self, epoch: int, start_offset: int) -> None:
        """As `assign`, of a follower, by its leader's batches: the file may lack any number of epochs.

        Nobody but a recovery reads it until the log is handed over, which writes what is due, and a recovery finds in
        the batches whatever began beyond the recovery point.
        """
        if self._begin(epoch, start_offset):
            self.is_due = True
            self._cut_in_memory = None

    def _begin(self, epoch: int, start_offset: int) -> bool:
        if self.latest == epoch and start_offset >= self._starts[-1]:
            return False
        kept = min(bisect_left(self._epochs, epoch), bisect_left(self._starts, start_offset))
        self._epochs = (*self._epochs[:kept], epoch)
        self._starts = (*self._starts[:kept], start_offset)
        self.latest = epoch
        self.highest = max(self.highest, epoch)
        return True

    @property
    def says_all(self) -> bool:
        """Whether the file says nothing that was forgotten here."""
        return self._cut_in_memory is None

    @property
    def first_start(self) -> int:
        """Where the oldest epoch begins; -1 if none is known."""
        return self._starts[0] if self._starts else UNDEFINED_OFFSET

    @property
    def latest_start(self) -> int:
        """Where the latest epoch begins; -1 if none is known."""
        return self._starts[-1] if self._starts else UNDEFINED_OFFSET

    def end_offset(self, epoch: int, *, log_end_offset: int) -> tuple[int, int]:
        """(epoch, end offset) for a requested epoch, as in the picture above; (-1, -1) where nothing is known."""
        if epoch == UNDEFINED_EPOCH or not self._epochs:
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if epoch == self.latest:
            return epoch, log_end_offset
        slot = bisect_right(self._epochs, epoch)
        if slot == len(self._epochs):
            return UNDEFINED_EPOCH, UNDEFINED_OFFSET
        if slot == 0:
            return epoch, self._starts[0]
        return self._epochs[slot - 1], self._starts[slot]

    def epoch_of(self, offset: int) -> int:
        """The epoch that an offset was written in; -1 if that is not known."""
        slot = bisect_right(self._starts, offset)
        return self._epochs[slot - 1] if slot else UNDEFINED_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forgets epochs that begin at `end_offset` or later.

        Raises:
            StorageFault: the file could not be replaced.
        """
        if not self._starts or self._starts[-1] < end_offset:
            return
        kept = bisect_left(self._starts, end_offset)
        self._epochs, self._starts = self._epochs[:kept], self._starts[:kept]
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH
        self.is_due, self._cut_in_memory = True, None
        self.write()

    def forget_empty(self, log_end_offset: int) -> bool:
        """Forgets, in memory, a latest epoch that begins at the log end; whether that was all there was to forget.

        Its file still says so, and is replaced when another epoch begins: an opening by a leader, which comes with an
        epoch that is not older, mostly with this one. Whoever may append what others wrote must not rely on that: their
        records may be of an epoch before.
        """
        if not self._starts or self._starts[-1] < log_end_offset:
            return True
        if self._starts[-1] > log_end_offset or (
            len(self._starts) > 1 and self._starts[-2] >= log_end_offset
        ):
            return False
        self._cut_in_memory = self._epochs[-1], self._starts[-1]
        self._epochs, self._starts = self._epochs[:-1], self._starts[:-1]
        self.latest = self._epochs[-1] if self._epochs else UNDEFINED_EPOCH
        return True

    def truncate_from_start(self, start_offset: int) -> None:
        """Forgets epochs that ended before `start_offset`; the one it lies in begins there now.

        Raises:
            StorageFault: the file could not be replaced.
        """
        slot = bisect_right(self._starts, start_offset)
        if slot == 0 or (slot == 1 and self._starts[0] == start_offset):
            return
        self._epochs = self._epochs[slot - 1 :]
        self._starts = (start_offset, *self._starts[slot:])
        self.is_due = True  # where it cannot be written now
        self.write()

    def relocate(self, directory: Path) -> None:
        """Goes on with the file of another directory, which says the same or is written soon."""
        self._directory = directory

    def write(self, directory: Path | None = None) -> None:
        """Replaces the file, or writes one of the same content in another directory.

        Raises:
            StorageFault: it failed.
        """
        lines = (f"{epoch} {start}" for epoch, start in self.entries())
        path = (directory or self._directory) / LEADER_EPOCHS
        replace_file(path, encode_entries(lines), durable=False)
        if directory is None:
            self.is_due = self._is_left = False
            self._cut_in_memory = None

    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), oldest first."""
        return list(zip(self._epochs, self._starts, strict=True))

    def check(self) -> None:
        """Raises ApplianceDefect where epochs or their starts do not rise strictly."""
        if any(a[0] >= b[0] or a[1] >= b[1] for a, b in pairwise(self.entries())):
            raise ApplianceDefect(f"{self._directory}: leader epochs do not rise: {self.entries()}")


def read_epochs(directory: Path | str) -> list[tuple[int, int]]:
    """(epoch, start offset) as the checkpoint of a partition directory has them, oldest first.

    Raises:
        CorruptFile: it does not parse.
        StorageFault: it cannot be read.
    """
    path = f"{directory}/{LEADER_EPOCHS}"
    try:
        entries = [(int(epoch), int(start)) for epoch, start in read_entries(path)]
    except ValueError:
        raise CorruptFile(f"{path} has an entry that is not `epoch offset`") from None
    if entries != sorted(entries) or any(a[1] > b[1] for a, b in pairwise(entries)):
        raise CorruptFile(f"{path} does not rise")
    return entries
