"""The regression guard: rows that fell by more than the noise since the last kept run.

Where both runs have a rival's figure too, the ratio is compared, because a slower machine slows both: to the mock,
else to Apache Kafka; else the figure itself. A row fell when it got worse by more than 5 % and by more than the noise
(half the spread) of either run. One round has no spread and two have hardly one: such a row is taken to be at least as
noisy as rows of its unit are in the same run.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.figures import Better
from benchmarks.results import OURS, RIVALS, Row, Run, rows

SMALLEST_FALL = 0.05
ROUNDS_WITH_SPREAD = 3


@dataclass(frozen=True, slots=True)
class Fall:
    """A row that got worse: `share` of what it was."""

    row: Row
    before: float
    now: float
    beside: str | None
    """The rival whose ratio was compared."""

    @property
    def share(self) -> float:
        return abs(self.now - self.before) / self.before

    def text(self) -> str:
        what = f"× {self.beside}" if self.beside else self.row.figure.unit
        return (
            f"{self.row.figure.title} ({self.row.figure.key}): {self.before:,.3g} → {self.now:,.3g} {what},"
            f" {self.share:.0%} worse"
        )


def falls(run: Run, kept: Run) -> list[Fall]:
    """Rows of ours in `run` that are worse than in `kept`, worst first."""
    made, made_before = rows(run), rows(kept)
    noise, noise_before = _Noise(made), _Noise(made_before)
    before = {row.figure.key: row for row in made_before}
    found = []
    for row in made:
        old = before.get(row.figure.key)
        if old is None or OURS not in row.values or OURS not in old.values:
            continue
        beside = next((rival for rival in RIVALS if rival in row.ratios and rival in old.ratios), None)
        was, now = (
            (old.ratios[beside], row.ratios[beside])
            if beside
            else (old.values[OURS].median, row.values[OURS].median)
        )
        if was <= 0:
            continue
        worse = (was - now) / was if row.figure.better is Better.MORE else (now - was) / was
        if worse > max(SMALLEST_FALL, noise.of(row, beside), noise_before.of(old, beside)):
            found.append(Fall(row=row, before=was, now=now, beside=beside))
    return sorted(found, key=lambda fall: -fall.share)


class _Noise:
    """What varies by itself in one run: half the spread, as a share of the median."""

    def __init__(self, made: Sequence[Row]) -> None:
        by_unit: defaultdict[str, list[float]] = defaultdict(list)
        for row in made:
            for spread in row.values.values():
                if spread.rounds > 1:
                    by_unit[row.figure.unit].append(spread.noise)
        self._of_unit = {unit: statistics.median(seen) for unit, seen in by_unit.items()}
        everywhere = [one for seen in by_unit.values() for one in seen]
        self._of_any = statistics.median(everywhere) if everywhere else 0.0

    def of(self, row: Row, beside: str | None) -> float:
        """The larger one of ours and of the broker beside it."""
        counted = [spread for name, spread in row.values.items() if name in (OURS, beside)]
        own = max(spread.noise for spread in counted)
        if min(spread.rounds for spread in counted) >= ROUNDS_WITH_SPREAD:
            return own
        return max(own, self._of_unit.get(row.figure.unit, self._of_any))
