"""The `.cleaned` files of one segment in the making: what compaction kept, with its indexes.

    <base>.log.cleaned   .index.cleaned   .timeindex.cleaned   .txnindex.cleaned (only with an entry)

The log is written in large pieces and forced to the disk as it grows; the indexes are few bytes and written at the end.
Until `finish` has returned the files mean nothing to anybody, and an opening of the log removes them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from struct import Struct
from typing import Final

from appliance.errors import OperatorFault
from appliance.log.checkpoint import sync_directory
from appliance.log.config import LogSettings
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    CLEANED,
    LOG,
    OFFSET_INDEX,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    TRANSACTION_INDEX,
    segment_file_name,
)
from appliance.log.transaction_index import AbortedTransaction, encode_transactions
from appliance.protocol.records.batch import NO_TIMESTAMP

_WRITE_BYTES: Final = 1 << 20
_SYNC_BYTES: Final = 32 << 20
_POSITION_MAX: Final = 2**31 - 1
_OFFSET_ENTRY: Final = Struct(">ii")
_TIME_ENTRY: Final = Struct(">qi")


class SegmentOverflow(OperatorFault):
    """`segment.bytes` leaves no room for what compaction adds to records: nine bytes at most."""


class CleanedSegment:
    """Written once, in order; then `finish` or `abandon`."""

    __slots__ = (
        "_bytes_since_entry",
        "_bytes_since_sync",
        "_descriptor",
        "_directory",
        "_index_interval_bytes",
        "_last_time",
        "_max_timestamp",
        "_offsets",
        "_pending",
        "_pending_bytes",
        "_times",
        "base_offset",
        "size_bytes",
        "transactions",
    )

    def __init__(self, directory: Path, base_offset: int, *, settings: LogSettings) -> None:
        self._directory = directory
        self.base_offset = base_offset
        self.size_bytes = 0
        self.transactions: list[AbortedTransaction] = []
        self._index_interval_bytes = settings.index_interval_bytes
        self._bytes_since_entry = self._bytes_since_sync = 0
        self._max_timestamp = self._last_time = (NO_TIMESTAMP, base_offset)
        self._offsets = bytearray()
        self._times = bytearray()
        self._pending: list[bytes | memoryview] = []
        self._pending_bytes = 0
        self._descriptor = -1
        remove_cleaned(directory, base_offset)
        with storage_faults(self._path(LOG)):
            self._descriptor = os.open(
                self._path(LOG), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644
            )

    def _path(self, suffix: str) -> Path:
        return self._directory / segment_file_name(self.base_offset, suffix + CLEANED)

    def append(self, batch: bytes | memoryview, *, last_offset: int, max_timestamp_ms: int) -> None:
        """Appends a batch and indexes it by the rules of `segment`.

        Raises:
            SegmentOverflow: delete horizons have made the batches longer than a segment can be.
            DiskFull, StorageFault: it failed; `abandon` is all that is left to do.
        """
        position, length_bytes = self.size_bytes, len(batch)
        if position > _POSITION_MAX:
            raise SegmentOverflow(f"{self._path(LOG)} is too large for its index")
        if max_timestamp_ms > self._max_timestamp[0]:
            self._max_timestamp = max_timestamp_ms, last_offset
        if self._bytes_since_entry > self._index_interval_bytes:
            self._offsets += _OFFSET_ENTRY.pack(last_offset - self.base_offset, position)
            self._index_time()
            self._bytes_since_entry = 0
        self._bytes_since_entry += length_bytes
        self._pending.append(batch)
        self._pending_bytes += length_bytes
        self.size_bytes += length_bytes
        if self._pending_bytes >= _WRITE_BYTES:
            self._write()

    def _index_time(self) -> None:
        timestamp_ms, offset = self._max_timestamp
        if timestamp_ms > self._last_time[0]:
            self._times += _TIME_ENTRY.pack(timestamp_ms, offset - self.base_offset)
            self._last_time = self._max_timestamp

    def _write(self) -> None:
        content = memoryview(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0
        self._bytes_since_sync += len(content)
        with storage_faults(self._path(LOG)):
            while content:
                content = content[os.write(self._descriptor, content) :]
            if self._bytes_since_sync >= _SYNC_BYTES:
                # Now and then: at the end one flush of a gigabyte would keep the process from everything else.
                os.fdatasync(self._descriptor)
                self._bytes_since_sync = 0

    def finish(self, *, modified_ns: int) -> None:
        """Writes the indexes and forces all of it to the disk. The log's file is as old as what it replaces.

        Raises:
            DiskFull, StorageFault: as `append`.
        """
        self._index_time()
        self._write()
        with storage_faults(self._path(LOG)):
            os.utime(self._descriptor, ns=(modified_ns, modified_ns))
            os.fsync(self._descriptor)
            self._close()
        files = {OFFSET_INDEX: bytes(self._offsets), TIME_INDEX: bytes(self._times)}
        if self.transactions:
            files[TRANSACTION_INDEX] = encode_transactions(self.transactions)
        for suffix, content in files.items():
            with storage_faults(self._path(suffix)):
                _write_file(self._path(suffix), content)
        with storage_faults(self._directory):
            sync_directory(self._directory)

    def abandon(self) -> None:
        """Removes what was written.

        Raises:
            StorageFault: it failed; the next opening of the log removes it.
        """
        self._close()
        remove_cleaned(self._directory, self.base_offset)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _write_file(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_cleaned(directory: Path, base_offset: int) -> None:
    """Removes the `.cleaned` files of one segment, as a cleaner that was killed leaves them.

    Raises:
        StorageFault: it failed.
    """
    _remove(directory / segment_file_name(base_offset, suffix + CLEANED) for suffix in SEGMENT_SUFFIXES)


def remove_all_cleaned(directory: Path) -> None:
    """Removes every `.cleaned` file of a partition.

    Raises:
        StorageFault: it failed.
    """
    with storage_faults(directory):
        names = os.listdir(directory)
    _remove(directory / name for name in names if name.endswith(CLEANED))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with storage_faults(path):
            path.unlink(missing_ok=True)
