"""Transactions as state machines of `__transaction_state`: the second service of the runtime.

    record       of a transactional id          `transaction/`, which is pure
    loaded       Prepare… transactions          all their markers again (`marker_writer`)
    given away   the partition's ids            forgotten, with the markers that they owe

The ids of all partitions of this process are in one place, because their limit, their timeouts and the answer to
ListTransactions are of all of them. Timeouts are kept in their own order (`sortedcontainers`) and not on a timing
wheel: an open transaction has one deadline, which is set when its first partition is added and dropped at its end, and
the first of them is looked at in each turn. That costs O(log n) twice a transaction, as little as the wheel for the
numbers of transactions that one host has open, and aborts to the millisecond.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import TRANSACTION_STATE
from appliance.config import Settings
from appliance.control.coordinator.marker_writer import MarkerWriter
from appliance.control.coordinator.runtime.effects import Answer, Effects, Record
from appliance.control.coordinator.runtime.effects import Append as RuntimeAppend
from appliance.control.coordinator.runtime.runtime import TopicShards
from appliance.control.coordinator.runtime.state_machine import BlockReplay, StateMachine, Steps
from appliance.control.coordinator.transaction.effects import After, Append, TransactionEffects, WriteMarkers
from appliance.control.coordinator.transaction.transaction_record import read_transaction_record
from appliance.control.coordinator.transaction.transactions import Transactions, TransactionSettings
from appliance.partition_access.producer_ids import ProducerIdBlocks
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker

EXPIRY_IDS: Final = 2_000
"""Ids that the search for expired ones looks at before others have their turn."""
EXPIRY_ROUNDS_MAX: Final = 256
"""Batches of tombstones for one partition in one search: where they cannot be written, the next search is later."""
_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NOT_COORDINATOR: Final = int(ErrorCode.NOT_COORDINATOR)


class TransactionMachine:
    """The transactional ids of one partition."""

    __slots__ = ("_owner", "number")

    def __init__(self, owner: TransactionMachines, number: int) -> None:
        self.number = number
        self._owner = owner

    # Loading

    def block_replay(self) -> BlockReplay | None:
        self._owner.transactions.unload(self.number)
        return None

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: Record) -> None:
        """Take in a record. Those with a key of another type are of a later version, and mean nothing here."""
        read = read_transaction_record(record.key, record.value)
        if read is not None:
            self._owner.transactions.replay(self.number, *read)

    def replay_marker(
        self, offset: int, producer_id: int, producer_epoch: int, marker: EndTransactionMarker
    ) -> None:
        """Do nothing: nobody writes transactions into this topic."""

    def loaded(self) -> Effects:
        owner = self._owner
        assert owner.shards is not None
        place = owner.shards.shards[self.number].place
        assert place is not None
        owner.ids.prepare()
        owner.expire_later()
        return owner.carried_out(owner.transactions.loaded(self.number, place.leader_epoch))

    def unloaded(self) -> Effects:
        self._owner.markers.forget(self.number)
        self._owner.transactions.unload(self.number)
        return []

    # Serving

    def apply(self, records: Sequence[Record]) -> None:
        for record in records:
            read = read_transaction_record(record.key, record.value)
            if read is not None:
                self._owner.transactions.apply(self.number, *read)

    def image_changed(self) -> Effects:
        return []


class TransactionMachines:
    """All transactional ids of this process, with a machine for each partition.

    `shards` is what `CoordinatorRuntime.register` returned, set at once.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        ids: ProducerIdBlocks,
        markers: MarkerWriter,
        *,
        processes: int = 1,
    ) -> None:
        """`processes`: how many coordinators share the ids, and what is allowed of them."""
        options = settings.transaction
        self.clock = clock
        self.ids = ids
        self.markers = markers
        self.shards: TopicShards | None = None
        self.by_partition: list[TransactionMachine] = []
        self.codec = Codec.NONE
        self.transactions = Transactions(
            TransactionSettings(
                timeout_max_ms=options.max_timeout_ms,
                id_expiration_ms=options.id_expiration_ms,
                ids_max=max(1, options.ids_max // processes),
            ),
            clock,
            ids,
            partition_of=self.partition_of,
        )
        self._expiry_interval_ms = options.expired_check_interval_ms
        self._expires_later = False

    def partition_of(self, transactional_id: str) -> int:
        return group_partition(transactional_id, len(self.by_partition)) if self.by_partition else 0

    @property
    def has_image(self) -> bool:
        """Whether this process knows which topics there are."""
        return self.shards is not None and self.shards.has_image

    def gate(self, transactional_id: str, slot: int) -> int:
        """Return 0 if requests that name the id are served for a client of `slot`'s port, else their error.

        Nobody coordinates an id before the topic exists. FindCoordinator makes it, and NOT_COORDINATOR has clients ask
        that.
        """
        topic = self.shards
        if topic is None or not topic.has_image:
            return _NOT_AVAILABLE
        if not topic.shards:
            return _NOT_COORDINATOR
        return topic.shards[self.partition_of(transactional_id)].gate(slot)

    def carry_out(self, effects: TransactionEffects) -> None:
        """Carry out what a transaction wants done, in order."""
        assert self.shards is not None
        self.shards.carry_out(self.carried_out(effects))

    def carried_out(self, effects: TransactionEffects) -> Effects:
        """Begin what the runtime does not know, markers and pauses; return the rest as it knows it."""
        rest: Effects = []
        for effect in effects:
            match effect:
                case Answer():
                    rest.append(effect)
                case Append():
                    rest.append(self._append(effect))
                case WriteMarkers():
                    self._write_markers(effect)
                case After():
                    self._later(effect)
        return rest

    def _later(self, after: After) -> None:
        assert self.shards is not None
        self.shards.later(after.delay_ms, lambda: self.carried_out(after.then()))

    def _append(self, append: Append) -> RuntimeAppend:
        then = append.then
        return RuntimeAppend(
            append.partition,
            append.records,
            lambda error: self.carried_out(then(error)),
            reserved_bytes=append.reserved_bytes,
        )

    def _write_markers(self, effect: WriteMarkers) -> None:
        then = effect.then
        self.markers.write(
            effect.log_partition, effect.marker, effect.partitions, lambda: self.carry_out(then())
        )

    # What the runtime asks

    @property
    def topic(self) -> str:
        return TRANSACTION_STATE

    def machines(self, partitions: int) -> Sequence[StateMachine]:
        for machine in self.by_partition:
            machine.unloaded()
        self.by_partition = [TransactionMachine(self, number) for number in range(partitions)]
        return self.by_partition

    def image_changed(self) -> Effects:
        """Partitions may be led elsewhere, or be gone: markers that wait for them are looked at again."""
        self.markers.places_changed()
        return []

    def next_deadline_ms(self) -> int | None:
        deadline_ns = self.transactions.next_deadline_ns()
        return None if deadline_ns is None else -(-deadline_ns // NS_PER_MS)

    def expire(self) -> Effects:
        return self.carried_out(self.transactions.abort_timed_out())

    # Time

    def expire_later(self) -> None:
        """Look for ids to forget after the interval, and again as long as there are any."""
        if not self._expires_later:
            self._expires_later = True
            assert self.shards is not None
            self.shards.later(self._expiry_interval_ms, self._expire_ids)

    def _expire_ids(self) -> Effects:
        assert self.shards is not None
        self.shards.run_in_steps(self._expiry(), at_once=EXPIRY_IDS, done=self._expiry_ended)
        return []

    def _expiry(self) -> Steps:
        transactions = self.transactions
        for partition in range(len(self.by_partition)):
            for _ in range(EXPIRY_ROUNDS_MAX):
                effects = transactions.expire_in(partition)
                yield len(transactions.ids(partition)) + 1, self.carried_out(effects)
                if not effects:
                    break

    def _expiry_ended(self) -> None:
        self._expires_later = False
        self.expire_later()
