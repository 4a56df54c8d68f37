"""Work in pieces: generators that yield after each millisecond of work or less, so that others have their turn.

    Steps[T]     yields None after a piece of work, and returns a T

What the generator has looked at may have changed when it goes on: it keeps over a yield only what may be out of date.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

T = TypeVar("T")
S = TypeVar("S")

Steps = Generator[None, None, T]

PIECE: Final = 64
"""Elements of some microseconds each in one piece of work."""


def in_pieces(make: Callable[[S], T], items: Iterable[S]) -> Steps[tuple[T, ...]]:
    """Return `make` of each item; yield after every PIECE of them."""
    made: list[T] = []
    for number, item in enumerate(items, 1):
        made.append(make(item))
        if not number % PIECE:
            yield None
    return tuple(made)
