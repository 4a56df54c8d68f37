"""Capabilities, and the promise to get no new privileges.

A process of an ordinary user has no capability, unless the operator gave it one. A process that root started has all of
them. Children give up those that their role does not need (`confinement.py`), from every set, for ever.

Source: capabilities(7), capset(2), prctl(2); the numbers are those of linux/capability.h, linux/prctl.h and of x86-64.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import Final

_CAPGET: Final = 125
_CAPSET: Final = 126
_VERSION_3: Final = 0x20080522
_HEADER: Final = struct.Struct("=Ii")
_DATA: Final = struct.Struct("=6I")
"""Effective, permitted and inheritable of the capabilities 0 to 31; then the same of 32 to 63."""

_PR_CAPBSET_READ: Final = 23
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38


class Capability(IntEnum):
    """Those that a role may need. All others are named nowhere, because nobody keeps them."""

    CHOWN = 0
    DAC_OVERRIDE = 1
    DAC_READ_SEARCH = 2
    FOWNER = 3
    FSETID = 4
    NET_BIND_SERVICE = 10


def give_up_new_privileges() -> None:
    """From now on no program that this process or its children execute gains a privilege, also not set-user-ID ones.

    Raises:
        OSError: the kernel refuses it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def keep_only(kept: AbstractSet[Capability]) -> None:
    """Give up every capability that is not in `kept`. Those that the process does not have stay away.

    Raises:
        OSError: the kernel refuses it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    header = _HEADER.pack(_VERSION_3, 0)
    data = ctypes.create_string_buffer(_DATA.size)
    if library.syscall(_CAPGET, header, data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    words = _DATA.unpack(data.raw)
    if not any(words):
        return  # an ordinary user: what lies in the bounding set can no longer be had without new privileges
    number = 0
    while (bounding := library.prctl(_PR_CAPBSET_READ, number, 0, 0, 0)) >= 0:
        # Only a process with CAP_SETPCAP may do so; without new privileges the bounding set gives nobody anything.
        if bounding and number not in kept:
            library.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0)
        number += 1
    mask = sum(1 << capability for capability in kept)
    low, high = mask & 0xFFFFFFFF, mask >> 32
    # What leaves the permitted and the inheritable set leaves the ambient set, too.
    masks = (low, low, low, high, high, high)
    data = ctypes.create_string_buffer(
        _DATA.pack(*(word & each for word, each in zip(words, masks, strict=True))), _DATA.size
    )
    if library.syscall(_CAPSET, header, data) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"capset: {os.strerror(code)}")
