"""The vocabulary of work in pieces: what a request's generator yields, and the usual ways to cut.

A generator of type `Steps[T]` yields

    None     after a piece of work, less than a millisecond of it
    PAUSE    when nothing is to be done until somebody calls `LongRequests.resume`
    an Ask   when it needs the controller; the yield returns the answer, None where none came in time

and returns a T. `LongRequests` runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from appliance.channels.control_channel import Body
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.headers import response_frame
from appliance.protocol.messages import encode_response_body_in_pieces
from appliance.requests.log_handlers.finish import Finish
from appliance.requests.session import Request

T = TypeVar("T")
S = TypeVar("S")

ASKED_AT_ONCE: Final = 500
"""Topics, partitions or resources in one question to the controller: some 20 ms of its time."""
_PIECE: Final = 32


class Pause:
    """Only PAUSE is one."""


PAUSE: Final = Pause()


class Ask(msgspec.Struct, frozen=True):
    """One question to the controller. The first one of a request fixes the deadline of all."""

    body: Body
    timeout_ms: int


Steps = Generator[Ask | Pause | None, Any, T]


def in_pieces(make: Callable[[S], T], items: Iterable[S], *, piece: int = _PIECE) -> Steps[tuple[T, ...]]:
    """Return `make` of each item; yield after every `piece` of them."""
    made: list[T] = []
    for number, item in enumerate(items, 1):
        made.append(make(item))
        if not number % piece:
            yield None
    return tuple(made)


def chunks(items: Sequence[T]) -> Iterable[Sequence[T]]:
    """Return the items in parts that one question to the controller may hold."""
    return (items[first : first + ASKED_AT_ONCE] for first in range(0, len(items), ASKED_AT_ONCE))


def answering(finish: Finish, pending: Request, response: object) -> Steps[None]:
    """Encode a response in pieces and hand it to `finish`."""
    body = yield from encode_response_body_in_pieces(pending.api_key, pending.version, response)
    header = ApiKey(pending.api_key).response_header_version(pending.version)
    finish(pending, [response_frame(header, pending.correlation_id, body)])
