"""How fast the cleaner may read and write. Pure: bytes in, the moment to go on out."""

from __future__ import annotations

_NS_PER_S = 1_000_000_000
_SAVED_NS_MAX = 100_000_000


class Throttle:
    """A debt that is paid off by time; what was not used is saved for a tenth of a second at most."""

    __slots__ = ("_bytes_per_second", "_due_ns")

    def __init__(self, bytes_per_second: int) -> None:
        self._bytes_per_second = bytes_per_second
        self._due_ns = 0

    def set_rate(self, bytes_per_second: int) -> None:
        """Goes by a new rate from the next bytes on."""
        self._bytes_per_second = bytes_per_second

    def moved(self, length_bytes: int, now_ns: int) -> int:
        """Notes that bytes were moved; when the next may be, by CLOCK_MONOTONIC. Not above now: at once."""
        since_ns = max(self._due_ns, now_ns - _SAVED_NS_MAX)
        self._due_ns = since_ns + length_bytes * _NS_PER_S // self._bytes_per_second
        return self._due_ns
