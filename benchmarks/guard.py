"""The regression guard: rows that fell by more than the noise since the last kept run. For every kind of page.

What others gave in the same run says how fast the machine was, so the ratio is compared where both runs have it: to
whoever took part in most rounds of the mock, Apache Kafka and the bare operation (`make bench-log`), the first of these
where several did; else the figure itself. A row fell when that got worse by more than 5 % and by more than the noise of
either run: half the spread of what is compared, which of a ratio is that of its rounds' ratios.

One round has no spread and two have hardly one: such a row is taken to be at least as noisy as rows of its unit are in
the same run, or, where nothing was taken twice, as a quarter. Nor does its ratio count alone, for it may be the other
that had a good minute: its figure must have got worse by as much.
"""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks import growth
from benchmarks.figures import Better
from benchmarks.results import BARE, OURS, RIVALS, Row, Run, rows
from benchmarks.shapes import NOISE_SHARE

SMALLEST_FALL = 0.05
ROUNDS_WITH_SPREAD = 3


@dataclass(frozen=True, slots=True)
class Fall:
    """A row that got worse: `share` of what it was."""

    row: Row
    before: float
    now: float
    beside: str | None
    """Whose ratio was compared."""

    @property
    def share(self) -> float:
        return abs(self.now - self.before) / self.before

    def text(self) -> str:
        figure, what = self.row.figure, f"× {self.beside}" if self.beside else self.row.figure.unit
        key = "" if figure.title in figure.key else f" ({figure.key})"
        return f"{figure.title}{key}: {self.before:,.3g} → {self.now:,.3g} {what}, {self.share:.0%} worse"


def falls(run: Run, *kept: Run) -> list[Fall]:
    """Rows of ours in `run` that are worse than in those kept before it, oldest first; the worst first."""
    return fallen(every_row(run), *map(every_row, kept))


def every_row(run: Run) -> list[Row]:
    """Those of the usual cases, and the points of each growth."""
    return rows(run) + growth.rows(run)


def told(made: Sequence[Row], *kept: Sequence[Row], since: str) -> str:
    """The section of a page: what fell since the last of those kept, the run of that name, or that nothing did."""
    before = kept[-1]
    compared = len(_compared(made, before))
    if not compared:
        return f"No row could be compared with {since}."
    found = fallen(made, *kept)
    if found:
        listed = "\n".join(f"- {fall.text()}" for fall in found)
        fell = (
            f"## Fell since {since}\n\nOf {compared} rows these got worse by more than the noise:\n\n{listed}"
        )
    else:
        fell = f"None of {compared} rows fell by more than the noise since {since}."
    if lost := gone(made, before):
        fell += f"\n\nWithout a figure now, of those that {since} had: {'; '.join(row.figure.title for row in lost)}."
    return fell


def gone(made: Sequence[Row], before: Sequence[Row]) -> list[Row]:
    """Rows that ours had a figure for and has none: their case was void, or did not take part."""
    now = {row.figure.key for row in made if OURS in row.values}
    return [row for row in before if OURS in row.values and row.figure.key not in now]


def fallen(made: Sequence[Row], *kept: Sequence[Row]) -> list[Fall]:
    """Rows of ours in `made` that are worse than in those of the runs kept, oldest first; the worst first."""
    if not kept:
        return []
    before = kept[-1]
    noise, noise_before = _Noise(made), _Noise(before)
    found = []
    for row, old in _compared(made, before):
        beside = _beside(row, old)
        itself = max(old.values[OURS].median, _floor(old)), row.values[OURS].median
        was, now = (old.ratios[beside], row.ratios[beside]) if beside and old.ratios[beside] > 0 else itself
        bound = max(SMALLEST_FALL, noise.of(row, beside), noise_before.of(old, beside))
        counts_alone = _rounds(row, beside) >= ROUNDS_WITH_SPREAD <= _rounds(old, beside)
        if _worse(row, was, now) > bound and (counts_alone or _worse(row, *itself) > bound):
            found.append(Fall(row=row, before=was, now=now, beside=beside))
    return sorted(found, key=lambda fall: -fall.share)


def _beside(row: Row, old: Row) -> str | None:
    """Whose ratio is compared: of those that both have the one with most rounds, and of these the first."""
    both = [one for one in (*RIVALS, BARE) if one in row.ratios and one in old.ratios]
    return max(both, key=lambda one: min(_rounds(row, one), _rounds(old, one)), default=None)


def _compared(made: Sequence[Row], before: Sequence[Row]) -> list[tuple[Row, Row]]:
    """Rows that ours has a figure for in both, with those of before. What the machine gives by itself is not ours."""
    of_before = {row.figure.key: row for row in before}
    return [
        (row, old)
        for row in made
        if not row.figure.is_of_the_machine
        and (old := of_before.get(row.figure.key)) is not None
        and OURS in row.values
        and OURS in old.values
        and max(old.values[OURS].median, _floor(old)) > 0
    ]


def _floor(row: Row) -> float:
    """What is as good as nothing, of a row where less is better: a tenth of its smallest bound."""
    absolute = [bound.bound for bound in row.figure.goals if bound.beside is None]
    return min(absolute) / 10 if absolute and row.figure.better is Better.LESS else 0.0


def _worse(row: Row, was: float, now: float) -> float:
    """By which share of what it was."""
    return ((was - now) if row.figure.better is Better.MORE else (now - was)) / was


def _rounds(row: Row, beside: str | None) -> int:
    """Fewest of ours and of the one beside it."""
    return min(spread.rounds for name, spread in row.values.items() if name in (OURS, beside))


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
        self._of_any = statistics.median(everywhere) if everywhere else NOISE_SHARE

    def of(self, row: Row, beside: str | None) -> float:
        """Of the ratio, where it is one of three rounds; else the larger one of ours and of the one beside it."""
        if beside in row.ratio_noise and _rounds(row, beside) >= ROUNDS_WITH_SPREAD:
            return row.ratio_noise[beside]
        own = max(spread.noise for name, spread in row.values.items() if name in (OURS, beside))
        if _rounds(row, beside) >= ROUNDS_WITH_SPREAD:
            return own
        return max(own, self._of_unit.get(row.figure.unit, self._of_any))
