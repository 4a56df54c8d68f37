"""The memory of audit and trace: each round's results and positions in one topic, a snapshot now and then in another.

    load     the last whole snapshot, and after it the positions of all later rounds
    write    one batch: results, and one record of kind `positions`. If its outcome is not known: load again.
             More than WRITTEN_BYTES are several batches (`message_audit.portions`)
    snapshot every SNAPSHOT_MS; after that, the snapshots before it are removed

So a death takes a round's positions together with its results, or neither. The topic of results may be deleted, or lose
its end in a power cut: then positions are those of the snapshot, or what is left after it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final

from appliance.clock import NS_PER_MS, Clock
from appliance.message_audit import positions
from appliance.message_audit.portions import Result, portions
from appliance.message_audit.positions import Piece, Positions
from appliance.partition_access.access import PartitionAccess
from appliance.partition_access.places import LogPlace
from appliance.protocol.records.keyed_batch import encode_keyed_batch
from appliance.services.errand import Appending, Pause, Step, Trimming
from appliance.services.followed_topics import FollowedTopics
from appliance.services.log_reads import read_stretch

SNAPSHOT_MS: Final = 60_000
PAUSE_MS: Final = 200
WRITTEN_BYTES: Final = 3 << 20
"""Of one batch; its topic takes BATCH_BYTES_MAX (`internal_topics`)."""


class RoundState:
    """Loads, writes and keeps `positions`."""

    __slots__ = ("_clock", "_logs", "_snapshot", "_snapshot_ns", "_topics", "positions")

    def __init__(self, topics: FollowedTopics[Any], logs: PartitionAccess, clock: Clock) -> None:
        self._topics = topics
        self._logs = logs
        self._clock = clock
        self._snapshot = 0
        self._snapshot_ns = 0
        self.positions = Positions()

    def _place(self, name: str) -> LogPlace | None:
        place = self._topics.place(name)
        return place if place is not None and self._logs.serves(place) else None

    def load(self) -> Generator[Step, Any, None]:
        """Read how far the audit has counted; wait until that can be read."""
        pieces: list[Piece] = []
        values = yield from self._values(self._topics.state, 0)
        for value in values:
            piece = positions.decode_piece(value)
            if piece is not None:
                pieces.append(piece)
        last = positions.last_snapshot(pieces)
        self.positions = Positions()
        replay_from = 0
        # Above every number that was used: pieces of a snapshot that is not whole never mix with those of the next one.
        self._snapshot = max((piece.snapshot for piece in pieces), default=0)
        for piece in last:
            self.positions.update(piece.positions)
            if piece.audit_id == self._topics.results_id():
                replay_from = piece.replay_from
        values = yield from self._values(self._topics.results, replay_from)
        for value in values:
            changed = positions.decode(value)
            if changed is not None:
                self.positions.update(changed)
        self._snapshot_ns = self._clock.monotonic_ns()

    def _values(self, name: str, offset: int) -> Generator[Step, Any, list[bytes]]:
        """Return the values of kind `positions` from `offset` up to the end, once all of it is replicated."""
        found: list[bytes] = []
        while True:
            place = self._place(name)
            if place is None:
                yield Pause(PAUSE_MS)
                continue
            end = self._logs.log_end(place)
            if offset >= end == self._logs.high_watermark(place):
                return found
            stretch = yield from read_stretch(place, offset, headers_only=False)
            if not stretch.batches:
                if stretch.log_start > offset:
                    offset = stretch.log_start
                else:
                    yield Pause(PAUSE_MS)
            for batch in stretch.batches:
                found += [
                    record.value
                    for record in batch.records
                    if record.value is not None and record.key == _POSITIONS_KEY
                ]
                offset = batch.end

    def write(self, results: Sequence[Result], changed: Positions) -> Generator[Step, Any, bool]:
        """Append a round; False: its outcome is not known, or nobody takes it. Then `load` must follow."""
        place = self._place(self._topics.results)
        if place is None:
            return False
        now_ms = self._clock.now_ms()
        for some, part in portions(results, changed, bytes_max=WRITTEN_BYTES):
            records: list[tuple[bytes, bytes | None]] = [(each.key.encode(), each.value) for each in some]
            records.append((_POSITIONS_KEY, positions.encode(part)))
            error: int = yield Appending(place, encode_keyed_batch(records, timestamp_ms=now_ms))
            if error:
                return False
        return True

    def snapshot(self) -> Generator[Step, Any, None]:
        """Write a snapshot, if it is time. Call it only while no round is being written."""
        now_ns = self._clock.monotonic_ns()
        if now_ns - self._snapshot_ns < SNAPSHOT_MS * NS_PER_MS:
            return
        self._snapshot_ns = now_ns
        place, audit = self._place(self._topics.state), self._place(self._topics.results)
        if place is None or audit is None:
            return
        for key in [key for key in self.positions.partitions if not self._topics.exists(key)]:
            del self.positions.partitions[key]
        first = self._logs.log_end(place)
        self._snapshot += 1
        values = positions.encode_snapshot(
            self.positions,
            audit_id=self._topics.results_id(),
            replay_from=self._logs.log_end(audit),
            snapshot=self._snapshot,
        )
        for value in list(values):
            batch = encode_keyed_batch([(_POSITIONS_KEY, value)], timestamp_ms=self._clock.now_ms())
            error: int = yield Appending(place, batch)
            if error:
                return
        yield Trimming(place, first)


_POSITIONS_KEY: Final = b"positions"
