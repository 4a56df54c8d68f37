"""From the operating system's errors to ours: whose fault a failed call was."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from appliance.errors import DiskFull, StorageFault

# EFBIG is the limit of RLIMIT_FSIZE or of the file system: no room, whoever has set it.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_COMES_BACK = _NO_ROOM | {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR}


def storage_fault(error: OSError, path: Path | str) -> StorageFault:
    """The fault for an error that a call on `path` met; to be raised from it."""
    kind = DiskFull if error.errno in _NO_ROOM else StorageFault
    return kind(f"{path}: {error.strerror or error}")


@contextmanager
def storage_faults(path: Path | str) -> Iterator[None]:
    """Turns every OSError of its block into a StorageFault. Too slow for the append path."""
    try:
        yield
    except OSError as error:
        raise storage_fault(error, path) from error


def is_lasting(fault: StorageFault) -> bool:
    """Whether a fault speaks of the storage itself, and not of room, descriptors or memory that come back."""
    cause = fault.__cause__
    return not isinstance(fault, DiskFull) and not (isinstance(cause, OSError) and cause.errno in _COMES_BACK)
