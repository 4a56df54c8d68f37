"""Long lists in pages. Without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from appliance.console.visit import Visit

PER_PAGE: Final = 50

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Part(Generic[T]):
    """Some rows of a list. Pages are counted from 1."""

    rows: Sequence[T]
    number: int
    pages: int
    total: int
    first: int
    """Index of the first row in the whole list."""

    @property
    def previous(self) -> int | None:
        """The page before."""
        return self.number - 1 if self.number > 1 else None

    @property
    def next(self) -> int | None:
        """The page behind."""
        return self.number + 1 if self.number < self.pages else None


def part_of(visit: Visit, rows: Sequence[Any], *, per_page: int = PER_PAGE) -> Part[Any]:
    """Return the page of a list that the query names; the last one for a number beyond."""
    pages = max(1, -(-len(rows) // per_page))
    number = min(visit.number("page", 1, minimum=1), pages)
    first = (number - 1) * per_page
    return Part(rows[first : first + per_page], number, pages, len(rows), first)
