"""Reading a partition's files on this host, by the contract in docs/reading-off-disk.md: the broker is asked nothing.

    .state ─▶ which copy, how far ─▶ segment by offset ─▶ pread ─▶ whole batches ─▶ the state once more ─▶ handed over

The broker writes a partition's `.state` when its high watermark moves. `Bell` has the kernel tell of that (inotify), so
a reader waits without a request and without polling. Files are opened for reading only, and never mapped: a process
that reads a mapping of a file that is cut is killed. Who may read is decided by the modes of the files.

`LocalReader` is for programs that want bytes; `LocalLogs` is what a consumer with `shm:///data-dir` reads through.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self
from uuid import UUID

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance_client.errors import ClientError, CorruptRecordsError, error_of
from appliance_client.local_copy import DELTA
from appliance_client.local_logs import LocalLogs
from appliance_client.local_partition import QUIET_S

_DEAF_S: Final = 0.005
"""The first pause where the system has no inotify left; each one without records is twice as long."""


class LocalReader:
    """Reads one partition's batches off the files of this host.

        with LocalReader("/var/lib/appliance", "orders", 0) as reader:
            batches = reader.read()         # whole batches, their checksums checked; empty: none yet
            reader.wait(0.25)               # until there may be more

    `offset` is where the next `read` begins. Offsets below the log's start raise OffsetOutOfRangeError.
    """

    def __init__(
        self,
        data_directory: str | Path,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        isolation_level: str = "read_uncommitted",
    ) -> None:
        self._committed = isolation_level == "read_committed"
        self._logs = LocalLogs(data_directory)
        self._partition = self._logs.partition(topic, partition)
        self.aborted: Sequence[tuple[int, int]] = ()
        """(producer id, first offset) of aborted transactions among what `read` gave last (read_committed)."""
        self.high_watermark = -1
        self._quiet_s = QUIET_S
        self._deaf_s = _DEAF_S
        self._read_to = (-1, -1, -1)
        """An offset, the leader epoch of the record before it, and that of the leader whose log was read."""
        self._topic_id: UUID | None = None
        """Of the topic that was read."""
        self._life = ("", -1)
        self.offset = self._first() if offset is None else offset

    def _first(self) -> int:
        answer = self._partition.read(-1)
        if answer.log_start_offset < 0:
            raise error_of(answer.error_code, self._partition.name)
        return answer.log_start_offset

    def read(self, bytes_max: int = 1 << 20) -> memoryview:
        """Whole batches from `offset` on, which moves behind them. Empty where there are none now.

        Raises:
            CorruptRecordsError: a checksum fails.
            OffsetOutOfRangeError: `offset` lies outside of the log, an election or a power cut has removed records that
                were read, or the topic is another one of the same name. Set `offset` to go on.
            BrokerError: it cannot be read.
        """
        self._logs.hear()
        read_to, epoch, leader_epoch = self._read_to
        if read_to != self.offset:
            leader_epoch, self._topic_id, self._life = -1, None, ("", -1)
        answer = self._partition.read(
            self.offset,
            topic_id=self._topic_id,
            bytes_max=bytes_max,
            committed=self._committed,
            leader_epoch=leader_epoch,
        )
        if answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID:
            what = f"{self._partition.name} is of another topic than the records that were read before {self.offset}"
            raise error_of(ErrorCode.OFFSET_OUT_OF_RANGE, what)
        if answer.error_code == ErrorCode.FENCED_LEADER_EPOCH:
            found = self._partition.agrees(self.offset, epoch)
            if found is not None and found < 0:
                raise self._lost()
            if found is not None:
                self._read_to = (read_to, epoch, found)
            return answer.records
        if answer.error_code:
            raise error_of(answer.error_code, f"offset {self.offset} of {self._partition.name}")
        if answer.life[0] == self._life[0] and answer.life != self._life:
            raise self._lost()
        self.high_watermark = answer.high_watermark
        self.aborted = answer.aborted
        self._quiet_s = answer.quiet_s
        records, at, last = answer.records, 0, -1
        while at < len(records):
            base, length = b.OFFSET_AND_LENGTH.unpack_from(records, at)
            stop = at + length + b.LOG_OVERHEAD
            if not b.crc_holds(records[at:stop]):
                raise CorruptRecordsError(f"{self._partition.name}@{base}: checksum fails")
            last = base + DELTA.unpack_from(records, at + b.LAST_OFFSET_DELTA)[0]
            epoch = b.PLACEMENT.unpack_from(records, at)[2]
            at = stop
        if at:
            self.offset = last + 1
            self._read_to = (self.offset, epoch, answer.leader_epoch)
            self._topic_id, self._life = answer.topic_id, answer.life
            self._deaf_s = _DEAF_S
        return records

    def _lost(self) -> ClientError:
        what = f"{self._partition.name}: its log has lost records that were read before {self.offset}"
        return error_of(ErrorCode.OFFSET_OUT_OF_RANGE, what)

    @property
    def descriptor(self) -> int:
        """Readable when the partition's state was written since the last `read`; -1 where that cannot be told."""
        return self._logs.descriptor

    def wait(self, timeout_s: float) -> bool:
        """Wait until the partition's state was written since the last `read`; whether it was.

        Waits shorter than `timeout_s` where it is time to look without having heard anything.
        """
        descriptor = self._logs.descriptor
        if descriptor < 0:
            self._deaf_s = min(2 * self._deaf_s, QUIET_S)
            time.sleep(min(timeout_s, self._deaf_s))
            return False
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(1000 * min(timeout_s, self._quiet_s)))

    def close(self) -> None:
        """Close the files."""
        self._logs.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
