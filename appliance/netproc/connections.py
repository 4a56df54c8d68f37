"""The open connections of one network process, found by their descriptors.

The system gives the lowest free number to a new descriptor, so the places lie in one row: 8 bytes each, where a
dictionary takes 60 with its keys.
"""

from __future__ import annotations

from appliance.netproc.connection import Connection


class Connections:
    """Those that are open, at any time. `get` is O(1), `all` O(the largest descriptor)."""

    __slots__ = ("_count", "_places")

    def __init__(self) -> None:
        self._places: list[Connection | None] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, descriptor: int) -> Connection | None:
        """The connection whose socket that is; None where it is something else's."""
        places = self._places
        return places[descriptor] if descriptor < len(places) else None

    def add(self, connection: Connection) -> None:
        """Its place must be free: a descriptor is one socket's."""
        places, descriptor = self._places, connection.fd
        if descriptor >= len(places):
            places.extend([None] * (descriptor + 1 - len(places)))
        places[descriptor] = connection
        self._count += 1

    def remove(self, connection: Connection) -> None:
        """Before its socket is closed."""
        self._places[connection.fd] = None
        self._count -= 1

    def all(self) -> list[Connection]:
        """In the order of their descriptors."""
        return [connection for connection in self._places if connection is not None]
