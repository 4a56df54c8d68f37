"""From the operating system's errors to ours: whose fault a failed call was."""

from __future__ import annotations

import errno
from pathlib import Path
from types import TracebackType
from typing import Final

from appliance.errors import DiskFull, StorageFault

# EFBIG is the limit of RLIMIT_FSIZE or of the file system: no room, whoever has set it.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

NO_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_HINTS: Final = {
    errno.EMFILE: "; raise LimitNOFILE of the service (ulimit -n)",
    errno.ENFILE: "; raise the system's fs.file-max",
}
_IS_GONE: Final = frozenset({errno.ENOTDIR, errno.ESTALE})

_COMES_BACK = NO_ROOM | NO_DESCRIPTORS | {errno.ENOMEM, errno.EAGAIN, errno.EINTR}


def storage_fault(error: OSError, path: Path | str) -> StorageFault:
    """The fault for an error that a call on `path` met; to be raised from it."""
    kind = DiskFull if error.errno in NO_ROOM else StorageFault
    fault = kind(f"{path}: {error.strerror or error}{_HINTS.get(error.errno or 0, '')}")
    fault.os_error = error
    return fault


class storage_faults:  # noqa: N801 - it reads as a statement: `with storage_faults(path):`
    """Turns every OSError of its block into a StorageFault.

    A class and no generator, which costs four times as much: a takeover enters thousands of such blocks. Too slow for
    the append path still.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise storage_fault(error, self._path) from error


def is_gone(error: OSError | StorageFault) -> bool:
    """Whether what was to be opened is not there any more, and nothing else is wrong."""
    met = error.os_error if isinstance(error, StorageFault) else error
    return isinstance(met, FileNotFoundError) or (met is not None and met.errno in _IS_GONE)


def is_lasting(fault: StorageFault) -> bool:
    """Whether a fault speaks of the storage itself, and not of room, descriptors or memory that come back."""
    met = fault.os_error
    return not isinstance(fault, DiskFull) and not (met is not None and met.errno in _COMES_BACK)
