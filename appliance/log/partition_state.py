"""`<partition>/.state`: how far a reader off the disk may read, said by the process that has the log open.

    0                 512               1024
    ├─ record A ──────┼─ record B ──────┤        record n goes to place n mod 2, so the one before it stands until the
                                                 new one is whole: who reads takes the newer of those that hold

    byte   0       8         10     12       16         24         40            48           56      64
           ┌───────┬─────────┬──────┬────────┬──────────┬──────────┬─────────────┬────────────┬───────┬────────┐
           │ magic │ version │ mode │ leader │ sequence │ topic id │ incarnation │ generation │ log   │ high   │
           │       │         │      │ epoch  │          │          │             │            │ start │ waterm.│
           └───────┴─────────┴──────┴────────┴──────────┴──────────┴─────────────┴────────────┴───────┴────────┘
    byte  72        80    88        96        104       112       128        136      140   144
           ┌────────┬─────┬─────────┬─────────┬─────────┬─────────┬──────────┬────────┬─────┐
           │ last   │ log │ durable │ active  │ active  │ boot id │ written  │ leads  │ crc │
           │ stable │ end │ offset  │ base    │ bytes   │         │ at (ms)  │ (0, 1) │ 32c │
           └────────┴─────┴─────────┴─────────┴─────────┴─────────┴──────────┴────────┴─────┘

All integers are little-endian; the checksum covers the bytes before it. A record is written by one `pwrite`, after the
bytes that it speaks of, and without a flush: it says what the page cache holds. Readers use one `pread` of both,
and never a mapping. A record that does not hold is one that was being written, or one that a power cut tore.

| word | meaning |
|---|---|
| sequence | rises by one with each record; the sequence lock |
| incarnation | another one when the log lost records that readers may have seen: their offsets may be others' now |
| generation | rises when compaction has put other files under the names of segments |
| durable offset | below it everything was forced to the disk |
| active base, bytes | the segment that is appended to, and its bytes up to the log end: what follows them is nobody's |
| leads | 1: of the partition's leader; 0: of a follower, whose copy may lag |

Watermarks and ends rise within one incarnation. A record may be older than the log, by `reader.state.interval.ms` or
more under load; it is never newer.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Final
from uuid import UUID

from appliance.errors import CorruptFile
from appliance.log.faults import storage_fault, storage_faults
from appliance.protocol.records.crc32c import checksum

STATE: Final = ".state"
VERSION: Final = 1
_MAGIC: Final = b"LOGSTATE"
_BODY: Final = Struct("<8sHHiq16sqqqqqqqqq16sqi")
_CRC: Final = Struct("<I")
RECORD_BYTES: Final = _BODY.size + _CRC.size
PLACE_BYTES: Final = 512
FILE_BYTES: Final = 2 * PLACE_BYTES
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
NO_ID: Final = UUID(int=0)
_FLOCK: Final = Struct("hhqqi4x")
_ANY_LOCK: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class Mode(IntEnum):
    """What the owner of the log does."""

    RUNNING = 1
    """It has the log open, or was killed: the log may be longer than the record says."""
    CLOSED = 2
    """It has closed the log in good order, and everything is on the disk."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One record. Offsets, but for `active_bytes` (bytes) and `written_ms` (wall clock of the owner)."""

    topic_id: UUID
    leader_epoch: int
    log_start: int
    high_watermark: int
    last_stable: int
    log_end: int
    durable: int
    active_base: int
    active_bytes: int
    leads: bool
    mode: Mode = Mode.RUNNING
    incarnation: int = 0
    generation: int = 0
    sequence: int = 0
    boot_id: UUID = NO_ID
    written_ms: int = 0

    def encode(self) -> bytes:
        """RECORD_BYTES bytes."""
        body = _BODY.pack(
            _MAGIC,
            VERSION,
            self.mode,
            self.leader_epoch,
            self.sequence,
            self.topic_id.bytes,
            self.incarnation,
            self.generation,
            self.log_start,
            self.high_watermark,
            self.last_stable,
            self.log_end,
            self.durable,
            self.active_base,
            self.active_bytes,
            self.boot_id.bytes,
            self.written_ms,
            self.leads,
        )
        return body + _CRC.pack(checksum(body))


def decode(content: bytes) -> PartitionState | None:
    """The newer of the two records that holds; None if neither does."""
    found: PartitionState | None = None
    for at in (0, PLACE_BYTES):
        record = content[at : at + RECORD_BYTES]
        if len(record) < RECORD_BYTES or not record.startswith(_MAGIC):
            continue
        if _CRC.unpack_from(record, _BODY.size)[0] != checksum(record[: _BODY.size]):
            continue
        words = _BODY.unpack_from(record)
        if words[1] != VERSION or words[2] not in iter(Mode):
            continue
        if found is None or words[4] > found.sequence:
            found = PartitionState(
                mode=Mode(words[2]),
                leader_epoch=words[3],
                sequence=words[4],
                topic_id=UUID(bytes=words[5]),
                incarnation=words[6],
                generation=words[7],
                log_start=words[8],
                high_watermark=words[9],
                last_stable=words[10],
                log_end=words[11],
                durable=words[12],
                active_base=words[13],
                active_bytes=words[14],
                boot_id=UUID(bytes=words[15]),
                written_ms=words[16],
                leads=bool(words[17]),
            )
    return found


def read_state(directory: Path, *, attempts: int = 3) -> PartitionState | None:
    """What the owner of the partition in `directory` last said; None where it never has.

    Two records are written while one `pread` copies only if the reader is stopped in the middle; then it looks again.

    Raises:
        StorageFault: the file cannot be read.
        CorruptFile: neither record holds: torn by a power cut, or of a version that is not known here.
    """
    for _ in range(attempts):
        content = state_content(str(directory))
        if not content:
            return None  # not made, or not written yet
        found = decode(content)
        if found is not None:
            return found
    raise CorruptFile(f"{directory / STATE} holds no whole record of version {VERSION}")


def state_content(directory: str) -> bytes | None:
    """Both records of the partition in `directory`, as they are now; None where there is no file.

    Raises:
        StorageFault: the file cannot be read.
    """
    path = f"{directory}/{STATE}"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise storage_fault(error, path) from error
    try:
        return os.pread(descriptor, FILE_BYTES, 0)
    except OSError as error:
        raise storage_fault(error, path) from error
    finally:
        os.close(descriptor)


def boot_id() -> UUID:
    """Which start of this machine it is; all zeros where the system does not say."""
    try:
        return UUID(_BOOT_ID.read_text().strip())
    except (OSError, ValueError):
        return NO_ID


class StateFile:
    """The state file of one partition, for its owner. Single-threaded; opened when it is first needed."""

    __slots__ = ("_boot_id", "_descriptor", "_generations", "_known", "directory", "is_watched", "last")

    def __init__(self, directory: Path, boot_id: UUID) -> None:
        self.directory = directory
        self._boot_id = boot_id
        self._descriptor = -1
        self._known = False
        self._generations = 0
        self.is_watched = False
        """Whether a reader waited for the next record when `look_for_watchers` looked last."""
        self.last: PartitionState | None = None

    def files_changed(self) -> None:
        """The names of segments have come to mean other files: the next record says so."""
        self._generations += 1

    def expect_unsaid_swap(self) -> None:
        """Counts as `files_changed` if who had the log before was killed: it may have swapped and not said so."""
        last = self.known()
        if last is not None and last.mode is Mode.RUNNING:
            self._generations += 1

    def publish(self, state: PartitionState) -> PartitionState:
        """Writes a record; sequence, incarnation, generation and boot id are filled in here. What was written.

        Raises:
            StorageFault: it failed, DiskFull where that was the cause; the record before stands.
        """
        full = self._next(state, self.known())
        record = full.encode()
        path = self.directory / STATE
        with storage_faults(path):
            if self._descriptor < 0:
                self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            written = os.pwrite(self._descriptor, record, PLACE_BYTES * (full.sequence % 2))
        if written == len(record):
            self.last, self._generations = full, 0
        return full

    def begin(self, state: PartitionState) -> bool:
        """Makes the file of a new partition, with its first record, and lets go of it: nothing may follow for long.

        False where there is one already, which is left alone, or where the record is not whole: `publish` goes on.

        Raises:
            StorageFault: it failed, DiskFull where that was the cause.
        """
        first = self._next(state, None)
        record = first.encode()
        path = f"{self.directory}/{STATE}"
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            return False
        except OSError as error:
            raise storage_fault(error, path) from error
        try:
            if os.write(descriptor, record) < len(record):
                return False
        except OSError as error:
            raise storage_fault(error, path) from error
        finally:
            os.close(descriptor)
        self.last, self._known, self._generations = first, True, 0
        return True

    def _next(self, state: PartitionState, last: PartitionState | None) -> PartitionState:
        """The record that follows `last`; the first one where there is none."""
        if last is None:
            # By the clock, since a record may have been lost that said another number.
            incarnation, generation, sequence = state.written_ms, 0, 0
        else:
            lost = state.log_end < last.high_watermark and state.topic_id == last.topic_id
            incarnation = last.incarnation + lost
            generation, sequence = last.generation, last.sequence + 1
        return replace(
            state,
            incarnation=incarnation,
            generation=generation + self._generations,
            sequence=sequence,
            boot_id=self._boot_id,
        )

    def look_for_watchers(self) -> None:
        """Looks whether a reader holds a lock on the file (docs/reading-off-disk.md). Where nobody can tell, none does.

        It asks about the lock and does not take it, so no reader is ever refused. The kernel lets go for the dead.
        """
        self.is_watched = False
        if self._descriptor >= 0:
            try:
                answer = fcntl.fcntl(self._descriptor, fcntl.F_OFD_GETLK, _ANY_LOCK)
            except OSError:
                return
            self.is_watched = _FLOCK.unpack(answer)[0] != fcntl.F_UNLCK

    def relocate(self, directory: Path) -> None:
        """The partition lives in another log directory from now on; what was said counts there too."""
        self.known()
        self.release()
        self.directory = directory

    def release(self) -> None:
        """Lets go of the descriptor until it is needed again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def is_open(self) -> bool:
        return self._descriptor >= 0

    def known(self) -> PartitionState | None:
        """What was said last, by an owner before perhaps. Raises StorageFault: it cannot be read."""
        if not self._known:
            try:
                self.last = read_state(self.directory)
            except CorruptFile:
                # A power cut tore it. What it said is lost, so whoever read by it must not trust what it read.
                self.last = None
            self._known = True
        return self.last
