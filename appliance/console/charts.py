"""Shapes of charts that the server draws: bars over time, and spans of a timeline. Without I/O.

Units are those of an SVG picture, which is WIDTH wide. A browser that runs no script shows them as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

WIDTH: Final = 300.0
HEIGHT: Final = 80.0
LEAST: Final = 1.0
"""A bar or span that is there is never narrower or lower."""


class Bar(NamedTuple):
    """A bar from `y` down to HEIGHT."""

    x: float
    y: float
    width: float
    height: float


def bars(values: Mapping[int, int], *, first: int, last: int, width: int, highest: int) -> list[Bar]:
    """Return a bar for each value above 0.

    Args:
        values: place → value.
        first, last: the places at the two ends of the chart.
        width: of a bar, in units of a place.
        highest: the value of a bar of full height.
    """
    span = max(last - first + width, 1)
    found = []
    for place, value in sorted(values.items()):
        if value <= 0:
            continue
        height = max(LEAST, HEIGHT * value / max(highest, 1))
        bar_width = max(LEAST, WIDTH * width / span * 0.9)
        found.append(
            Bar(
                round(WIDTH * (place - first) / span, 2),
                round(HEIGHT - height, 2),
                round(bar_width, 2),
                round(height, 2),
            )
        )
    return found


def span(begin: int, end: int, *, first: int, last: int) -> tuple[float, float]:
    """Return x and width of what lasted from `begin` to `end`, in a picture from `first` to `last`."""
    whole = max(last - first, 1)
    begin, end = min(max(begin, first), last), min(max(end, first), last)
    width = max(LEAST, WIDTH * (end - begin) / whole)
    return round(min(WIDTH * (begin - first) / whole, WIDTH - width), 2), round(width, 2)
