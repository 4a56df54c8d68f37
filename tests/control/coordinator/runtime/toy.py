"""The smallest state machine that uses all of the runtime: keys and values, on a topic that has no other machine.

What a producer writes in a transaction counts when a marker says that it was committed, unless a record of the same key
that stands later in the log counts already.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.control.coordinator.runtime.effects import Effects, Record
from appliance.control.coordinator.runtime.state_machine import BlockReplay, StateMachine
from appliance.errors import CorruptFile
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker

TOPIC = "__transaction_state"
NO_PRODUCER = -1


class ToyMachine:
    """`replayed` and `markers` are everything that the last load has given, with offset, producer id and epoch."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values: dict[bytes, bytes] = {}
        self.open: dict[int, list[tuple[int, Record]]] = {}
        self.newest: dict[bytes, int] = {}
        self.count = 0
        self.replayed: list[tuple[int, int, int, Record]] = []
        self.markers: list[tuple[int, int, int, EndTransactionMarker]] = []
        self.is_loaded = False
        self.images = 0

    def block_replay(self) -> BlockReplay | None:
        self._forget()
        return None

    def replay(self, offset: int, producer_id: int, producer_epoch: int, record: Record) -> None:
        if record.key == b"torn":
            raise CorruptFile("a record that no version of the toy writes")
        self.replayed.append((offset, producer_id, producer_epoch, record))
        self.count += 1
        if producer_id == NO_PRODUCER:
            self._take(self.count, record)
        else:
            self.open.setdefault(producer_id, []).append((self.count, record))

    def replay_marker(
        self, offset: int, producer_id: int, producer_epoch: int, marker: EndTransactionMarker
    ) -> None:
        self.markers.append((offset, producer_id, producer_epoch, marker))
        for number, record in self.open.pop(producer_id, ()):
            if marker.committed:
                self._take(number, record)

    def loaded(self) -> Effects:
        self.is_loaded = True
        return []

    def unloaded(self) -> Effects:
        self._forget()
        return []

    def apply(self, records: Sequence[Record]) -> None:
        for record in records:
            self.count += 1
            self._take(self.count, record)

    def image_changed(self) -> Effects:
        self.images += 1
        return []

    def _take(self, number: int, record: Record) -> None:
        if self.newest.get(record.key, 0) > number:
            return
        self.newest[record.key] = number
        if record.value is None:
            self.values.pop(record.key, None)
        else:
            self.values[record.key] = record.value

    def _forget(self) -> None:
        self.values.clear()
        self.open.clear()
        self.newest.clear()
        self.count = 0
        self.replayed.clear()
        self.markers.clear()
        self.is_loaded = False


class ToyService:
    """The toy machines of one topic."""

    codec = Codec.NONE

    def __init__(self, topic: str = TOPIC) -> None:
        self.topic = topic
        self.by_partition: list[ToyMachine] = []

    def machines(self, partitions: int) -> Sequence[StateMachine]:
        self.by_partition = [ToyMachine(number) for number in range(partitions)]
        return self.by_partition

    def image_changed(self) -> Effects:
        return []

    def next_deadline_ms(self) -> int | None:
        return None

    def expire(self) -> Effects:
        return []
