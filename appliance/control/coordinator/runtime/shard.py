"""One partition of a coordinator's internal topic, with the state machine that is replayed from it.

    state      answer to requests for the partition     next
    ABSENT     COORDINATOR_NOT_AVAILABLE                LOADING when a worker serves the log
    LOADING    COORDINATOR_LOAD_IN_PROGRESS             ACTIVE when the log is replayed to its end; ABSENT, FAILED
    ACTIVE     served                                   ABSENT when the leader changes, or the state may differ from
                                                        the log
    FAILED     COORDINATOR_NOT_AVAILABLE                ABSENT when the leader changes: the log cannot be replayed

A request that a client sent to another slot than the one that leads the partition gets NOT_COORDINATOR before any of
this (`gate`).

A shard has one batch in flight. Writes that arrive meanwhile wait, and as many of them as fit form the next batch:

    waiting     w  w  w  t  w  m  w            w: records; t: records of a transaction; m: a marker that ends one
    batches    ├──────┤├──┤├─┤├─┤├─┤

The coordinator is the only writer, of markers too. They wait in the same queue: the log end tells what became of an
append only if nobody else writes. If an append fails and the log end has not moved, nothing was written; otherwise the
shard forgets its state and replays the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from itertools import chain
from typing import Final, Protocol

from appliance.channels.partition_table import LOG_START, PartitionTable
from appliance.control.coordinator.runtime.effects import Producer, Record
from appliance.control.coordinator.runtime.loading import LOOK_AGAIN_MS, Loading
from appliance.control.coordinator.runtime.state_machine import StateMachine
from appliance.log.producer_state import AppendOrigin
from appliance.partition_access.access import UNKNOWN_OUTCOME, PartitionAccess
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TRANSACTIONAL
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker
from appliance.protocol.records.keyed_batch import encode_keyed_batch

BATCH_BYTES: Final = 256 * 1024
"""Up to here requests share a batch; a larger one is a batch of its own."""
RECORD_OVERHEAD_BYTES: Final = 16
LOAD_AGAIN_MS: Final = 100
LOAD_AGAIN_MAX_MS: Final = 5_000
"""The pause after a load that failed doubles up to here: a try may read much, and whoever asks would begin one."""
SAY_LATER_MS: Final = 1_000

_NOT_AVAILABLE: Final = int(ErrorCode.COORDINATOR_NOT_AVAILABLE)
_NOT_COORDINATOR: Final = int(ErrorCode.NOT_COORDINATOR)
_LOADING: Final = int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

Pair = tuple[bytes, bytes | None]
"""Key and value of a record; None is a tombstone."""


class State(StrEnum):
    """See the table above."""

    ABSENT = "absent"
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


ACTIVE: Final = State.ACTIVE
"""Asked for every commit: a member of an enumeration costs a look-up by name each time."""
ERROR_BY_STATE: Final = {
    State.ABSENT: int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    State.LOADING: int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    State.ACTIVE: 0,
    State.FAILED: int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
}
"""The answer to requests for a shard's partition; 0: they are served."""


class Listener(Protocol):
    """What a shard tells the runtime."""

    def loaded(self, shard: Shard) -> None:
        """The log was replayed; the shard is ACTIVE."""
        ...

    def unloaded(self, shard: Shard) -> None:
        """The shard is no longer ACTIVE: its state is to be forgotten, and waiting requests answered."""
        ...

    def dirty(self, shard: Shard) -> None:
        """The shard has something to `flush`."""
        ...

    def later(self, delay_ms: int, action: Callable[[], None]) -> None: ...

    def warn(self, text: str) -> bool:
        """Say the line; False: there were too many, and it was left out."""
        ...


class _Entry:
    """What one request writes: all of it in one batch, or nothing. With a `producer` it is a batch of its own.

    `marker` ends the producer's transaction, and there are no records; `transaction_version` is that of the marker.
    """

    __slots__ = ("done", "length_bytes", "marker", "producer", "records", "transaction_version")

    def __init__(
        self,
        records: Sequence[Pair],
        length_bytes: int,
        done: Callable[[int], None],
        *,
        producer: Producer | None = None,
        marker: EndTransactionMarker | None = None,
        transaction_version: int = 0,
    ) -> None:
        self.records = records
        self.length_bytes = length_bytes
        self.done = done
        self.producer = producer
        self.marker = marker
        self.transaction_version = transaction_version


class Shard:
    """One partition of an internal topic. Single-threaded.

    Args:
        topic: its name.
        number: the partition.

    `entry_bytes_max`: what one request may write, the largest batch that the topic takes. The worker would reject a
    larger one, and one larger than our pool would wait for room for ever.
    """

    def __init__(
        self,
        topic: str,
        number: int,
        machine: StateMachine,
        access: PartitionAccess,
        table: PartitionTable,
        *,
        listener: Listener,
        now_ms: Callable[[], int],
        codec: Codec,
        decompressed_bytes_max: int,
    ) -> None:
        self.topic = topic
        self.number = number
        self.machine = machine
        self.state = State.ABSENT
        self.place: LogPlace | None = None
        self.entry_bytes_max = 0
        self._access = access
        self._table = table
        self._listener = listener
        self._now_ms = now_ms
        self._codec = codec
        self._decompressed_bytes_max = decompressed_bytes_max
        self._waiting: deque[_Entry] = deque()
        self._in_flight: list[_Entry] = []
        self._was_in_flight = False
        self._end_offset = 0
        self._life = 0
        self._looks_later = False
        self._pause_ms = LOAD_AGAIN_MS
        self._pauses = False
        self._told_why = ""

    def gate(self, slot: int) -> int:
        """Return 0 if a request that a client sent to `slot` is served for this partition, else its error."""
        place = self.place
        if place is None:
            return _NOT_AVAILABLE
        if place.leader != slot:
            return _NOT_COORDINATOR
        if self.state is ACTIVE:
            return 0
        if self.state is State.ABSENT:
            self.look()
            self.look_later()
        return ERROR_BY_STATE[self.state]

    # Where it lies

    def follow(self, place: LogPlace | None) -> None:
        """The newest image says where the partition is led."""
        if place != self.place:
            self.unload()
            self.place = place
        self.look()

    def look(self) -> None:
        """Begin to load where that is due and the worker serves the partition."""
        place = self.place
        if self._pauses or self.state is not State.ABSENT or place is None:
            return
        if self._access.serves(place):
            self.state = State.LOADING
            self._life += 1
            loading = Loading(
                self,
                self.machine,
                self._access,
                place,
                life=self._life,
                offset=self._table.cells[self._table.at(place.row) + LOG_START],
                target=self._access.log_end(place),
                until_nothing=self._was_in_flight,
                decompressed_bytes_max=self._decompressed_bytes_max,
            )
            loading.go_on()

    def look_later(self) -> None:
        """Call `look` in a moment: a client asks for the partition, and no message says when its worker serves it."""
        if self.state is State.ABSENT and self.place is not None and not self._looks_later:
            self._looks_later = True
            self._listener.later(LOOK_AGAIN_MS, self._look_again)

    def _look_again(self) -> None:
        self._looks_later = False
        self.look()

    def _pause_over(self) -> None:
        self._pauses = False
        self.look()

    def unload(self) -> None:
        """Forget everything; the outcome of appends in flight is not known."""
        was = self.state
        self.state = State.ABSENT
        self._pauses = False
        self._life += 1
        if self._in_flight:
            self._was_in_flight = True
        entries, self._in_flight = [*self._in_flight, *self._waiting], []
        self._waiting.clear()
        for entry in entries:
            entry.done(UNKNOWN_OUTCOME)
        if was is not State.ABSENT:
            self._listener.unloaded(self)

    # Writing

    def write(
        self,
        records: Sequence[Pair],
        done: Callable[[int], None],
        *,
        producer: Producer | None = None,
        reserved_bytes: int = 0,
    ) -> None:
        """Append the records as one; `done` gets 0 when they are committed, else an error code. `flush` sends.

        With a `producer` they belong to its transaction, and the machine has them (`replay`) when `done` is called.
        `reserved_bytes`: see `effects.Append`.
        """
        if self.state is not ACTIVE:
            done(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        length_bytes = RECORD_OVERHEAD_BYTES * len(records)
        for key, value in records:
            length_bytes += len(key) + (0 if value is None else len(value))
        if length_bytes + reserved_bytes > self.entry_bytes_max:
            done(int(ErrorCode.RECORD_LIST_TOO_LARGE))
            return
        self._waiting.append(_Entry(records, length_bytes, done, producer=producer))
        if not self._in_flight:
            self._listener.dirty(self)

    def write_marker(
        self,
        producer: Producer,
        marker: EndTransactionMarker,
        done: Callable[[int], None],
        *,
        transaction_version: int,
    ) -> None:
        """End the producer's transaction in this partition, after all that was written before.

        `done` gets 0 when the marker is committed and the machine has it (`replay_marker`), else an error code.
        """
        if self.state is not ACTIVE:
            done(_LOADING if self.state is State.LOADING else _NOT_COORDINATOR)
            return
        self._waiting.append(
            _Entry((), 0, done, producer=producer, marker=marker, transaction_version=transaction_version)
        )
        if not self._in_flight:
            self._listener.dirty(self)

    def flush(self) -> bool:
        """Send what waits, unless a batch is in flight. False: there was no room for it."""
        waiting = self._waiting
        if not waiting or self._in_flight or self.place is None:
            return True
        first = waiting.popleft()
        entries = [first]
        if first.producer is None:
            length_bytes = first.length_bytes
            while (
                waiting
                and waiting[0].producer is None
                and length_bytes + waiting[0].length_bytes <= BATCH_BYTES
            ):
                length_bytes += waiting[0].length_bytes
                entries.append(waiting.popleft())
        self._in_flight = entries
        if self._send(self.place, entries, first.producer):
            return True
        self._in_flight = []
        waiting.extendleft(reversed(entries))
        return False

    def _send(self, place: LogPlace, entries: Sequence[_Entry], producer: Producer | None) -> bool:
        """Send these entries as one batch. False: there was no room for it."""
        life = self._life
        marker = entries[0].marker
        if producer is not None and marker is not None:
            return self._access.write_marker(
                place,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                coordinator_epoch=marker.coordinator_epoch,
                commit=marker.committed,
                transaction_version=entries[0].transaction_version,
                done=lambda error: self._appended(life, 1, error),
            )
        records = list(chain.from_iterable(entry.records for entry in entries))
        batch = encode_keyed_batch(
            records,
            timestamp_ms=self._now_ms(),
            codec=self._codec,
            attributes=TRANSACTIONAL if producer is not None else 0,
            producer_id=producer.producer_id if producer is not None else NO_PRODUCER_ID,
            producer_epoch=producer.epoch if producer is not None else NO_PRODUCER_EPOCH,
        )
        return self._access.append(
            place,
            batch,
            lambda error: self._appended(life, len(records), error),
            origin=AppendOrigin.COORDINATOR,
        )

    def _appended(self, life: int, records: int, error: int) -> None:
        if life != self._life:
            return  # `unload` has answered those who waited
        entries, self._in_flight = self._in_flight, []
        place = self.place
        if not error:
            if entries[0].producer is not None:
                self._tell_machine(entries[0], entries[0].producer)
            self._end_offset += records
        assert place is not None
        lost = error and not (self._access.serves(place) and self._access.log_end(place) == self._end_offset)
        for entry in entries:
            entry.done(error)
        if lost and life == self._life:
            self._listener.warn(
                f"{self.topic}-{self.number}: an append failed with {ErrorCode(error).name}; the log is replayed again"
            )
            self.unload()
            self.look_later()
        elif self._waiting and not self._in_flight:
            self._listener.dirty(self)

    def _tell_machine(self, entry: _Entry, producer: Producer) -> None:
        """A batch of a transaction, or its end, is committed at the log end as we know it."""
        machine, offset = self.machine, self._end_offset
        if entry.marker is not None:
            machine.replay_marker(offset, producer.producer_id, producer.epoch, entry.marker)
            return
        for at, (key, value) in enumerate(entry.records):
            machine.replay(offset + at, producer.producer_id, producer.epoch, Record(key, value))

    # Loading

    def is_loading(self, life: int) -> bool:
        """Whether the load that began in that life goes on."""
        return self._life == life and self.state is State.LOADING

    def load_ended(self, end_offset: int) -> None:
        """Everything was replayed."""
        self._end_offset = end_offset
        self._was_in_flight = False
        self._pause_ms = LOAD_AGAIN_MS
        self.state = State.ACTIVE
        if self._told_why:
            self._told_why = ""
            self._say_served_again()
        self._listener.loaded(self)

    def _say_served_again(self) -> None:
        """Log that requests are served again. If the rate limit leaves the line out, try again after SAY_LATER_MS."""
        text = f"{self.topic}-{self.number} is replayed, its requests are served again"
        if self.state is State.ACTIVE and not self._told_why and not self._listener.warn(text):
            self._listener.later(SAY_LATER_MS, self._say_served_again)

    def load_failed(self, why: object) -> None:
        """It cannot be replayed, and trying again would not help."""
        self.unload()
        self.state = State.FAILED
        self._listener.warn(f"{self.topic}-{self.number} cannot be replayed, its requests are refused: {why}")

    def load_again(self, why: str) -> None:
        """Load it again after a pause. Each reason is logged once only, because damage may stay for long."""
        if why != self._told_why and self._listener.warn(
            f"{self.topic}-{self.number} cannot be read, its requests are refused until it can: {why}"
        ):
            self._told_why = why
        self.unload()
        self._pauses = True
        self._listener.later(self._pause_ms, self._pause_over)
        self._pause_ms = min(2 * self._pause_ms, LOAD_AGAIN_MAX_MS)

    def later(self, delay_ms: int, action: Callable[[], None]) -> None:
        """Call `action` after `delay_ms`."""
        self._listener.later(delay_ms, action)

    def statistics(self) -> dict[str, int]:
        return {"waiting": len(self._waiting), "in_flight": len(self._in_flight)}
