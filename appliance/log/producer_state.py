"""What a log knows of each producer: enough to take a batch once, in order, from the newest epoch only.

Of every producer id the last five batches are remembered by their sequence numbers (KIP-98, KAFKA-5494):

    appended     [0..4] [5..9] [10..14]               last sequence 14
    next batch   [15..]      in sequence, appended
                 [5..9]      one of the five: answered as it was then, not appended
                 [20..]      a gap: OUT_OF_ORDER_SEQUENCE_NUMBER
                 epoch − 1   INVALID_PRODUCER_EPOCH
                 epoch + 1   must begin at sequence 0; forgets the five
    After 2^31 − 1 the sequence goes on with 0.

Transactions: the first transactional batch of a producer opens one, a marker ends it. Until then, and until the
marker is below the high watermark, its first offset holds the last stable offset back.

The snapshot file (`<offset>.snapshot`) holds the state up to that offset:

    version int16 (1) · crc uint32 · count int32 · count × {
        producer id int64 · epoch int16 · last sequence int32 · last offset int64 · offset delta int32
        · timestamp int64 · coordinator epoch int32 · current transaction's first offset int64 (-1) }

The CRC-32C covers what follows it. Only a producer's newest batch is kept over a restart, as in Kafka.
Source: `ProducerStateManager.java`, `ProducerAppendInfo.java`, `ProducerSnapshot.json`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from heapq import nsmallest
from operator import attrgetter
from pathlib import Path
from struct import Struct, error
from typing import TYPE_CHECKING, Final, NamedTuple

from appliance.errors import ApplianceDefect, CorruptFile, RejectedRequest
from appliance.log.faults import storage_faults
from appliance.log.open_transactions import OpenTransactions
from appliance.log.producer_limits import EVICTED_PART, PRODUCER_LIMITS
from appliance.log.transaction_index import AbortedTransaction
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP, SEQUENCE_MAX
from appliance.protocol.records.control import EndTransactionMarker
from appliance.protocol.records.crc32c import checksum

if TYPE_CHECKING:
    from sortedcontainers import SortedList

BATCHES_REMEMBERED: Final = 5
PRODUCER_EPOCH_MAX: Final = 32767
"""Data in this epoch should not be, and where it is, a marker may end it: there is no epoch above."""
_SNAPSHOT_VERSION: Final = 1
_HEAD: Final = Struct(">hIi")
_CRC_STARTS: Final = 6
_ENTRY: Final = Struct(">qhiqiqiq")
_BY_LAST_OFFSET: Final = attrgetter("last_offset")


class AppendOrigin(Enum):
    """Who appends, hence what is checked.

    A client's batch is checked for everything; a coordinator's carries no sequence numbers but may be a control
    batch; a replicated one was checked by the leader.
    """

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class RememberedBatch(NamedTuple):
    """An appended batch, by what a duplicate of it is known by and answered with."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class ProducerEntry:
    """The state of one producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "last_timestamp_ms",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int) -> None:
        self.producer_id = producer_id
        self.epoch = NO_PRODUCER_EPOCH
        self.coordinator_epoch = -1
        self.last_timestamp_ms = NO_TIMESTAMP
        self.transaction_first_offset = -1
        # A list of five takes a fifth of the memory of a deque, which begins with room for 64.
        self.batches: list[RememberedBatch] = []

    def remember(self, batch: RememberedBatch) -> None:
        """Take in the newest batch; the oldest of more than five is forgotten."""
        batches = self.batches
        batches.append(batch)
        if len(batches) > BATCHES_REMEMBERED:
            del batches[0]

    @property
    def last_offset(self) -> int:
        """The last offset of its newest batch; -1 where no batch is remembered."""
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE


@dataclass(frozen=True, slots=True)
class CompletedTransaction:
    """A transaction that a marker has just ended."""

    producer_id: int
    first_offset: int
    marker_offset: int
    committed: bool


class Producers:
    """Every producer of one log, within the bounds of `producer_limits`. All calls are O(1) but for snapshots, expiry
    and, where a bound is reached, making room; those of transactions are as `open_transactions` says."""

    __slots__ = ("_entries", "_ids", "_transactions")

    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        self._ids: SortedList | None = None
        """In order, since somebody has asked for them so; None: nobody has, or some were forgotten since."""
        self._transactions: OpenTransactions | None = None
        """None until there is one: most logs have producers and no transactions."""

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def is_blank(self) -> bool:
        """Whether nothing at all is known."""
        return not self._entries and (self._transactions is None or self._transactions.is_empty)

    # Before an append

    def duplicate_of(
        self, producer_id: int, epoch: int, *, first_sequence: int, last_sequence: int
    ) -> RememberedBatch | None:
        """The remembered batch that this one repeats, if it does."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.epoch != epoch:
            return None
        for batch in entry.batches:
            if batch.last_sequence == last_sequence and batch.first_sequence == first_sequence:
                return batch
        return None

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has a transaction of this epoch open here."""
        entry = self._entries.get(producer_id)
        return entry is not None and entry.transaction_first_offset >= 0 and entry.epoch == epoch

    def has_batches(self, producer_id: int) -> bool:
        """Whether a batch of the producer is remembered."""
        entry = self._entries.get(producer_id)
        return entry is not None and bool(entry.batches)

    def check_epoch(self, producer_id: int, epoch: int) -> None:
        """Refuses a batch of an epoch below the known one. Changes nothing.

        Raises:
            RejectedRequest: INVALID_PRODUCER_EPOCH.
        """
        entry = self._entries.get(producer_id)
        if entry is not None:
            self._check_epoch(entry, epoch)

    def check_batch(
        self, producer_id: int, epoch: int, *, first_sequence: int, transactional: bool, origin: AppendOrigin
    ) -> None:
        """Refuses a data batch that is not this producer's next one. Changes nothing.

        Raises:
            RejectedRequest: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or INVALID_TXN_STATE.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        self._check_epoch(entry, epoch)
        if origin is AppendOrigin.CLIENT:
            self._check_sequence(entry, epoch, first_sequence)
        if entry.transaction_first_offset >= 0 and not transactional:
            raise RejectedRequest(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has a transaction open on this partition",
            )

    def check_marker(
        self, producer_id: int, epoch: int, *, marker: EndTransactionMarker, transaction_version: int = 0
    ) -> None:
        """Refuses a marker from a fenced producer epoch or coordinator. Changes nothing.

        From transaction version 2 on, a marker's epoch is above that of its transaction's data. So one of the known
        epoch is late if a transaction is open: it would end the next one. Where none is open, it is a marker that was
        sent again, and is accepted, since its sender repeats it until it is (KAFKA-19999).

        Raises:
            RejectedRequest: INVALID_PRODUCER_EPOCH or TRANSACTION_COORDINATOR_FENCED.
        """
        entry = self._entries.get(producer_id)
        if entry is None:
            return
        self._check_epoch(entry, epoch)
        if (
            transaction_version >= 2
            and epoch == entry.epoch
            and entry.transaction_first_offset >= 0
            and epoch != PRODUCER_EPOCH_MAX
        ):
            raise RejectedRequest(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {epoch} of a marker is that of the open transaction of producer {producer_id}, not above it",
            )
        if entry.coordinator_epoch > marker.coordinator_epoch:
            raise RejectedRequest(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"coordinator epoch {marker.coordinator_epoch} is older than {entry.coordinator_epoch}",
            )

    def _check_epoch(self, entry: ProducerEntry, epoch: int) -> None:
        if epoch < entry.epoch:
            raise RejectedRequest(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"epoch {epoch} of producer {entry.producer_id} is older than {entry.epoch}",
            )

    def _check_sequence(self, entry: ProducerEntry, epoch: int, first_sequence: int) -> None:
        if epoch != entry.epoch:
            in_order = first_sequence == 0 or entry.epoch == NO_PRODUCER_EPOCH
        else:
            last = entry.last_sequence
            in_order = first_sequence == last + 1 or (first_sequence == 0 and last == SEQUENCE_MAX)
        if not in_order:
            raise RejectedRequest(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {entry.producer_id} epoch {epoch} sent sequence {first_sequence}"
                f" after {entry.last_sequence} of epoch {entry.epoch}",
            )

    # After an append, or while the log is read again

    def add_batch(
        self,
        producer_id: int,
        epoch: int,
        *,
        last_sequence: int,
        last_offset: int,
        offset_delta: int,
        timestamp_ms: int,
        transactional: bool,
    ) -> None:
        """Remembers an appended data batch."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._add(producer_id)
        if entry.epoch != epoch:
            entry.batches.clear()
            entry.epoch = epoch
        entry.remember(RememberedBatch(last_sequence, last_offset, offset_delta, timestamp_ms))
        entry.last_timestamp_ms = timestamp_ms
        if transactional and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = last_offset - offset_delta
            transactions = self._transactions
            if transactions is None:
                transactions = self._transactions = OpenTransactions({})
            transactions.begin(last_offset - offset_delta, producer_id)

    def add_marker(
        self, producer_id: int, epoch: int, *, marker: EndTransactionMarker, offset: int, timestamp_ms: int
    ) -> CompletedTransaction | None:
        """Remembers an appended marker; the transaction it ended, None if none was open."""
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._add(producer_id)
        if entry.epoch != epoch:
            entry.batches.clear()
            entry.epoch = epoch
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp_ms = timestamp_ms
        first_offset = entry.transaction_first_offset
        entry.transaction_first_offset = -1
        if first_offset < 0:
            return None
        if self._transactions is not None:
            self._transactions.end(first_offset, offset)
        return CompletedTransaction(producer_id, first_offset, offset, marker.committed)

    def aborted(self, completed: CompletedTransaction) -> AbortedTransaction:
        """The index entry of a transaction that was aborted."""
        first_open = self.first_open_offset
        stable = completed.marker_offset + 1 if first_open is None else first_open
        return AbortedTransaction(
            completed.producer_id, completed.first_offset, completed.marker_offset, stable
        )

    # The last stable offset

    @property
    def first_open_offset(self) -> int | None:
        """Where the oldest open transaction begins."""
        transactions = self._transactions
        if transactions is None:
            return None
        first = transactions.first_open
        return None if first < 0 else first

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Where the oldest transaction begins that is open or whose marker is not below `high_watermark`.

        Forgets ended transactions once their markers are; high watermarks only grow.
        """
        transactions = self._transactions
        if transactions is None:
            return None
        first = transactions.first_unstable(high_watermark)
        return None if first < 0 else first

    # Keeping

    def expire(self, now_ms: int, *, expiration_ms: int) -> None:
        """Forgets producers without an open transaction whose last batch is older than `expiration_ms`."""
        expired = [
            entry.producer_id
            for entry in self._entries.values()
            if entry.transaction_first_offset < 0 and now_ms - entry.last_timestamp_ms >= expiration_ms
        ]
        self._forget(expired)

    def _add(self, producer_id: int) -> ProducerEntry:
        """A new producer's entry; old ones make room where a bound is reached."""
        entries, limits = self._entries, PRODUCER_LIMITS
        if len(entries) >= limits.per_log or limits.count >= limits.in_process:
            self._make_room()
        entry = entries[producer_id] = ProducerEntry(producer_id)
        limits.count += 1
        if self._ids is not None:
            self._ids.add(producer_id)
        return entry

    def _make_room(self) -> None:
        """Forgets those that were silent the longest, by the offsets of their last batches: O(n), for n / 16 of them.

        By offsets, since the timestamps of batches are what clients say.
        """
        entries = self._entries
        candidates = [entry for entry in entries.values() if entry.transaction_first_offset < 0]
        wanted = max(1, len(entries) // EVICTED_PART, len(entries) - PRODUCER_LIMITS.per_log + 1)
        oldest = nsmallest(wanted, candidates, key=_BY_LAST_OFFSET)
        PRODUCER_LIMITS.forgotten += len(oldest)
        self._forget([entry.producer_id for entry in oldest])

    def _forget(self, producer_ids: list[int]) -> None:
        for producer_id in producer_ids:
            del self._entries[producer_id]
        if producer_ids:
            self._ids = None
            PRODUCER_LIMITS.count -= len(producer_ids)

    def entries(self) -> Iterator[ProducerEntry]:
        """Every producer, in the order in which they came."""
        return iter(self._entries.values())

    def at_or_after(self, producer_id: int) -> ProducerEntry | None:
        """Return the producer with the lowest id that is not below `producer_id`. O(log n); O(n) the first time, and
        after some were forgotten.

        The order is kept while producers come, because a description asks for one after another (decision 0088).
        """
        ids = self._ids
        if ids is None:
            # Most workers are never asked, and a start loads nothing that few need (decision 0053).
            from sortedcontainers import SortedList

            ids = self._ids = SortedList(self._entries)
        at: int = ids.bisect_left(producer_id)
        return self._entries[ids[at]] if at < len(ids) else None

    def encode_snapshot(self) -> bytes:
        """The bytes of a snapshot file."""
        out = bytearray(_HEAD.pack(_SNAPSHOT_VERSION, 0, len(self._entries)))
        for entry in self._entries.values():
            last = entry.batches[-1] if entry.batches else None
            out += _ENTRY.pack(
                entry.producer_id,
                entry.epoch,
                last.last_sequence if last else NO_SEQUENCE,
                last.last_offset if last else -1,
                last.offset_delta if last else 0,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
                entry.transaction_first_offset,
            )
        _HEAD.pack_into(
            out, 0, _SNAPSHOT_VERSION, checksum(memoryview(out)[_CRC_STARTS:]), len(self._entries)
        )
        return bytes(out)

    @classmethod
    def decode_snapshot(cls, content: bytes, name: Path | str) -> Producers:
        """The state in a snapshot file; `name` is for the error.

        Raises:
            CorruptFile: version, checksum or length are wrong.
        """
        try:
            version, crc, count = _HEAD.unpack_from(content)
        except error:
            raise CorruptFile(f"{name} is shorter than a snapshot's head") from None
        if version != _SNAPSHOT_VERSION:
            raise CorruptFile(f"{name} is a snapshot of version {version}")
        if checksum(memoryview(content)[_CRC_STARTS:]) != crc:
            raise CorruptFile(f"{name} fails its checksum")
        if len(content) != _HEAD.size + count * _ENTRY.size:
            raise CorruptFile(f"{name} declares {count} producers in {len(content)} bytes")
        producers = cls()
        for fields in _ENTRY.iter_unpack(content[_HEAD.size :]):
            entry = ProducerEntry(fields[0])
            entry.epoch = fields[1]
            if fields[3] >= 0:
                entry.batches.append(RememberedBatch(fields[2], fields[3], fields[4], fields[5]))
            entry.last_timestamp_ms = fields[5]
            entry.coordinator_epoch = fields[6]
            entry.transaction_first_offset = fields[7]
            producers._entries[entry.producer_id] = entry
        PRODUCER_LIMITS.count += len(producers)
        producers._find_open(())
        return producers

    @classmethod
    def of(cls, entries: Iterable[ProducerEntry], *, undecided: Iterable[tuple[int, int]]) -> Producers:
        """The state of another process, `undecided` as it told them."""
        producers = cls()
        producers._entries = {entry.producer_id: entry for entry in entries}
        PRODUCER_LIMITS.count += len(producers)
        producers._find_open(undecided)
        return producers

    def undecided(self) -> list[tuple[int, int]]:
        """(first offset, marker offset) of transactions whose marker may still be above the high watermark."""
        return [] if self._transactions is None else self._transactions.ended()

    def _open_ones(self) -> dict[int, int]:
        return {
            entry.transaction_first_offset: entry.producer_id
            for entry in self._entries.values()
            if entry.transaction_first_offset >= 0
        }

    def _find_open(self, ended: Iterable[tuple[int, int]]) -> None:
        transactions = OpenTransactions(self._open_ones(), ended)
        if not transactions.is_empty:
            self._transactions = transactions

    def check(self) -> None:
        """Raises ApplianceDefect where transactions and producers disagree."""
        if self._ids is not None and list(self._ids) != sorted(self._entries):
            raise ApplianceDefect(f"ids in order are {list(self._ids)}, known are {sorted(self._entries)}")
        transactions = OpenTransactions({}) if self._transactions is None else self._transactions
        transactions.check(self._open_ones())


def write_snapshot(path: Path, producers: Producers) -> None:
    """Writes a snapshot file. It is not forced to the disk: a torn one fails its checksum and is passed over.

    Raises:
        StorageFault: it failed; a part of the file may be there.
    """
    content = memoryview(producers.encode_snapshot())
    with storage_faults(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        try:
            while content:
                written = os.write(descriptor, content)
                content = content[written:]
        finally:
            os.close(descriptor)
