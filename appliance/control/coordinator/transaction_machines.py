"""Transactional ids, as a service of the coordinator runtime: what `transaction/` wants done, carried out.

    record of __transaction_state ─→ Transactions.replay          while a partition is loaded
    effects of Transactions       ─→ Answer, Append               as of every service
                                     WriteMarkers                 marker_writer
                                     After                        a timer

All ids of the process are in one `Transactions`, because timeouts, limits and ListTransactions are of all of them. An
id belongs to the partition of its hash, so a partition that is given away takes its ids along.

A transition that is under way answers others of the same id with CONCURRENT_TRANSACTIONS. On one host it is over in a
moment, where clients pause for 20 ms. So `hold` keeps such a request and asks again when the id has settled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import TRANSACTION_STATE
from appliance.config import Settings
from appliance.control.coordinator.marker_writer import MarkerRound, MarkerWriter, WriteOffsetsMarker
from appliance.control.coordinator.runtime import effects as runtime_effects
from appliance.control.coordinator.runtime.effects import Effects, Record
from appliance.control.coordinator.runtime.runtime import TopicShards
from appliance.control.coordinator.runtime.shard import State
from appliance.control.coordinator.runtime.state_machine import BlockReplay, StateMachine
from appliance.control.coordinator.topics import ImageTopics
from appliance.control.coordinator.transaction.effects import (
    After,
    Append,
    TransactionEffects,
    WriteMarkers,
)
from appliance.control.coordinator.transaction.transaction_record import read_transaction_record
from appliance.control.coordinator.transaction.transactions import (
    ProducerIds,
    Transactions,
    TransactionSettings,
)
from appliance.partition_access.access import PartitionAccess
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker

HOLD_MS: Final = 20
"""Java's pause after CONCURRENT_TRANSACTIONS: who is held longer than that loses time."""
HELD_MAX: Final = 4_096
EXPIRE_AGAIN_MS: Final = 10
"""Between two batches of ids that are forgotten."""
SERVER_VERSION: Final = 2
"""This broker's `transaction.version`."""
_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)


class TransactionMachine:
    """The ids of one partition; their state is in `TransactionMachines.transactions`."""

    __slots__ = ("_owner", "number")

    def __init__(self, owner: TransactionMachines, number: int) -> None:
        self.number = number
        self._owner = owner

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: Record) -> None:
        read = read_transaction_record(record.key, record.value)
        if read is not None:
            self._owner.transactions.replay(self.number, *read)

    def replay_marker(
        self, offset: int, producer_id: int, producer_epoch: int, marker: EndTransactionMarker
    ) -> None:
        """Do nothing: nobody writes to this topic in a transaction."""

    def block_replay(self) -> BlockReplay | None:
        return None

    def loaded(self) -> Effects:
        return self._owner.loaded(self.number)

    def unloaded(self) -> Effects:
        return self._owner.unloaded(self.number)

    def apply(self, records: Sequence[Record]) -> None:
        """Do nothing: each `Append` of `transaction/` takes its state over in its `then`."""

    def image_changed(self) -> Effects:
        return []


class _Held:
    """A request that waits until its id has settled."""

    __slots__ = ("is_over", "retry")

    def __init__(self, retry: Callable[[bool], None]) -> None:
        self.retry = retry
        self.is_over = False


class TransactionMachines:
    """All transactional ids of this process, with a machine for each partition.

    `shards` is what `CoordinatorRuntime.register` returned, set at once.

    Args:
        write_offsets_marker: see `marker_writer`.
        later: calls an action after so many milliseconds.
        processes: how many coordinators share the ids, and what is allowed of them.
    """

    def __init__(
        self,
        settings: Settings,
        topics: ImageTopics,
        access: PartitionAccess,
        clock: Clock,
        producer_ids: ProducerIds,
        *,
        write_offsets_marker: WriteOffsetsMarker,
        later: Callable[[int, Callable[[], None]], None],
        processes: int = 1,
    ) -> None:
        options = settings.transaction
        self.shards: TopicShards | None = None
        self.codec = Codec.NONE
        self.markers = MarkerWriter(
            topics, access, clock, write_offsets_marker=write_offsets_marker, later=later
        )
        self.transactions = Transactions(
            TransactionSettings(
                timeout_max_ms=options.max_timeout_ms,
                id_expiration_ms=options.id_expiration_ms,
                ids_max=max(1, options.ids_max // processes),
                server_version=SERVER_VERSION,
            ),
            clock,
            producer_ids,
            partition_of=self.partition_of,
            settled=self._settled,
        )
        self._clock = clock
        self._later = later
        self._partitions = 0
        self._check_interval_ns = options.expired_check_interval_ms * NS_PER_MS
        self._check_ns = clock.monotonic_ns() + self._check_interval_ns
        self._held: dict[str, deque[_Held]] = {}
        self._held_count = 0
        self._ready: deque[_Held] = deque()

    # Where ids belong

    def partition_of(self, transactional_id: str) -> int:
        return group_partition(transactional_id, self._partitions) if self._partitions else 0

    def gate(self, transactional_id: str, slot: int) -> int:
        """Return 0 if requests that name the id are served for a client of `slot`'s port, else their error."""
        topic = self.shards
        if topic is None or not topic.shards:
            return _NOT_AVAILABLE
        return topic.shards[self.partition_of(transactional_id)].gate(slot)

    def leads(self, transactional_id: str, slot: int) -> bool:
        """Return whether `slot` leads the id's partition, as far as this process has loaded it."""
        return not self.gate(transactional_id, slot)

    # Carrying out

    def carry_out(self, effects: TransactionEffects) -> None:
        """Carry out what a call of `transactions` returned."""
        assert self.shards is not None
        self.shards.carry_out(self._translated(effects))

    def _translated(self, effects: TransactionEffects) -> Effects:
        """The effects that the runtime knows; the others are begun here."""
        told: Effects = []
        for effect in effects:
            match effect:
                case Append(partition, records, then):
                    told.append(runtime_effects.Append(partition, records, self._then(then)))
                case WriteMarkers(partition, marker, partitions, marked):
                    self.markers.write(MarkerRound(partition, marker, partitions, self._action(marked)))
                case After(delay_ms, action):
                    self._later(delay_ms, self._action(action))
                case _:
                    told.append(effect)
        return told

    def _then(self, then: Callable[[int], TransactionEffects]) -> Callable[[int], Effects]:
        return lambda error: self._translated(then(error))

    def _action(self, action: Callable[[], TransactionEffects]) -> Callable[[], None]:
        return lambda: self.carry_out(action())

    # Holding

    def hold(self, transactional_id: str, retry: Callable[[bool], None]) -> None:
        """Call `retry` once: with False when the id has settled, with True when HOLD_MS are over."""
        if self._held_count >= HELD_MAX:
            retry(True)
            return
        held = _Held(retry)
        self._held.setdefault(transactional_id, deque()).append(held)
        self._held_count += 1
        self._later(HOLD_MS, lambda: self._time_is_up(transactional_id, held))

    def _time_is_up(self, transactional_id: str, held: _Held) -> None:
        if held.is_over:
            return
        waiting = self._held.get(transactional_id)
        if waiting is not None and held in waiting:
            waiting.remove(held)
            if not waiting:
                del self._held[transactional_id]
        elif held in self._ready:
            self._ready.remove(held)
        self._finish(held, is_over=True)

    def _settled(self, transactional_id: str) -> None:
        """No transition of the id is under way any more: who waits is asked again in this turn."""
        self._ready.extend(self._held.pop(transactional_id, ()))

    def producer_ids_arrived(self) -> None:
        """Ask everybody again who is held: they may have waited for an id."""
        for transactional_id in list(self._held):
            self._settled(transactional_id)

    def _finish(self, held: _Held, *, is_over: bool) -> None:
        held.is_over = True
        self._held_count -= 1
        held.retry(is_over)

    @property
    def has_work(self) -> bool:
        """Whether `turn` has requests to ask again."""
        return bool(self._ready)

    def turn(self) -> bool:
        """Ask held requests again, and send what found no room. False: some of it still waits."""
        for _ in range(len(self._ready)):
            self._finish(self._ready.popleft(), is_over=False)
        return self.markers.turn()

    # What the runtime asks

    @property
    def topic(self) -> str:
        return TRANSACTION_STATE

    def machines(self, partitions: int) -> Sequence[StateMachine]:
        self._partitions = partitions
        return [TransactionMachine(self, number) for number in range(partitions)]

    def image_changed(self) -> Effects:
        self.markers.image_changed()
        return []

    def loaded(self, number: int) -> Effects:
        """A partition was replayed: the markers of its decided transactions are sent again."""
        assert self.shards is not None
        place = self.shards.shards[number].place
        assert place is not None
        return self._translated(self.transactions.loaded(number, place.leader_epoch))

    def unloaded(self, number: int) -> Effects:
        """A partition is given away, with its ids."""
        self.markers.drop(number)
        self.transactions.unload(number)
        for transactional_id in list(self._held):
            if self.partition_of(transactional_id) == number:
                self._settled(transactional_id)
        return []

    @property
    def is_loading(self) -> bool:
        """Whether a partition is being loaded."""
        return self.shards is not None and self.shards.is_loading

    @property
    def is_served(self) -> bool:
        """Whether the topic exists, with a partition that is served."""
        return self.shards is not None and any(shard.state is State.ACTIVE for shard in self.shards.shards)

    def next_deadline_ms(self) -> int | None:
        if not len(self.transactions):
            return None
        due_ns = self.transactions.next_deadline_ns()
        due_ns = self._check_ns if due_ns is None else min(due_ns, self._check_ns)
        return -(-due_ns // NS_PER_MS)

    def expire(self) -> Effects:
        effects = self._translated(self.transactions.abort_timed_out())
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._check_ns:
            forgotten = self._translated(self.transactions.expire())
            # Some of them at a time: the rest after those who wait.
            self._check_ns = now_ns + (EXPIRE_AGAIN_MS * NS_PER_MS if forgotten else self._check_interval_ns)
            effects += forgotten
        return effects

    def statistics(self) -> dict[str, int]:
        return {"transactional_ids": len(self.transactions), "held": self._held_count}
