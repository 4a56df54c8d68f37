"""A partition's `.state` as a reader on this host sees it; the page docs/reading-off-disk.md names its words."""

from __future__ import annotations

import fcntl
import os
import struct
from typing import Final, NamedTuple
from uuid import UUID

from appliance.protocol.records.crc32c import checksum

STATE: Final = ".state"
_STATE: Final = struct.Struct("<8sHHiq16sqqqqqqqqq16sqi")
_STATE_CRC: Final = struct.Struct("<I")
_STATE_PLACE: Final = 512
_FLOCK: Final = struct.Struct("hhqqi4x")
_SHARED: Final = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
_UNLOCKED: Final = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
_STATE_BYTES: Final = _STATE_PLACE + _STATE.size + _STATE_CRC.size


class State(NamedTuple):
    """What the owner of a copy last said of it; the page names the words."""

    sequence: int
    leader_epoch: int
    topic_id: UUID
    incarnation: int
    generation: int
    log_start: int
    high_watermark: int
    last_stable: int
    log_end: int
    leads: bool


def decode_state(content: bytes) -> State | None:
    """The newer of the two records that holds; None if neither does."""
    found: State | None = None
    for at in (0, _STATE_PLACE):
        record = content[at : at + _STATE.size + _STATE_CRC.size]
        if len(record) < _STATE.size + _STATE_CRC.size or not record.startswith(b"LOGSTATE"):
            continue
        if _STATE_CRC.unpack_from(record, _STATE.size)[0] != checksum(record[: _STATE.size]):
            continue
        words = _STATE.unpack_from(record)
        if words[1] == 1 and (found is None or words[4] > found.sequence):
            found = State(
                sequence=words[4],
                leader_epoch=words[3],
                topic_id=UUID(bytes=words[5]),
                incarnation=words[6],
                generation=words[7],
                log_start=words[8],
                high_watermark=words[9],
                last_stable=words[10],
                log_end=words[11],
                leads=bool(words[17]),
            )
    return found


class StateReader:
    """The state file of one directory, opened again whenever another file has taken its place.

    `wait` asks the owner to write at once what becomes readable: a shared lock on the file, which the kernel lets go of
    when this process ends. `rest` takes that back.
    """

    __slots__ = ("_descriptor", "_inode", "is_waiting", "path")

    def __init__(self, directory: str) -> None:
        self.path = f"{directory}/{STATE}"
        self._descriptor = -1
        self._inode = -1
        self.is_waiting = False

    def read(self) -> State | None:
        """What the owner says now; None where there is no such directory any more, or nothing that holds.

        Raises:
            PermissionError: this user may not read it.
        """
        try:
            if os.stat(self.path).st_ino != self._inode:
                self.close()
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
                self._inode = os.fstat(self._descriptor).st_ino
        except (FileNotFoundError, NotADirectoryError):
            return None
        for _ in range(3):
            found = decode_state(os.pread(self._descriptor, _STATE_BYTES, 0))
            if found is not None:
                return found
        return None

    def wait(self) -> bool:
        """Be told at once from now on; whether that is new, so that the state must be read once more."""
        if self.is_waiting or self._descriptor < 0:
            return False
        self.is_waiting = True
        return self._lock(_SHARED)

    def rest(self) -> None:
        """Be told when it suits the owner."""
        if self.is_waiting:
            self.is_waiting = False
            self._lock(_UNLOCKED)

    def _lock(self, how: bytes) -> bool:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, how)
        except OSError:
            return False  # this file system has no locks: what is written comes a little later
        return True

    def close(self) -> None:
        """Close the file."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = self._inode = -1
        self.is_waiting = False
