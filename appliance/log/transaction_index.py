"""The `.txnindex` of a segment: the transactions whose abort marker lies in it.

    entry (34 bytes)   version int16 (0) · producer id int64 · first offset int64 · last offset int64
                       · last stable offset int64

`last offset` is the marker's; it rises from entry to entry. The file exists only if there is an entry. A reader
of committed records gets the entries that overlap its range and drops those producers' records.
Source: `AbortedTxn.java`, `TransactionIndex.java`; KIP-98.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple

from appliance.log.faults import storage_faults
from appliance.log.file_names import TRANSACTION_INDEX, parse_segment_file_name, segment_file_name

ENTRY: Final = Struct(">hqqqq")
"""Version, producer id, first offset, last offset, last stable offset."""
_VERSION: Final = 0
_LAST_OFFSET: Final = attrgetter("last_offset")


class AbortedTransaction(NamedTuple):
    """One entry. All numbers but the producer id are offsets."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


def decode_transactions(content: bytes) -> list[AbortedTransaction]:
    """The whole entries of an index file's content."""
    whole = len(content) - len(content) % ENTRY.size
    return [AbortedTransaction(*entry[1:]) for entry in ENTRY.iter_unpack(content[:whole])]


def encode_transactions(transactions: Iterable[AbortedTransaction]) -> bytes:
    """The content of an index file."""
    return b"".join(ENTRY.pack(_VERSION, *transaction) for transaction in transactions)


def read_transactions(path: Path) -> list[AbortedTransaction]:
    """The entries of an index file; none where there is no file.

    Raises:
        StorageFault: it cannot be read.
    """
    with storage_faults(path):
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            content = b""
    return decode_transactions(content)


def read_aborted(directory: Path, *, segment: int, offset: int, bound: int) -> list[AbortedTransaction]:
    """Return the aborted transactions that overlap the records from `offset` to `bound`, which is stable.

    For another process than the log's owner. The files can change meanwhile, so compare the files version afterwards.

    Args:
        segment: the base offset of the segment that has the record at `offset`.

    Raises:
        StorageFault: an index, or the directory, cannot be read.
    """
    found: list[AbortedTransaction] = []
    with storage_faults(directory):
        names = os.listdir(directory)
    bases = sorted(
        parsed[0]
        for name in names
        if name.endswith(TRANSACTION_INDEX) and (parsed := parse_segment_file_name(name)) is not None
    )
    for base in bases:
        if base < segment:
            continue
        for entry in read_transactions(directory / segment_file_name(base, TRANSACTION_INDEX)):
            if entry.last_offset >= offset and entry.first_offset < bound:
                found.append(entry)
            if entry.last_stable_offset >= bound:
                return found
    return found


class TransactionIndex:
    """Aborted transactions of one segment, in memory once they were asked for."""

    __slots__ = ("_base_offset", "_directory", "_entries")

    def __init__(self, directory: Path, base_offset: int) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._entries: list[AbortedTransaction] | None = None

    @property
    def path(self) -> Path:
        return self._directory / segment_file_name(self._base_offset, TRANSACTION_INDEX)

    def relocate(self, directory: Path) -> None:
        """Goes on in the file of another directory, which holds the same entries."""
        self._directory = directory

    def entries(self) -> list[AbortedTransaction]:
        """All entries.

        Raises:
            StorageFault: the file cannot be read.
        """
        if self._entries is None:
            self._entries = read_transactions(self.path)
        return self._entries

    def ended_since(self, offset: int) -> Iterator[AbortedTransaction]:
        """Those whose marker is at `offset` or later. O(log n) to the first one.

        Raises:
            StorageFault: the file cannot be read.
        """
        entries = self.entries()
        first = bisect_left(entries, offset, key=_LAST_OFFSET) if entries else 0
        for at in range(first, len(entries)):
            yield entries[at]

    @property
    def size_bytes(self) -> int:
        """Bytes of its entries; 0 means that there may be no file.

        Raises:
            StorageFault: the file cannot be read.
        """
        return len(self.entries()) * ENTRY.size

    def append(self, transaction: AbortedTransaction) -> None:
        """Adds an entry, to the file first.

        Raises:
            StorageFault: it failed; nothing was added.
        """
        entries = self.entries()
        flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
        path = self.path
        with storage_faults(path):
            descriptor = os.open(path, flags, 0o644)
            start = len(entries) * ENTRY.size
            rest = ENTRY.pack(_VERSION, *transaction)
            try:
                while rest:
                    rest = rest[os.pwrite(descriptor, rest, start + ENTRY.size - len(rest)) :]
            except OSError:
                os.ftruncate(descriptor, start)
                raise
            finally:
                os.close(descriptor)
        entries.append(transaction)

    def truncate_to(self, offset: int) -> None:
        """Drops the transactions that ended at `offset` or later.

        Raises:
            StorageFault: it failed.
        """
        kept = [entry for entry in self.entries() if entry.last_offset < offset]
        if len(kept) != len(self.entries()):
            self._entries = kept
            path = self.path
            with storage_faults(path):
                os.truncate(path, len(kept) * ENTRY.size)

    def reset(self) -> None:
        """Forgets everything and removes the file.

        Raises:
            StorageFault: it failed.
        """
        path = self.path
        with storage_faults(path):
            path.unlink(missing_ok=True)
        self._entries = []
