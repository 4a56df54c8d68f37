"""How much of what is there one micro-batch takes. Pure: numbers and a clock's reading in, numbers out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_connector.offsets import Name


def admitted(available: Mapping[Name, int], most: int | None) -> dict[Name, int]:
    """Of each partition how many offsets are taken: at most `most` in all, in proportion to what is there.

    Every partition that has something gets at least one; where `most` does not reach round, those after the last ones
    that got something come first, so none is left out for ever.
    """
    sizes = {name: size for name, size in sorted(available.items()) if size > 0}
    total = sum(sizes.values())
    if most is None or most >= total:
        return sizes
    if most < len(sizes):
        names = list(sizes)
        turn = total % len(names)
        return dict.fromkeys((names[turn:] + names[:turn])[:most], 1)
    rest, beyond = most - len(sizes), total - len(sizes)
    return {name: 1 + rest * (size - 1) // beyond for name, size in sizes.items()}


@dataclass(slots=True)
class Patience:
    """Waits until enough is there, and not longer than `delay_ms` since the last micro-batch."""

    least: int | None
    delay_ms: int
    last_ms: float | None = None

    def lets_pass(self, available: int, *, now_ms: float) -> bool:
        """Whether a micro-batch is to be made of `available` offsets now; the first one always is."""
        waited = self.last_ms is None or now_ms - self.last_ms > self.delay_ms
        if available == 0 or (self.least is not None and available < self.least and not waited):
            return False
        self.last_ms = now_ms
        return True
