"""Faults below SQLite: its own system calls fail while a file says so.

SQLite calls the system through a table that `xSetSystemCall` of its unix VFS may change (sqlite3.h), so the library
under test is the real one. While the file that DISK_LAYER_SQLITE names is there and holds `ERRNO CALLS TEXT`, calls on
a file whose path holds TEXT fail with that error: those in CALLS (`open,pread64`), or each open, read, write and
truncation where it is `*`. `os.read` fails alike.
"""

from __future__ import annotations

import _sqlite3
import atexit
import ctypes
import os
from typing import Any, Final

_VFS_CALL: Final = ctypes.c_void_p


class _Vfs(ctypes.Structure):
    """struct sqlite3_vfs, version 3."""

    _fields_ = (
        ("iVersion", ctypes.c_int),
        ("szOsFile", ctypes.c_int),
        ("mxPathname", ctypes.c_int),
        ("pNext", ctypes.c_void_p),
        ("zName", ctypes.c_char_p),
        ("pAppData", ctypes.c_void_p),
        *(
            (name, _VFS_CALL)
            for name in ["xOpen", "xDelete", "xAccess", "xFullPathname", "xDlOpen", "xDlError"]
        ),
        *((name, _VFS_CALL) for name in ["xDlSym", "xDlClose", "xRandomness", "xSleep", "xCurrentTime"]),
        *((name, _VFS_CALL) for name in ["xGetLastError", "xCurrentTimeInt64"]),
        (
            "xSetSystemCall",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p),
        ),
        ("xGetSystemCall", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)),
    )


_SIZE: Final = ctypes.c_size_t
_BYTES: Final = ctypes.c_void_p
_OFFSET: Final = ctypes.c_int64
_BY_DESCRIPTOR: Final[dict[str, tuple[Any, ...]]] = {
    "read": (ctypes.c_ssize_t, ctypes.c_int, _BYTES, _SIZE),
    "pread": (ctypes.c_ssize_t, ctypes.c_int, _BYTES, _SIZE, _OFFSET),
    "pread64": (ctypes.c_ssize_t, ctypes.c_int, _BYTES, _SIZE, _OFFSET),
    "write": (ctypes.c_ssize_t, ctypes.c_int, _BYTES, _SIZE),
    "pwrite": (ctypes.c_ssize_t, ctypes.c_int, _BYTES, _SIZE, _OFFSET),
    "pwrite64": (ctypes.c_ssize_t, ctypes.c_int, _BYTES, _SIZE, _OFFSET),
    "ftruncate": (ctypes.c_int, ctypes.c_int, _OFFSET),
}
_OPEN: Final = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_int)

_kept: list[Any] = []


def install(trigger: str) -> None:
    """Puts the layer below every database of this process and of those it forks."""
    library = ctypes.CDLL(_sqlite3.__file__)
    library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
    vfs = library.sqlite3_vfs_find(b"unix")

    def refused(name: str, path: str) -> bool:
        try:
            with open(trigger) as file:
                number, calls, text = file.read().split()
        except (OSError, ValueError):
            return False
        if text not in path or (calls != "*" and name not in calls.split(",")):
            return False
        ctypes.set_errno(int(number))
        return True

    def between(name: str, types: tuple[Any, ...], path_of: Any) -> None:
        address = vfs.contents.xGetSystemCall(vfs, name.encode())
        if not address:
            return
        kind = ctypes.CFUNCTYPE(*types, use_errno=True)
        real = kind(address)

        def call(*arguments: Any) -> int:
            if refused(name, path_of(arguments[0])):
                return -1
            result: int = real(*arguments)
            return result

        function = kind(call)
        _kept.append(function)
        vfs.contents.xSetSystemCall(vfs, name.encode(), ctypes.cast(function, ctypes.c_void_p))

    for name, types in _BY_DESCRIPTOR.items():
        between(name, types, lambda descriptor: os.readlink(f"/proc/self/fd/{descriptor}"))
    between("open", _OPEN, os.fsdecode)
    # The disk is the same for whoever reads it.
    real_read = os.read

    def read(descriptor: int, length: int, /) -> bytes:
        if os.path.exists(trigger) and refused("read", os.readlink(f"/proc/self/fd/{descriptor}")):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return real_read(descriptor, length)

    os.read = read
    # Before the interpreter takes the functions apart.
    atexit.register(lambda: vfs.contents.xSetSystemCall(vfs, None, None))
