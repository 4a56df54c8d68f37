"""One run of a log directory that does everything a log does to files, and says after each step what it promises.

Each promise stands in the history between the operations, so that whoever cuts the history short knows what must
be found: of `line`, the records in order, at least the first `floor`, and never anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.errors import StorageFault
from appliance.log.config import LogSettings
from appliance.log.log_directory import LogDirectory
from appliance.log.partition_log import PartitionLog
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.records.compression import Codec
from tests.log.batches import NOW_MS, batch_of, marker
from tests.log.file_history import FileHistory

PARTITION: Final = TopicPartition("scripted", 0)
TOPIC_ID: Final = UUID(int=4711)
SETTINGS: Final = LogSettings(segment_bytes=6000, index_interval_bytes=600, segment_index_bytes=4096)
IDEMPOTENT, TRANSACTIONAL = 7, 8


@dataclass(frozen=True, slots=True)
class Promise:
    """Records by their values, None for a marker; aborted transactions that were acknowledged as such."""

    line: tuple[bytes | None, ...]
    floor: int
    aborted: int = 0


def opened(root: Path) -> tuple[LogDirectory, PartitionLog]:
    """The directory and its one log, as the next life of the owner opens them."""
    directory = LogDirectory.open(root, node_id=0, cluster_id="scripted", clock=ManualClock(NOW_MS))
    try:
        return directory, directory.open_partition(PARTITION, TOPIC_ID, SETTINGS)
    except StorageFault:
        directory.abandon()
        raise


class ScriptedRun:
    """Plays the script below `root`. A step that the disk refuses is not acknowledged, and the run goes on."""

    def __init__(self, root: Path, history: FileHistory) -> None:
        self._root = root
        self._history = history
        self._line: tuple[bytes | None, ...] = ()
        self._ends = [0]
        self._aborted = 0
        self._sequences = {IDEMPOTENT: 0, TRANSACTIONAL: 0}
        self._promise()

    def play(self) -> Promise:
        """All of the script; what is promised at its end."""
        with self._lived() as (directory, log):
            for number in range(6):
                self._append(log, 1 + number % 3)
            self._append(log, 1, size=3000)
            self._append(log, 2, producer_id=IDEMPOTENT)
            self._attempt(log.roll)
            for number in range(12):
                self._append(log, 1, size=300 * (number % 5), producer_id=IDEMPOTENT)
            self._keep(directory)
            self._append(log, 2, producer_id=TRANSACTIONAL)
            self._append(log, 1)
            self._end_transaction(log, committed=False)
            self._append(log, 3, producer_id=TRANSACTIONAL, codec=Codec.ZSTD)
            self._end_transaction(log, committed=True)
            self._truncate(log, 2)
            for _ in range(8):
                self._append(log, 1, size=900, epoch=2)
            self._attempt(log.release)
            self._append(log, 2, epoch=3)
            self._keep(directory)
            self._attempt(directory.close)
        with self._lived() as (directory, log):
            for _ in range(5):
                self._append(log, 2, epoch=4, producer_id=IDEMPOTENT)
            self._append(log, 1, size=2500, epoch=4)
        return self._said

    @contextmanager
    def _lived(self) -> Iterator[tuple[LogDirectory, PartitionLog]]:
        try:
            directory, log = opened(self._root)
        except StorageFault:  # the supervisor starts the worker again
            directory, log = opened(self._root)
        try:
            yield directory, log
        finally:
            directory.abandon()

    def _promise(self, line: tuple[bytes | None, ...] | None = None, floor: int | None = None) -> None:
        line = self._line if line is None else line
        self._said = Promise(line, len(self._line) if floor is None else floor, self._aborted)
        self._history.note(self._said)

    @staticmethod
    def _attempt(step: Callable[[], object]) -> bool:
        try:
            step()
        except StorageFault:
            return False
        return True

    def _append(
        self,
        log: PartitionLog,
        count: int,
        *,
        size: int = 20,
        epoch: int = 1,
        producer_id: int = -1,
        codec: Codec = Codec.NONE,
    ) -> None:
        start = len(self._line)
        values = tuple(b"%d:" % (start + number) + bytes([65 + start % 26]) * size for number in range(count))
        transactional = producer_id == TRANSACTIONAL
        batch = batch_of(
            values,
            codec=codec,
            attributes=0x10 if transactional else 0,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=self._sequences.get(producer_id, -1),
        )
        self._promise(self._line + values)
        if self._attempt(lambda: log.append(batch, leader_epoch=epoch, transaction_verified=transactional)):
            self._line += values
            self._ends.append(len(self._line))
            if producer_id >= 0:
                self._sequences[producer_id] += count
        assert log.log_end_offset == len(self._line), "a refused append leaves the log as it was"
        self._promise()

    def _end_transaction(self, log: PartitionLog, *, committed: bool) -> None:
        batch = marker(committed=committed, producer_id=TRANSACTIONAL)
        self._promise((*self._line, None))
        if self._attempt(lambda: log.append(batch, leader_epoch=1, origin=AppendOrigin.COORDINATOR)):
            self._line += (None,)
            self._ends.append(len(self._line))
            self._aborted += not committed
        assert log.log_end_offset == len(self._line), "a refused append leaves the log as it was"
        self._promise()

    def _truncate(self, log: PartitionLog, count: int) -> None:
        """Cuts the last `count` batches."""
        before, after = self._line, self._line[: self._ends[-count - 1]]
        self._promise(before, len(after))
        self._attempt(lambda: log.truncate_to(len(after)))
        # A cut that failed half-way has cut some; never more than was asked for.
        assert len(after) <= log.log_end_offset <= len(before)
        self._line = before[: log.log_end_offset]
        self._ends = [end for end in self._ends if end <= len(self._line)]
        self._promise()

    def _keep(self, directory: LogDirectory) -> None:
        directory.flush_task({PARTITION: len(self._line)})()
