"""`durability = "fsync"`: answers wait here until a flush that began after their append has ended.

    append ─→ hold ─→ waiting ──(no flush of this log under way)──→ flush begins, takes all that waits ─→ in flight
                        ↑                                                                                   │
                        └── appends while it runs wait for the next one              answered, visible ←────┘

One flush serves every request that waited when it began, so the flushes a second are those of the disk and the
records a second grow with the producers. Each log has at most one flush under way. Logs do not wait for one another:
several are flushed at once and share the commits of the file system's journal. At most FLUSHES_MAX are under way in a
directory, which bounds the descriptors; further logs wait in order.

What consumers see moves with the acknowledgement: a record that a power cut can take back must not have been read by
anybody, or offsets would come to mean other records (Kafka with flush.messages=1 flushes before it moves the log end).

| what ends the wait | answer |
|---|---|
| the flush ended well | as appended |
| it failed | KAFKA_STORAGE_ERROR; the partition goes offline and is not flushed again |
| the partition is led no more | NOT_LEADER_OR_FOLLOWER |
| the requester died | none |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from appliance.channels.request_channel import APPENDED_BYTES, PRODUCED_OFFSET, refusal
from appliance.channels.roles import Role
from appliance.delayed.held_answers import HeldAnswers
from appliance.errors import StorageFault
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.partition import Partition
from appliance.ioproc.pokes import Pokes
from appliance.log.durable_tail import DurableTail, TailFlush
from appliance.log.flusher import Flusher
from appliance.log.partition_log import PartitionLog
from appliance.partition_host.listener import PartitionListener
from appliance.protocol.errors import ErrorCode

FLUSHES_MAX: Final = 64

_STORAGE_ERROR = int(ErrorCode.KAFKA_STORAGE_ERROR)
_NOT_LEADER = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class _Line:
    """One log. `begun`: its flushes since it is led; an answer waits for the end of the next one."""

    __slots__ = (
        "appended_bytes",
        "begun",
        "between",
        "flush",
        "is_due",
        "log",
        "partition",
        "tail",
    )

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.log: PartitionLog = partition.log
        self.tail = DurableTail(partition.log, flushed_to=partition.log.recovery_point)
        self.begun = 0
        self.flush: TailFlush | None = None
        self.between: Callable[[], None] | None = None
        self.appended_bytes = 0
        self.is_due = False


class GroupCommit:
    """The answers that one worker holds for a disk. Single-threaded; only the flushes run elsewhere.

    They have no deadline: a flush ends, well or with an error, and in Kafka, too, acks=1 does not time out.

    Args:
        reply: puts an answer on its way; false news about a full ring is the callee's.
        flusher: The threads that flush.
        listener: Publishes a replicated partition after a flush, and takes a partition offline whose flush failed.
    """

    __slots__ = (
        "_begun",
        "_due",
        "_flusher",
        "_held",
        "_lines",
        "_listener",
        "_pokes",
        "_reply",
        "done",
        "is_busy",
    )

    def __init__(
        self,
        pokes: Pokes,
        *,
        reply: Callable[[Role, Answer], None],
        flusher: Flusher,
        listener: PartitionListener[Partition],
    ) -> None:
        self._pokes = pokes
        self._reply = reply
        self._flusher = flusher
        self._listener = listener
        self._lines: dict[int, _Line] = {}
        self._held: HeldAnswers[_Line, Role, Answer] = HeldAnswers(None, expired=None)
        self._due: deque[_Line] = deque()
        self._begun = 0
        self.done: deque[tuple[_Line, StorageFault | None]] = deque()
        self.is_busy = False

    # Partitions come and go

    def bind(self, partition: Partition) -> None:
        """A partition is led, perhaps with other settings than before: holds its answers back from now on, or not."""
        line = self._lines.get(partition.row)
        if line is not None and line.log is not partition.log:
            self.forget(line.partition)
            line = None
        if partition.log.settings.is_fsync:
            if line is None:
                line = self._lines[partition.row] = _Line(partition)
                if partition.replication is not None:
                    self._doubt(line)
            elif line.partition.durable is None:
                # Without us the high watermark went on, and it does not go back.
                line.tail.offset = line.log.log_end_offset
            partition.durable = line.tail
        else:
            partition.durable = None
            if line is not None and not (self._held.waits(line) or line.flush or line.is_due):
                del self._lines[partition.row]
                line = None
        partition.is_held = partition.durable is not None or partition.replication is not None
        if line is not None:
            line.partition = partition

    def _doubt(self, line: _Line) -> None:
        """The slot has followed: the end of its log may not be on its disk, and counts once a flush has ended."""
        log = line.log
        line.tail.offset = min(log.log_end_offset, max(log.recovery_point, line.partition.high_watermark))
        if line.tail.offset < log.log_end_offset:
            self._make_due(line)

    def forget(self, partition: Partition) -> None:
        """The partition is led no more: who waits is told, and what a flush under way comes to is not heard."""
        line = self._lines.get(partition.row)
        if line is None or line.log is not partition.log:
            return
        del self._lines[partition.row]
        self._refuse(line, _NOT_LEADER)

    def between_flushes(self, partition: Partition, action: Callable[[], None]) -> None:
        """Runs `action` when no flush of the log is under way: now, or before the next one begins.

        Never, if the partition is led no more by then.
        """
        line = self._lines.get(partition.row)
        if line is None or line.flush is None:
            action()
        else:
            line.between = action

    def relocated(self, partition: Partition) -> None:
        """The log's files are others now: what was acknowledged stays so, and the next flush covers what they lack."""
        line = self._lines.get(partition.row)
        if line is not None:
            acknowledged = line.tail.offset
            line.tail = DurableTail(line.log, flushed_to=line.log.recovery_point)
            line.tail.offset = acknowledged
            if partition.durable is not None:
                partition.durable = line.tail

    def drop_requester(self, peer: Role) -> None:
        """That life of a network process is over; its successor must not hear what was meant for it."""
        self._held.drop_requester(peer)

    # Requests

    def hold(self, partition: Partition, peer: Role, answer: Answer) -> bool:
        """Keep a produce answer until its records are durable; False where they are: a retry of old records.

        The row of a replicated partition was published before (`Followed.hold`).
        """
        line = self._lines[partition.row]
        if answer[PRODUCED_OFFSET] < line.tail.offset:
            return False
        if partition.replication is None:
            partition.publish()
            line.appended_bytes += answer[APPENDED_BYTES]
        self._make_due(line)
        self._held.hold(line, line.begun + 1, peer, answer)
        return True

    def cover(self, partition: Partition) -> None:
        """Forces what was appended, for an answer that is held elsewhere until the high watermark has passed it."""
        self._make_due(self._lines[partition.row])

    def _make_due(self, line: _Line) -> None:
        if not line.is_due:
            line.is_due = True
            self._due.append(line)
            self.is_busy = True

    def turn(self) -> None:
        """Answers what flushes have ended for, and begins the next ones."""
        while self.done:
            line, fault = self.done.popleft()
            self._ended(line, fault)
        for _ in range(len(self._due)):
            line = self._due.popleft()
            if self._lines.get(line.partition.row) is not line:
                continue
            if line.flush is None and self._begun < FLUSHES_MAX:
                line.is_due = False
                self._begin(line)
            else:
                self._due.append(line)
        self.is_busy = bool(self._begun or self._due)

    def is_empty(self) -> bool:
        """For the duty cycle: whether it may sleep without a turn."""
        return not self.done

    def _begin(self, line: _Line) -> None:
        try:
            flush = line.tail.flush()
        except StorageFault as fault:
            self._failed(line, fault)
            return
        line.flush = flush
        line.begun += 1
        self._begun += 1
        self._flusher.submit(flush.run, lambda fault: self.done.append((line, fault)))

    def _ended(self, line: _Line, fault: StorageFault | None) -> None:
        self._begun -= 1
        flush, line.flush = line.flush, None
        if self._lines.get(line.partition.row) is not line or flush is None:
            return
        if fault is not None and flush.cuts == line.log.cuts:
            self._failed(line, fault)
            return
        line.tail.flushed(flush)
        partition = line.partition
        replication = partition.replication
        if replication is None:
            partition.publish()
            self._pokes.moved(partition.row, line.appended_bytes)
        else:
            # Followers count as well. What was appended here is from before it had any.
            replication.unseen_bytes += line.appended_bytes
            self._listener.high_watermark_may_move(partition)
        line.appended_bytes = 0
        for _, _, _, peer, answer in self._held.reached(line, line.begun):
            self._reply(peer, answer)
        action, line.between = line.between, None
        if action is not None:
            action()

    def _failed(self, line: _Line, fault: StorageFault) -> None:
        self._lines.pop(line.partition.row, None)
        self._refuse(line, _STORAGE_ERROR)
        self._listener.storage_failed(line.partition, fault)

    def _refuse(self, line: _Line, error: int) -> None:
        for _, _, _, peer, answer in self._held.leave(line):
            self._reply(peer, refusal(answer, error))

    def statistics(self) -> dict[str, int]:
        """Logs with flushes under way or due, and answers held back."""
        return {"flushes": self._begun, "due": len(self._due), "held": len(self._held)}
