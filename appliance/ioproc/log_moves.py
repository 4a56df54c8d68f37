"""Partitions on their way to another log directory of the slot, while they are written to and read.

    copying     one slice at a time runs on a thread beside; the owner says what is next when one has ended
    expected    so little is left that it takes milliseconds: the target's checkpoints are written, on the thread
    swap        between two requests, and under `durability = "fsync"` between two flushes: the rest is copied, one
                rename makes the copy the log, the row's files version changes, and appends go on in the new place
    settled     on the thread: what was not forced is, then the old directory goes (`log.settlement`)

One partition moves at a time, in the order asked; the others wait. Whoever reads a segment of the old directory holds
it open; whoever asked before the swap and opens after it sees by the files version that it must ask again.

| what happens | what follows |
|---|---|
| killed before the swap | the next life goes on with the copy; closed segments that are whole are not copied again |
| killed after it | the next opening finds both and resolves them |
| the target is full, or fails | the copy goes, the partition stays where it is, and the journal says why |
| the partition is deleted | its copy goes with it |
| it is led no more, or its own storage fails | the move rests until another life |
| it is asked to move where it is | the move under way is taken back |

Source: `ReplicaManager.alterReplicaLogDirs`, `ReplicaAlterLogDirsThread.java`; KIP-113.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from appliance.channels.worker_counters import MOVING_PARTITIONS
from appliance.cluster import TopicPartition
from appliance.errors import LogDirectoryOffline, StorageFault
from appliance.ioproc.group_commit import GroupCommit
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.log.faults import is_lasting
from appliance.log.flusher import Flusher
from appliance.log.future_log import CopySlice, FutureLog, SourceChanged
from appliance.log.log_directories import LogDirectories

CHANGES_MAX: Final = 100
"""Slices in a row that found their source changed, before a move is given up."""
NO_FUTURE: Final = (-1, 0, 0)
_log = logging.getLogger(__name__)


class _Move:
    """One partition's. `to` is the directory."""

    __slots__ = ("changes", "expected", "future", "partition", "to")

    def __init__(self, partition: Partition, to: int, future: FutureLog) -> None:
        self.partition = partition
        self.to = to
        self.future = future
        self.expected = False
        self.changes = 0


class LogMoves:
    """The moves of one worker. Single-threaded; only slices and settlements run elsewhere.

    Args:
        cells: of the worker's row in the process table.
        removed: called when directories were marked for removal.
        suspect: hears of a directory that has refused something and may have failed.
        fail: takes a partition offline, whose new place could not be made sure of.
        moved: called after a swap, for the checkpoints.
    """

    __slots__ = (
        "_at_work",
        "_cells",
        "_commits",
        "_directories",
        "_fail",
        "_line",
        "_moved",
        "_partitions",
        "_removed",
        "_suspect",
        "_thread",
        "_waits_for_flush",
        "done",
    )

    def __init__(
        self,
        partitions: Partitions,
        directories: LogDirectories,
        commits: GroupCommit,
        *,
        thread: Flusher,
        cells: memoryview,
        removed: Callable[[], None],
        suspect: Callable[[int], None],
        fail: Callable[[Partition, StorageFault], None],
        moved: Callable[[], None],
    ) -> None:
        self._partitions = partitions
        self._directories = directories
        self._commits = commits
        self._thread = thread
        self._cells = cells
        self._removed = removed
        self._suspect = suspect
        self._fail = fail
        self._moved = moved
        self._line: dict[TopicPartition, _Move] = {}
        self._at_work = 0
        self._waits_for_flush: _Move | None = None
        self.done: deque[Callable[[], None]] = deque()
        """What is to be done with what the thread came to."""

    # Commands

    def alter(self, partition: Partition, to: int) -> None:
        """Begins a move; or takes the one under way back where it goes elsewhere.

        Raises:
            LogDirectoryOffline: that directory, or any, has failed: a copy might be in it.
            StorageFault: the copy's directory could not be made.
            RejectedRequest: the topic's name is too long for it.
        """
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
            self._removed()
        if to == partition.directory:
            return
        if directories.failed:
            raise LogDirectoryOffline("no partition moves while a log directory is offline")
        self._begin(partition, to)

    def _begin(self, partition: Partition, to: int) -> None:
        try:
            path = self._directories.begin_move(partition.topic_partition, to)
        except StorageFault:
            self._directories.cancel_move(partition.topic_partition)
            self._removed()
            raise
        self._line[partition.topic_partition] = _Move(partition, to, FutureLog(partition.log, path))
        _log.info("partition %s moves to %s", partition.topic_partition, path.parent)
        self.go_on()

    def opened(self) -> None:
        """Partitions were opened: moves of theirs that an earlier life has begun go on."""
        for name, (to, path) in self._directories.futures.items():
            partition = self._partitions.by_name.get(name)
            if partition is not None and name not in self._line:
                self._line[name] = _Move(partition, to, FutureLog(partition.log, path))
                _log.info("partition %s goes on moving to %s", name, path.parent)
        if self._line:
            self.go_on()

    def shown(self, partition: Partition) -> tuple[int, int, int]:
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
        self._cells[MOVING_PARTITIONS] = len(self._line)

    def _forget_who_left(self) -> None:
        for name, move in list(self._line.items()):
            serves = move.to in self._directories.serving
            if self._partitions.by_row[move.partition.row] is not move.partition or not serves:
                self._drop(name)

    def _step(self, move: _Move) -> None:
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

    def _copied(self, move: _Move, piece: CopySlice, fault: StorageFault | None) -> None:
        if not self._is_under_way(move):
            return
        if fault is None:
            move.changes = 0
            move.future.copied(piece)
        elif isinstance(fault, SourceChanged) and move.changes < CHANGES_MAX:
            move.changes += 1
        else:
            self._give_up(move, fault)

    def _expected(self, move: _Move, fault: StorageFault | None) -> None:
        move.expected = True
        if fault is not None and self._is_under_way(move):
            self._give_up(move, fault)

    def _between_flushes(self, move: _Move) -> None:
        self._waits_for_flush = None
        if self._is_under_way(move):
            self._swap(move)
        self.go_on()

    def _swap(self, move: _Move) -> None:
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
        self._submit(settlement.run, partial(self._settled, move))
        self._moved()
        _log.info("partition %s has moved to %s", name, partition.log.directory.parent)

    def _settled(self, move: _Move, fault: StorageFault | None) -> None:
        if fault is None:
            self._removed()
        elif self._partitions.by_row[move.partition.row] is move.partition:
            self._fail(move.partition, fault)

    def _is_under_way(self, move: _Move) -> bool:
        self._forget_who_left()
        return self._line.get(move.partition.topic_partition) is move

    def _give_up(self, move: _Move, fault: StorageFault) -> None:
        name = move.partition.topic_partition
        _log.error("partition %s is not moved and stays where it is: %s", name, fault)
        self._drop(name)
        self._directories.cancel_move(name)
        self._removed()
        if is_lasting(fault):
            self._suspect(move.to)

    def _drop(self, name: TopicPartition) -> None:
        move = self._line.pop(name, None)
        if move is not None and self._waits_for_flush is move:
            self._waits_for_flush = None

    def close(self) -> None:
        """Ends the thread after what it does."""
        self._thread.close()

    def statistics(self) -> dict[str, int]:
        """Moves under way or waiting; whether the thread has work."""
        return {"moves": len(self._line), "at_work": self._at_work}
