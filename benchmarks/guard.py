"""The regression guard: rows that fell by more than the noise since the last kept run.

Where both runs have a rival's figure too, the ratio is compared, because a slower machine slows both: to the mock,
else to Apache Kafka; else the figure itself. A row fell when it got worse by more than 5 % and by more than the noise
(half the spread) of either run.
"""

from dataclasses import dataclass

from benchmarks.figures import Better
from benchmarks.results import OURS, RIVALS, Row, Run, rows

SMALLEST_FALL = 0.05


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
    before = {row.figure.key: row for row in rows(kept)}
    found = []
    for row in rows(run):
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
        if worse > max(SMALLEST_FALL, _noise(row, beside), _noise(old, beside)):
            found.append(Fall(row=row, before=was, now=now, beside=beside))
    return sorted(found, key=lambda fall: -fall.share)


def _noise(row: Row, beside: str | None) -> float:
    return max(spread.noise for name, spread in row.values.items() if name in (OURS, beside))
