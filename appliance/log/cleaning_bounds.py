"""What the owner of a log tells who compacts it."""

from __future__ import annotations

from typing import NamedTuple


class LogBounds(NamedTuple):
    """Only the owner knows these. Offsets; `active_first_ms` is -1 while the active segment is empty.

    `uncleanable` is the smaller of the last stable offset and where the active segment begins. `cuts` changes when the
    log is cut: what was read of it before is not what is in it now.
    """

    log_start: int
    uncleanable: int
    active_first_ms: int
    cuts: int
