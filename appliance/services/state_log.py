"""The state of a forwarder: its partition of `__delayed_state`, of which the last record counts.

    load     read to the log end ─→ progress
    changed  deliveries differ from what the last record names ─→ is_written is false
    write    append a record with all of them ─→ is_written, if nothing has changed meanwhile

One forwarder writes this log, so the last record is complete by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.cluster import DELAYED_STATE
from appliance.log.producer_state import AppendOrigin
from appliance.partition_access.access import PartitionAccess, Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from appliance.services.batches import records_of
from appliance.services.delay_topics import DelayTopics
from appliance.services.progress import Delivery, Frontier, Progress, UnreadableProgress, decode, encode

PAUSE_MS: Final = 200
UNREADABLE_MS: Final = 60_000
READ_BYTES: Final = 1 << 20


class StateLog:
    """Args:
    partition: of `__delayed_state`.
    complain: gets a line for the operator.
    pause: called with the milliseconds after which to try again what has failed.
    """

    __slots__ = (
        "_changes",
        "_complain",
        "_is_reading",
        "_logs",
        "_partition",
        "_pause",
        "_read_to",
        "_topics",
        "_value",
        "_value_ms",
        "is_loaded",
        "is_writing",
        "is_written",
        "progress",
    )

    def __init__(
        self,
        partition: int,
        topics: DelayTopics,
        logs: PartitionAccess,
        *,
        complain: Callable[[str], object],
        pause: Callable[[int], None],
    ) -> None:
        self._partition = partition
        self._topics = topics
        self._logs = logs
        self._complain = complain
        self._pause = pause
        self._read_to = 0
        self._value: bytes | None = None
        self._value_ms = 0
        self._is_reading = False
        self._changes = 0
        self.is_loaded = False
        self.is_writing = False
        self.is_written = True
        """Whether the last record names all deliveries."""
        self.progress = Progress()
        """What the last committed record says."""

    def place(self) -> LogPlace | None:
        """Return where the log is led; None if nobody serves it."""
        place = self._topics.state_place(self._partition)
        return place if place is not None and self._logs.serves(place) else None

    @property
    def loaded_ms(self) -> int:
        """Return when the record was written with which this process began; 0 if there was none."""
        return self._value_ms

    # Loading

    def load(self) -> None:
        """Read on. `is_loaded` says when the last record has been read."""
        if self._is_reading:
            return
        place = self.place()
        self._is_reading = place is not None
        if place is None or not self._logs.read(place, self._read_to, self._take, bytes_max=READ_BYTES):
            self._is_reading = False
            self._pause(PAUSE_MS)

    def _take(self, read: Read) -> None:
        self._is_reading = False
        place = self.place()
        if read.replaced:
            return
        if read.error == ErrorCode.OFFSET_OUT_OF_RANGE and read.log_start > self._read_to:
            self._read_to = read.log_start
        elif read.error or place is None:
            self._pause(PAUSE_MS)
        elif read.chunks:
            for batch in records_of(read):
                for each in batch.records:
                    self._value, self._value_ms = each.value, each.timestamp_ms
                self._read_to = max(self._read_to, batch.next_offset)
        elif read.high_watermark < self._logs.log_end(place):
            self._pause(PAUSE_MS)
        else:
            self._end()

    def _end(self) -> None:
        if self._value is not None:
            try:
                self.progress = decode(self._value)
            except UnreadableProgress as fault:
                self._complain(f"{DELAYED_STATE}-{self._partition}: {fault}; nothing is delivered from there")
                self._pause(UNREADABLE_MS)
                return
        self.is_loaded = True

    # Writing

    def changed(self) -> None:
        """Deliveries have changed: none begins before a record names them all."""
        self._changes += 1
        self.is_written = False

    def write(
        self,
        positions: dict[str, int],
        deliveries: tuple[Delivery, ...],
        written: Callable[[], None],
        *,
        exact: dict[str, Frontier],
        now_ms: int,
    ) -> None:
        """Append a record; `written` is called when it is committed.

        `now_ms` is what the clock showed when `exact` was right: the next life asks by how much it was set back since.

        Levels without a position here keep theirs: they were taken out of the options.
        """
        place = self.place()
        if place is None:
            self._pause(PAUSE_MS)
            return
        changes = self._changes
        progress = Progress(self.progress.positions | positions, deliveries, self.progress.exact | exact)
        batch = encode_batch(
            [Record(encode(progress), str(self._partition).encode(), timestamp_ms=now_ms)],
            leader_epoch=place.leader_epoch,
        )
        self.is_writing = True

        def done(error: int) -> None:
            self.is_writing = False
            if error:
                self._pause(PAUSE_MS)
                return
            self.progress = progress
            self.is_written = self._changes == changes
            written()

        if not self._logs.append(place, batch, done, origin=AppendOrigin.CLIENT):
            self.is_writing = False
            self._pause(PAUSE_MS)
