"""Landlock: a process asks the kernel to refuse it what it never does, for the rest of its life.

The rules here are about changes only. A process may still read what its user may read, because Python imports modules,
and OpenSSL reads certificates, at any time. It may open a file for writing, create, rename and remove names only below
the paths that the caller lists. It cannot start a program. It can connect only to the TCP ports that the caller lists.
It cannot send a signal to a process outside, trace one, or read its memory.

What was open before stays open, with its rights. Threads that exist already are not restricted, so call `restrict`
before the first one.

Source: landlock(7); the numbers are those of linux/landlock.h and of x86-64. PyPI has two bindings, both before their
first stable release, so the three system calls are made here.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable, Mapping
from enum import IntFlag
from pathlib import Path
from typing import Final

_CREATE_RULESET: Final = 444
_ADD_RULE: Final = 445
_RESTRICT_SELF: Final = 446
_VERSION_FLAG: Final = 1
_PATH_BENEATH: Final = 1
_NET_PORT: Final = 2

_PATH_RULE: Final = struct.Struct("=Qi")
"""struct landlock_path_beneath_attr: allowed_access, parent_fd."""

_PORT_RULE: Final = struct.Struct("=QQ")
"""struct landlock_net_port_attr: allowed_access, port."""

_NET_CONNECT_TCP: Final = 1 << 1
_SCOPE_ABSTRACT_UNIX_SOCKET: Final = 1 << 0
_SCOPE_SIGNAL: Final = 1 << 1

# Since which version of the interface the kernel knows a word of struct landlock_ruleset_attr, or a right.
_SINCE_NET: Final = 4
_SINCE_SCOPE: Final = 6
_SINCE_REFER: Final = 2
_SINCE_TRUNCATE: Final = 3


class Right(IntFlag):
    """What a path may be used for (LANDLOCK_ACCESS_FS_…). Reading is not among them: nobody loses it."""

    NOTHING = 0
    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14


# Not `~Right.NOTHING`, which has the bits between the named ones, too: those of reading.
_EVERYTHING: Final = Right(sum(Right))
# A rule on a file, and not on a directory, may name these only.
_OF_FILES: Final = Right.EXECUTE | Right.WRITE_FILE | Right.TRUNCATE


def version() -> int:
    """Return the version of Landlock's interface that this kernel offers; 0 where it offers none."""
    found = _system_call(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    return max(0, found)


def restrict(allowed: Mapping[Path, Right], *, connect_ports: Iterable[int] = ()) -> bool:
    """Refuse this process, from now on, every change that `allowed` does not list. There is no way back.

    The process must have given up new privileges (`capabilities.give_up_new_privileges`).

    Args:
        allowed: path → what may be done at it and below it. A path that does not exist is left out.
        connect_ports: TCP ports to which the process may connect, on any host.

    Returns:
        Whether the kernel offers this; False changes nothing.

    Raises:
        OSError: the kernel offers it and refuses these rules.
    """
    offered = version()
    if not offered:
        return False
    handled = _EVERYTHING
    if offered < _SINCE_REFER:
        handled &= ~Right.REFER
    if offered < _SINCE_TRUNCATE:
        handled &= ~Right.TRUNCATE
    words = [int(handled)]
    if offered >= _SINCE_NET:
        words.append(_NET_CONNECT_TCP)
    if offered >= _SINCE_SCOPE:
        words.append(_SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL)
    attributes = struct.pack(f"={len(words)}Q", *words)
    ruleset = _checked(_system_call(_CREATE_RULESET, attributes, len(attributes), 0))
    try:
        for path, rights in allowed.items():
            _allow(ruleset, path, rights & handled)
        for port in connect_ports if offered >= _SINCE_NET else ():
            rule = _PORT_RULE.pack(_NET_CONNECT_TCP, port)
            _checked(_system_call(_ADD_RULE, ruleset, _NET_PORT, rule, 0))
        _checked(_system_call(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return True


def _allow(ruleset: int, path: Path, rights: Right) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not path.is_dir():
            rights &= _OF_FILES
        rule = _PATH_RULE.pack(int(rights), descriptor)
        _checked(_system_call(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0))
    finally:
        os.close(descriptor)


def _system_call(number: int, *arguments: int | bytes | None) -> int:
    """Return what the system call returns, or minus the error number."""
    library = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = library.syscall(ctypes.c_long(number), *words)
    return result if result >= 0 else -ctypes.get_errno()


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(-result, f"Landlock: {os.strerror(-result)}")
    return result
