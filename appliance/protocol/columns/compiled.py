"""Functions that numba compiles where it is installed, and that Python runs where it is not.

A kernel is written in the words both understand: integers and indexing, no objects. Its machine code is kept on disk
beside the source (or in numba's own cache, where that cannot be written), so a new worker loads it in about 0.1 s
instead of compiling for some seconds. numba is imported with the first module that holds a kernel, not before.

`APPLIANCE_SPARK_COMPILED=0` in the environment leaves numba alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

SWITCH: Final = "APPLIANCE_SPARK_COMPILED"

Buffer = bytes | bytearray | memoryview
Kernel = Callable[..., Any]


@cache
def has_compiler() -> bool:
    """Whether kernels run compiled in this process. Imports numba where it may be used."""
    if os.environ.get(SWITCH, "1") == "0":
        return False
    try:
        import numba  # noqa: F401
    except ImportError:
        return False
    return True


def compiled(function: Kernel) -> Kernel:
    """`function` as machine code, made at its first call or read from numba's cache; itself without numba."""
    if not has_compiler():
        return function
    import numba

    machine: Kernel = numba.njit(cache=True, nogil=True)(function)
    return machine


def step(function: Kernel) -> Kernel:
    """A part of kernels: what it does becomes part of their machine code; called from Python it is as it was."""
    if not has_compiler():
        return function
    from numba.extending import register_jitable

    part: Kernel = register_jitable(function)
    return part


def machine_bytes(buffer: Buffer) -> Any:
    """The bytes of `buffer`, without a copy, as compiled kernels take them."""
    array = np.frombuffer(buffer, dtype=np.uint8)
    # One type for bytes of whatever origin: a kernel is compiled for read-only ones, never twice.
    array.flags.writeable = False
    return array
