"""How a handler hands an answer to the transport that its request came by."""

from __future__ import annotations

from typing import Protocol

from appliance.requests.answer import Piece
from appliance.requests.session import Request


class Finish(Protocol):
    """The transport's side of an answer."""

    def __call__(self, pending: Request, answer: list[Piece]) -> None:
        """The answer is complete; an empty one sends nothing. Gives the request's block back."""
        ...


class Refuse(Protocol):
    """The transport's way to end the session of a request."""

    def __call__(self, pending: Request, why: str) -> None: ...
