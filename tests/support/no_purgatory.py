"""The purgatory process is down, as far as whoever holds answers can tell."""

from __future__ import annotations


class NoPurgatory:
    """A `Registrar` that registers nothing: the owner expires its answers itself."""

    def register(self, identity: int, due_ns: int) -> bool:
        return False

    def release(self, identity: int) -> None: ...

    def publish(self) -> None: ...
