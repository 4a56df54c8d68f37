"""What is kept of each transactional id: its last committed state, whether a transition is under way, its deadline.

    partition of `__transaction_state` ─→ LogPartition ─→ id ─→ Entry
    deadline (monotonic ns), id        in order: the open transactions that can time out

`transactions` decides; this file counts, finds and remembers. All calls are O(log n) at most but those that say so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from sortedcontainers import SortedList

from appliance.clock import NS_PER_MS, Clock
from appliance.control.coordinator.transaction.transaction import Transaction
from appliance.control.coordinator.transaction.transaction_state import PREPARED, TransactionState

RETRY_MS: Final = 20
RETRY_MAX_MS: Final = 1_000
"""After a record could not be written that nobody waits for: the pause before the next try doubles up to here."""
NO_DEADLINE: Final = -1


class Entry:
    """A transactional id. `current` is None until its first record is committed."""

    __slots__ = ("abort_pause_ms", "current", "deadline_ns", "is_moving", "transactional_id")

    def __init__(self, transactional_id: str, current: Transaction | None) -> None:
        self.transactional_id = transactional_id
        self.current = current
        self.is_moving = False
        """A transition waits for its record."""
        self.deadline_ns = NO_DEADLINE
        self.abort_pause_ms = RETRY_MS
        """Before the next try, if the abort of the timed out transaction cannot be written."""

    @property
    def is_in_transition(self) -> bool:
        """Whether a transition waits for its record, or a decision for its markers: until then no other one begins."""
        return self.is_moving or (self.current is not None and self.current.state in PREPARED)

    def is_unused_since(self, before_ms: int) -> bool:
        """Whether the id has no transaction, and nobody has used it since then."""
        current = self.current
        return (
            current is not None
            and not self.is_in_transition
            and current.state is not TransactionState.ONGOING
            and current.updated_ms <= before_ms
        )


class LogPartition:
    """The ids of one partition of `__transaction_state`. `epoch` is that of its leader; -1 while it is replayed."""

    __slots__ = ("entries", "epoch")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.epoch = -1


class TransactionBook:
    """All ids of the coordinator, by partition.

    Args:
        partition_of: transactional id → partition of `__transaction_state`.
    """

    __slots__ = ("_clock", "_count", "_deadlines", "_logs", "_partition_of")

    def __init__(self, clock: Clock, partition_of: Callable[[str], int]) -> None:
        self._clock = clock
        self._partition_of = partition_of
        self._logs: dict[int, LogPartition] = {}
        self._count = 0  # of all partitions: asked for each new id
        # (monotonic deadline ns, transactional id) of each open transaction that can time out
        self._deadlines: SortedList[tuple[int, str]] = SortedList()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[str, Transaction]]:
        """Yield each id with what is committed of it. Ids must not come or go meanwhile."""
        for log in self._logs.values():
            for entry in log.entries.values():
                if entry.current is not None:
                    yield entry.transactional_id, entry.current

    # Partitions

    def partitions(self) -> list[int]:
        return list(self._logs)

    def known(self, partition: int) -> LogPartition | None:
        """Return a partition, if it is known."""
        return self._logs.get(partition)

    def log(self, partition: int) -> LogPartition:
        """Return a partition, known from now on."""
        log = self._logs.get(partition)
        if log is None:
            log = self._logs[partition] = LogPartition()
        return log

    def forget(self, partition: int) -> None:
        """Forget a partition with its ids: O(ids)."""
        log = self._logs.pop(partition, None)
        if log is None:
            return
        for entry in log.entries.values():
            self.put(entry, None)
        self._count -= len(log.entries)
        log.entries.clear()  # effects that are under way look here for their entry

    # Ids

    def find(self, transactional_id: str) -> tuple[int, LogPartition, Entry | None]:
        """Return where an id belongs, and its entry if there is one."""
        partition = self._partition_of(transactional_id)
        log = self.log(partition)
        return partition, log, log.entries.get(transactional_id)

    def new(self, log: LogPartition, transactional_id: str) -> Entry:
        entry = log.entries[transactional_id] = Entry(transactional_id, None)
        self._count += 1
        return entry

    def remove(self, log: LogPartition, entry: Entry) -> None:
        del log.entries[entry.transactional_id]
        self._count -= 1

    def put(self, entry: Entry, transaction: Transaction | None) -> None:
        """Let the id be in this state, and watch over the timeout of an open transaction."""
        before, entry.current = entry.current, transaction
        entry.abort_pause_ms = RETRY_MS
        if transaction is None or transaction.timeout_left_ms(0) is None:
            self.drop_deadline(entry)
        elif (
            entry.deadline_ns == NO_DEADLINE or before is None or before.started_ms != transaction.started_ms
        ):
            left_ms = transaction.timeout_left_ms(self._clock.now_ms())
            assert left_ms is not None
            self.keep_deadline(entry, self._clock.monotonic_ns() + left_ms * NS_PER_MS)

    # Deadlines

    @property
    def open(self) -> int:
        """How many transactions are open that can time out."""
        return len(self._deadlines)

    def next_deadline_ns(self) -> int | None:
        """Return when (monotonic ns) the first open transaction times out; None if none does."""
        return self._deadlines[0][0] if self._deadlines else None

    def first_due(self, now_ns: int) -> str | None:
        """Return the id whose transaction has timed out the longest ago; None if none has."""
        deadlines = self._deadlines
        if not deadlines or deadlines[0][0] > now_ns:
            return None
        transactional_id: str = deadlines[0][1]
        return transactional_id

    def keep_deadline(self, entry: Entry, deadline_ns: int) -> None:
        self.drop_deadline(entry)
        entry.deadline_ns = deadline_ns
        self._deadlines.add((deadline_ns, entry.transactional_id))

    def drop_deadline(self, entry: Entry) -> None:
        if entry.deadline_ns != NO_DEADLINE:
            self._deadlines.remove((entry.deadline_ns, entry.transactional_id))
            entry.deadline_ns = NO_DEADLINE
