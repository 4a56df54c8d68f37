"""Partitions on their way to another log directory of the slot, while they are written to and read.

    copying     one slice at a time runs on a thread beside; the owner says what is next when one has ended
    expected    so little is left that it takes milliseconds: the target's checkpoints are written, on the thread
    swap        between two requests, and under `durability = "fsync"` between two flushes: the rest is copied, one
                rename makes the copy the log, the row's files version changes, and appends go on in the new place
    settled     on the thread: what was not forced is, then the old directory goes (`log.settlement`)

The worker moves what its slot leads, the replica what it follows, by the same steps; where a partition
goes from one to the other, its move goes along (`LogDirectories`). Each moves one at a time, in the order asked; the
others wait. Whoever reads a segment of the old directory holds it open; whoever asked before the swap and opens after
it sees by the files version that it must ask again.

| what happens | what follows |
|---|---|
| killed before the swap | the next life goes on with the copy; closed segments that are whole are not copied again |
| killed after it | the next opening finds both and resolves them |
| the target is full, or fails | the copy goes, the partition stays where it is, and the journal says why |
| the partition is deleted | its copy goes with it |
| another process of the slot gets it | that one goes on with the copy, as after a death |
| its own storage fails | the move rests until another life |
| it is asked to move where it is | the move under way is taken back |

Source: `ReplicaManager.alterReplicaLogDirs`, `ReplicaAlterLogDirsThread.java`; KIP-113.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Generic, Protocol, TypeVar

from appliance.cluster import TopicPartition
from appliance.errors import LogDirectoryOffline, StorageFault
from appliance.log.faults import is_lasting
from appliance.log.flusher import Flusher
from appliance.log.future_log import CopySlice, FutureLog, SourceChanged
from appliance.log.log_directories import LogDirectories
from appliance.log.partition_log import PartitionLog
from appliance.log.settlement import Settlement
from appliance.partition_host.listener import PartitionListener

CHANGES_MAX: Final = 100
"""Slices in a row that found their source changed, before a move is given up."""
NO_FUTURE: Final = (-1, 0, 0)
_log = logging.getLogger(__name__)


class Movable(Protocol):
    """A partition that is held open: led, or followed."""

    topic_partition: TopicPartition
    log: PartitionLog
    directory: int
    """Which log directory has it."""

    def files_change(self) -> None:
        """Its segments' names are about to mean other files."""

    def files_changed(self) -> None:
        """They have come to; `directory` is right again."""


Moved = TypeVar("Moved", bound=Movable)
Flushed_contra = TypeVar("Flushed_contra", bound=Movable, contravariant=True)


class FlushGaps(Protocol[Flushed_contra]):
    """Who flushes partitions under `durability = "fsync"`."""

    def between_flushes(self, partition: Flushed_contra, action: Callable[[], None]) -> None:
        """Runs `action` when no flush of the partition's log is under way; never, if it is held no more by then."""

    def relocated(self, partition: Flushed_contra) -> None:
        """The log's files are others now, and lack what was not forced."""


class _Move(Generic[Moved]):
    """One partition's. `to` is the directory."""

    __slots__ = ("changes", "expected", "future", "partition", "to")

    def __init__(self, partition: Moved, to: int, future: FutureLog) -> None:
        self.partition = partition
        self.to = to
        self.future = future
        self.expected = False
        self.changes = 0


class LogMoves(Generic[Moved]):
    """The moves of one process. Single-threaded; only slices and settlements run elsewhere.

    Args:
        held: The partitions that the process holds, by name, at any time.
        listener: Learns of swaps, of copies that advance, of directories to remove and of faults.
    """

    __slots__ = (
        "_at_work",
        "_commits",
        "_directories",
        "_held",
        "_line",
        "_listener",
        "_thread",
        "_waits_for_flush",
        "done",
    )

    def __init__(
        self,
        held: Mapping[TopicPartition, Moved],
        directories: LogDirectories,
        commits: FlushGaps[Moved],
        *,
        thread: Flusher,
        listener: PartitionListener[Moved],
    ) -> None:
        self._held = held
        self._directories = directories
        self._commits = commits
        self._thread = thread
        self._listener = listener
        self._line: dict[TopicPartition, _Move[Moved]] = {}
        self._at_work = 0
        self._waits_for_flush: _Move[Moved] | None = None
        self.done: deque[Callable[[], None]] = deque()
        """What is to be done with what the thread came to."""

    # Commands

    def alter(self, partition: Moved, to: int) -> None:
        """Begins a move; or takes the one under way back where it goes elsewhere.

        Raises:
            LogDirectoryOffline: that directory, or any, has failed: a copy might be in it.
            StorageFault: the copy's directory could not be made.
            RejectedRequest: the topic's name is too long for it.
        """
        self.opened()  # it may be on the move already, from before its log was opened
        name = partition.topic_partition
        directories = self._directories
        if to not in directories.serving:
            raise LogDirectoryOffline(f"log directory {to} is offline")
        move = self._line.get(name)
        if move is not None and move.to == to:
            return
        if name in directories.futures:
            self._drop(name)
            directories.cancel_move(name)
            self._listener.directories_deleted()
        if to == partition.directory:
            return
        if directories.failed:
            raise LogDirectoryOffline("no partition moves while a log directory is offline")
        self._begin(partition, to)

    def _begin(self, partition: Moved, to: int) -> None:
        try:
            path = self._directories.begin_move(partition.topic_partition, to)
        except StorageFault:
            self._directories.cancel_move(partition.topic_partition)
            self._listener.directories_deleted()
            raise
        self._line[partition.topic_partition] = _Move(partition, to, FutureLog(partition.log, path))
        self._listener.move_advanced(partition)
        _log.info("partition %s: moving to %s", partition.topic_partition, path.parent)
        self.go_on()

    def opened(self) -> None:
        """Partitions were opened: moves of theirs that an earlier life has begun go on."""
        self._forget_who_left()
        for name, (to, path) in self._directories.futures.items():
            partition = self._held.get(name)
            if partition is not None and name not in self._line:
                self._line[name] = _Move(partition, to, FutureLog(partition.log, path))
                self._listener.move_advanced(partition)
                _log.info("partition %s: continuing the move to %s", name, path.parent)
        if self._line:
            self.go_on()

    def shown(self, partition: Moved) -> tuple[int, int, int]:
        """(bytes, lag in offsets, directory) of a partition's copy; NO_FUTURE without one."""
        move = self._line.get(partition.topic_partition)
        if move is None or move.partition is not partition:
            return NO_FUTURE
        return move.future.size_bytes, move.future.lag, move.to

    # Steps

    def turn(self) -> None:
        """Takes what the thread has done into account, and gives it more to do."""
        while self.done:
            self._at_work -= 1
            self.done.popleft()()
        self.go_on()

    def is_empty(self) -> bool:
        """For the duty cycle: whether it may sleep without a turn."""
        return not self.done

    def go_on(self) -> None:
        """The next step of the first move, if none is under way."""
        self._forget_who_left()
        while self._line and not self._at_work and self._waits_for_flush is None:
            move = next(iter(self._line.values()))
            try:
                self._step(move)
            except StorageFault as fault:
                self._give_up(move, fault)
        self._listener.moves_counted(len(self._line))

    def _forget_who_left(self) -> None:
        for name, move in list(self._line.items()):
            serves = move.to in self._directories.serving
            if self._held.get(name) is not move.partition or not serves:
                self._drop(name)

    def _step(self, move: _Move[Moved]) -> None:
        piece = move.future.next_slice()
        if piece is not None:
            self._submit(piece.run, partial(self._copied, move, piece))
        elif not move.expected:
            expect = self._directories.expect(
                move.partition.topic_partition, recovery_point=move.future.forced_to
            )
            self._submit(expect, partial(self._expected, move))
        else:
            self._waits_for_flush = move
            self._commits.between_flushes(move.partition, partial(self._between_flushes, move))

    def _submit(self, work: Callable[[], None], then: Callable[[StorageFault | None], None]) -> None:
        """Runs `work` on the thread; `then` hears of its fault here, in a turn."""
        self._at_work += 1
        self._thread.submit(work, lambda fault: self.done.append(partial(then, fault)))

    def _copied(self, move: _Move[Moved], piece: CopySlice, fault: StorageFault | None) -> None:
        if not self._is_under_way(move):
            return
        if fault is None:
            move.changes = 0
            move.future.copied(piece)
            self._listener.move_advanced(move.partition)
        elif isinstance(fault, SourceChanged) and move.changes < CHANGES_MAX:
            move.changes += 1
        else:
            self._give_up(move, fault)

    def _expected(self, move: _Move[Moved], fault: StorageFault | None) -> None:
        move.expected = True
        if fault is not None and self._is_under_way(move):
            self._give_up(move, fault)

    def _between_flushes(self, move: _Move[Moved]) -> None:
        self._waits_for_flush = None
        if self._is_under_way(move):
            self._swap(move)
        self.go_on()

    def _swap(self, move: _Move[Moved]) -> None:
        partition, future, name = move.partition, move.future, move.partition.topic_partition
        try:
            if future.next_slice() is not None:
                return  # it has run ahead again
            future.copy_rest()
            partition.files_change()
            try:
                settlement = self._directories.swap_in(name, recovery_point=future.forced_to)
            except StorageFault:
                partition.files_changed()
                raise
        except StorageFault as fault:
            self._give_up(move, fault)
            return
        partition.directory = move.to
        partition.files_changed()
        self._commits.relocated(partition)
        self._drop(name)
        self._submit(settlement.run, partial(self._settled, move, settlement))
        self._listener.relocated(partition)
        _log.info("partition %s: moved to %s", name, partition.log.directory.parent)

    def _settled(self, move: _Move[Moved], settlement: Settlement, fault: StorageFault | None) -> None:
        if fault is not None and isinstance(fault.os_error, BlockingIOError):
            # Somebody holds the new place's lock: nothing was begun, and both places are as they were.
            _log.warning(
                "partition %s: moved, but its old directory could not be removed yet: %s",
                settlement.partition,
                fault,
            )
            self._submit(settlement.run, partial(self._settled, move, settlement))
            return
        self._directories.settled(settlement)
        if fault is None:
            self._listener.directories_deleted()
        elif self._held.get(move.partition.topic_partition) is move.partition:
            self._listener.storage_failed(move.partition, fault)

    def _is_under_way(self, move: _Move[Moved]) -> bool:
        self._forget_who_left()
        return self._line.get(move.partition.topic_partition) is move

    def _give_up(self, move: _Move[Moved], fault: StorageFault) -> None:
        name = move.partition.topic_partition
        _log.error("partition %s: move failed, the partition stays in its directory: %s", name, fault)
        self._drop(name)
        self._directories.cancel_move(name)
        self._listener.directories_deleted()
        if is_lasting(fault):
            self._listener.directory_suspected(move.to)

    def _drop(self, name: TopicPartition) -> None:
        move = self._line.pop(name, None)
        if move is not None:
            if self._waits_for_flush is move:
                self._waits_for_flush = None
            if self._held.get(name) is move.partition:
                self._listener.move_advanced(move.partition)

    def close(self) -> None:
        """Ends the thread after what it does."""
        self._thread.close()

    def statistics(self) -> dict[str, int]:
        """Moves under way or waiting; whether the thread has work."""
        return {"moves": len(self._line), "at_work": self._at_work}
