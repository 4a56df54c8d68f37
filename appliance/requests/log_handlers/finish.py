"""How a log handler says that a request is answered."""

from __future__ import annotations

from typing import Protocol

from appliance.netproc.connection import Pending, Piece


class Finish(Protocol):
    """The processor's side of an answer."""

    def __call__(self, pending: Pending, answer: list[Piece]) -> None:
        """The answer is complete; an empty one sends nothing. Gives the request's block back."""
        ...


class Refuse(Protocol):
    """The processor's way to end a connection."""

    def __call__(self, pending: Pending, why: str) -> None: ...
