"""How many connections there are from each address."""

from __future__ import annotations

import sys
from collections.abc import Mapping


class AddressCounts:
    """`by_host` has no zeros; `total` is their sum. A connection costs nothing here: it has no entry of its own."""

    __slots__ = ("by_host", "total")

    def __init__(self, by_host: Mapping[str, int] | None = None) -> None:
        self.by_host: dict[str, int] = {}
        self.total = 0
        for host, count in (by_host or {}).items():
            self.add(host, count)

    def add(self, host: str, count: int = 1) -> None:
        """Add `count`, which must be positive."""
        self.by_host[sys.intern(host)] = self.by_host.get(host, 0) + count
        self.total += count

    def remove(self, host: str, count: int = 1) -> bool:
        """Subtract `count`, at most down to 0; return whether there was any."""
        there = self.by_host.get(host, 0)
        if count < there:
            self.by_host[host] = there - count
        elif there:
            del self.by_host[host]
        self.total -= min(count, there)
        return there > 0
