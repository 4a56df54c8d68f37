"""The shape of a growth: constant, less than linear, linear, worse, or decreasing; from a few points.

A growth is y = a + b·m^p, m being how many more there are than at the first point, which gives `a`. So the excess
e = y - a is a straight line of slope p over m in a plot with two logarithmic axes. Only points whose excess is beyond
the noise count. A row has no trend if it ends where it began, or if on its way it goes back by as much as it moves from
the first point to the last. Then no law is named.

A shape is about the points of one run. Whether a figure got worse since an earlier run is said by `guard`, which says
that it *fell*. So no shape has this name.

    n       1      10     100    1,000   10,000
    y      80      80      81       88      160        e: 0, 0, 1, 8, 80   →   p = 1, linear, b = 0.008
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

NOISE_SHARE = 0.25
"""A figure that moves less than this is constant on a machine as noisy as those we know."""
EXCESS_SHARE = 0.05
STRAIGHT = (0.8, 1.2)
MILD = 0.4
NEARLY_SHARE = 0.5
"""A curve that has flattened is nearly constant only where all of it rose less than this."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A name, and the law in words with its constants."""

    name: str
    exponent: float
    each: float
    """Excess at the last point, for each that it has more than the first."""


def shape(points: Sequence[tuple[float, float]]) -> Shape:
    """Of (n, y) with n rising. At least two points."""
    (first_n, first), (last_n, last) = points[0], points[-1]
    each = (last - first) / (last_n - first_n)
    highest = max(abs(y - first) for _, y in points)
    if highest <= NOISE_SHARE * max(abs(first), 1e-9):
        return Shape("constant", 0.0, each)
    if abs(last - first) <= NOISE_SHARE * abs(first):
        return Shape("no trend", 0.0, each)
    sign = 1 if last >= first else -1
    back = _way_back([sign * y for _, y in points])
    if back >= abs(last - first) and back > NOISE_SHARE * abs(first):
        return Shape("no trend", 0.0, each)
    beyond = EXCESS_SHARE * abs(first)
    excess = [
        (math.log(n - first_n), math.log(sign * (y - first)))
        for n, y in points[1:]
        if sign * (y - first) > beyond
    ]
    if len(excess) < 2:
        # One point stands out of a flat row: its step is as steep as a line at least, if it is the last.
        return Shape("decreases at the end" if sign < 0 else "linear at most, from the last point", 1.0, each)
    tail = excess[-3:]
    mean_x = sum(x for x, _ in tail) / len(tail)
    mean_y = sum(y for _, y in tail) / len(tail)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in tail) / sum((x - mean_x) ** 2 for x, _ in tail)
    if sign < 0:
        return Shape("decreases", slope, each)
    if slope > STRAIGHT[1]:
        return Shape(f"worse than linear, n^{slope:.1f}", slope, each)
    if slope >= STRAIGHT[0]:
        return Shape("linear", slope, each)
    is_nearly_constant = slope < MILD and last - first <= NEARLY_SHARE * abs(first)
    return Shape("nearly constant" if is_nearly_constant else "less than linear", slope, each)


def _way_back(rising: Sequence[float]) -> float:
    """Return by how much a row that should rise comes down from one of its points to a later one, at most."""
    highest, back = rising[0], 0.0
    for y in rising:
        highest = max(highest, y)
        back = max(back, highest - y)
    return back
