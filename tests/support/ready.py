"""Waiting for a descriptor to be readable, whatever its number: select(2) refuses those from 1,024 on."""

from __future__ import annotations

import select
from typing import Protocol


class HasDescriptor(Protocol):
    def fileno(self) -> int: ...


def is_readable(descriptor: int | HasDescriptor, *, within_s: float = 0.0) -> bool:
    """Whether there is something to read, or an end, `within_s` seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(within_s * 1000))
