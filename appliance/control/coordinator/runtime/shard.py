"""One partition of `__consumer_offsets`: what the coordinator makes of it.

    state      how requests for its groups are answered     goes to
    ABSENT     COORDINATOR_NOT_AVAILABLE                    LOADING, when a worker serves it
    LOADING    COORDINATOR_LOAD_IN_PROGRESS                 ACTIVE, when all of its log was replayed; ABSENT, FAILED
    ACTIVE     they are served                              ABSENT, when its leader changes or its log is unsure
    FAILED     COORDINATOR_NOT_AVAILABLE                    ABSENT, when its leader changes: its log cannot be replayed

Whose group leads to another slot than the one that the client spoke to is told NOT_COORDINATOR before any of this.

Appends to one log go one batch at a time: what is written while a batch is under way waits, and all of it that fits
becomes the next batch. So the batches a second are those of the log, and commits a second grow with who commits. The
coordinator is the only writer, so it knows where the log ends: after an append that failed, a log end that has not
moved proves that nothing was appended, and anything else that the state must be read anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import chain
from typing import Final, Protocol

from appliance.channels.partition_table import LOG_START, PartitionTable
from appliance.control.coordinator.offsets.offset_book import OffsetBook, Replay
from appliance.control.coordinator.topics import LogPlace
from appliance.errors import CorruptFile, MalformedFrame
from appliance.partition_access.access import UNKNOWN_OUTCOME, InternalLogs, Read
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.keyed_batch import encode_keyed_batch

BATCH_BYTES: Final = 256 * 1024
"""Up to here requests share a batch; a larger one is a batch of its own."""
RECORD_OVERHEAD_BYTES: Final = 16
LOOK_AGAIN_MS: Final = 50
LOAD_AGAIN_MS: Final = 100
LOAD_AGAIN_MAX_MS: Final = 5_000
"""The pause after a load that failed doubles up to here: a try may read much, and whoever asks would begin one."""
PACKED_AT_ONCE: Final = 1024
"""Offsets that are packed before others have their turn: a millisecond at most, on a slow machine too."""
PACK_AFTER_MS: Final = 3_000
"""From a load to its packing: the coordinator's other partitions are loaded first, for which clients wait."""
PACK_PAUSE_MS: Final = 50

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
TOLD: Final = {
    State.ABSENT: int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
    State.LOADING: int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
    State.ACTIVE: 0,
    State.FAILED: int(ErrorCode.COORDINATOR_NOT_AVAILABLE),
}
"""How requests for the groups of a shard are answered: 0, they are served."""


class Listener(Protocol):
    """What a shard tells the coordinator; `number` is its partition."""

    def replay(self, number: int, key: bytes, value: bytes | None) -> None:
        """A record that is no offset, while loading."""
        ...

    def loaded(self, shard: Shard) -> None:
        """Everything was replayed; the shard is ACTIVE."""
        ...

    def unloaded(self, shard: Shard) -> None:
        """It is ACTIVE no more: its groups are to be forgotten, and those who wait told."""
        ...

    def dirty(self, shard: Shard) -> None:
        """It has something to `flush`."""
        ...

    def later(self, delay_ms: int, action: Callable[[], None]) -> None: ...

    def warn(self, text: str) -> None: ...


class _Entry:
    """What one request writes: all of it in one batch, or nothing."""

    __slots__ = ("done", "length_bytes", "records")

    def __init__(self, records: Sequence[Pair], length_bytes: int, done: Callable[[int], None]) -> None:
        self.records = records
        self.length_bytes = length_bytes
        self.done = done


class Shard:
    """One partition of the internal topic. Single-threaded.

    Args:
        number: the partition.

    `entry_bytes_max`: what one request may write, the largest batch that the topic takes. What is refused here would be
    refused there, and what is larger than our pool would wait for room for ever.
    """

    def __init__(
        self,
        number: int,
        logs: InternalLogs,
        table: PartitionTable,
        *,
        listener: Listener,
        now_ms: Callable[[], int],
        codec: Codec,
        decompressed_bytes_max: int,
    ) -> None:
        self.number = number
        self.state = State.ABSENT
        self.place: LogPlace | None = None
        self.entry_bytes_max = 0
        self.book = OffsetBook()
        self._logs = logs
        self._table = table
        self._listener = listener
        self._now_ms = now_ms
        self._codec = codec
        self._decompressed_bytes_max = decompressed_bytes_max
        self._waiting: deque[_Entry] = deque()
        self._in_flight: list[_Entry] = []
        self._end_offset = 0
        self._life = 0
        self._looks_later = False
        self._pause_ms = LOAD_AGAIN_MS
        self._pauses = False

    # Where it lies

    def follow(self, place: LogPlace | None) -> None:
        """The newest image says where the partition is led."""
        if place != self.place:
            self.unload()
            self.place = place
        self.look()

    def look(self) -> None:
        """Begins to load, where that is due and the worker serves the partition."""
        place = self.place
        if self._pauses or self.state is not State.ABSENT or place is None:
            return
        if self._logs.serves(place):
            self.state = State.LOADING
            self._life += 1
            self.book = OffsetBook()
            offset = self._table.cells[self._table.at(place.row) + LOG_START]
            loading = _Loading(self, place, self._life, offset=offset, target=self._logs.log_end(place))
            loading.go_on()

    def look_later(self) -> None:
        """As `look`, in a moment: somebody asks for it, and nobody says when its worker serves it."""
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
        """Forgets everything; who waits for an append hears that its outcome is not known."""
        was = self.state
        self.state = State.ABSENT
        self._pauses = False
        self._life += 1
        entries, self._in_flight = [*self._in_flight, *self._waiting], []
        self._waiting.clear()
        for entry in entries:
            entry.done(UNKNOWN_OUTCOME)
        self.book = OffsetBook()
        if was is not State.ABSENT:
            self._listener.unloaded(self)

    # Writing

    def write(self, records: Sequence[Pair], done: Callable[[int], None]) -> None:
        """Appends the records as one; `done` hears 0 when they are committed, else an error code. `flush` sends."""
        if self.state is not ACTIVE:
            done(int(ErrorCode.NOT_LEADER_OR_FOLLOWER))
            return
        length_bytes = RECORD_OVERHEAD_BYTES * len(records)
        for key, value in records:
            length_bytes += len(key) + (0 if value is None else len(value))
        if length_bytes > self.entry_bytes_max:
            done(int(ErrorCode.RECORD_LIST_TOO_LARGE))
            return
        self._waiting.append(_Entry(records, length_bytes, done))
        if not self._in_flight:
            self._listener.dirty(self)

    def flush(self) -> bool:
        """Sends what waits, unless a batch is under way. False: there was no room for it."""
        waiting = self._waiting
        if not waiting or self._in_flight or self.place is None:
            return True
        entries = [waiting.popleft()]
        length_bytes = entries[0].length_bytes
        while waiting and length_bytes + waiting[0].length_bytes <= BATCH_BYTES:
            length_bytes += waiting[0].length_bytes
            entries.append(waiting.popleft())
        records = list(chain.from_iterable(entry.records for entry in entries))
        self._in_flight = entries
        life = self._life
        batch = encode_keyed_batch(records, timestamp_ms=self._now_ms(), codec=self._codec)
        if self._logs.append(self.place, batch, lambda error: self._appended(life, len(records), error)):
            return True
        self._in_flight = []
        waiting.extendleft(reversed(entries))
        return False

    def _appended(self, life: int, records: int, error: int) -> None:
        if life != self._life:
            return  # who waited was told when it was unloaded
        entries, self._in_flight = self._in_flight, []
        place = self.place
        if not error:
            self._end_offset += records
        assert place is not None
        lost = error and not (self._logs.serves(place) and self._logs.log_end(place) == self._end_offset)
        for entry in entries:
            entry.done(error)
        if lost and life == self._life:
            self._listener.warn(
                f"an append to {self.number} of the offsets failed with {ErrorCode(error).name}; it is read anew"
            )
            self.unload()
            self.look_later()
        elif self._waiting and not self._in_flight:
            self._listener.dirty(self)

    # Loading

    def is_loading(self, life: int) -> bool:
        """Whether the load that began in that life goes on."""
        return self._life == life and self.state is State.LOADING

    def read(self, place: LogPlace, offset: int, done: Callable[[Read], None]) -> None:
        """Reads on, now or when there is room on the ring."""
        if not self._logs.read(place, offset, done):
            self._listener.later(LOOK_AGAIN_MS, lambda: self.read(place, offset, done))

    def take(self, replay: Replay, read: Read, from_offset: int) -> int:
        """Replays what was read; the offset to go on from.

        Raises:
            CorruptFile, MalformedFrame: it does not parse.
        """
        if not read.chunks:
            return from_offset
        # It takes numpy, which is loaded with the first record (decision 0053).
        from appliance.control.coordinator.offsets.offset_replay import replay_chunk

        for chunk in read.chunks:
            replay_chunk(
                chunk,
                replay,
                self._other,
                path=read.path,
                from_offset=from_offset,
                decompressed_bytes_max=self._decompressed_bytes_max,
            )
            from_offset = max(from_offset, chunk.batches[-1].last_offset + 1)
        return from_offset

    def _other(self, key: bytes, value: bytes | None) -> None:
        self._listener.replay(self.number, key, value)

    def load_ended(self, end_offset: int) -> None:
        """Everything was replayed."""
        self._end_offset = end_offset
        self._pause_ms = LOAD_AGAIN_MS
        self.state = State.ACTIVE
        self._listener.loaded(self)
        life, packing = self._life, self.book.packing()
        self._listener.later(PACK_AFTER_MS, lambda: self._pack_on(life, packing))

    def _pack_on(self, life: int, packing: Iterator[int]) -> None:
        """Packs what the replay has put into the book one by one, while it serves."""
        if life != self._life:
            return
        packed = 0
        for offsets in packing:
            packed += offsets
            if packed >= PACKED_AT_ONCE:
                self._listener.later(PACK_PAUSE_MS, lambda: self._pack_on(life, packing))
                return

    def load_failed(self, why: object) -> None:
        """It cannot be replayed, and trying again would not help."""
        self.unload()
        self.state = State.FAILED
        self._listener.warn(f"partition {self.number} of the offsets cannot be replayed: {why}")

    def load_again(self, why: str) -> None:
        """It was not to be read now: after a pause."""
        self._listener.warn(f"partition {self.number} of the offsets was not replayed: {why}")
        self.unload()
        self._pauses = True
        self._listener.later(self._pause_ms, self._pause_over)
        self._pause_ms = min(2 * self._pause_ms, LOAD_AGAIN_MAX_MS)

    def later(self, action: Callable[[], None]) -> None:
        self._listener.later(LOOK_AGAIN_MS, action)

    def statistics(self) -> dict[str, int]:
        return {**self.book.statistics(), "waiting": len(self._waiting) + len(self._in_flight)}


class _Loading:
    """A load under way: reads from `offset` until `target`, the log end when it began, has been replayed.

    Up to the log end and not only to the watermark: what was acknowledged lies below it, and after a change of leaders
    the watermark may still be behind. It waits until the replicas have caught up.
    """

    __slots__ = ("_life", "_offset", "_place", "_replay", "_shard", "_target")

    def __init__(self, shard: Shard, place: LogPlace, life: int, *, offset: int, target: int) -> None:
        self._shard = shard
        self._place = place
        self._life = life
        self._offset = offset
        self._target = target
        self._replay = Replay(shard.book)

    def go_on(self) -> None:
        if not self._shard.is_loading(self._life):
            return
        if self._offset < self._target:
            self._shard.read(self._place, self._offset, self._read)
            return
        self._replay.done()
        self._shard.load_ended(max(self._offset, self._target))

    def _read(self, read: Read) -> None:
        if not self._shard.is_loading(self._life):
            return
        if read.replaced:
            self.go_on()
        elif read.error == ErrorCode.OFFSET_OUT_OF_RANGE and read.log_start > self._offset:
            self._offset = read.log_start
            self.go_on()
        elif read.error:
            self._shard.load_again(read.why or ErrorCode(read.error).name)
        elif read.chunks:
            try:
                self._offset = self._shard.take(self._replay, read, self._offset)
            except (CorruptFile, MalformedFrame) as fault:
                self._shard.load_failed(fault)
                return
            self.go_on()
        elif read.high_watermark >= self._target:
            self._offset = self._target  # compaction has left nothing behind the last batch
            self.go_on()
        else:
            self._shard.later(self.go_on)
