"""The regression guard: rows that fell by more than the noise since the last kept run, or that slid over the last five.
For every kind of page.

What others gave in the same run says how fast the machine was, so the ratio is compared where both runs have it: to
whoever took part in most rounds of the mock, Apache Kafka and the bare operation (`make bench-log`), the first of these
where several did; else the figure itself. A row fell when that got worse by more than 5 % and by more than the noise.

**Noise within a run** is the larger of both runs': half the spread of what is compared, which of a ratio is that of its
rounds' ratios. One round has no spread and two have hardly one: such a row is taken to be at least as noisy as rows of
its unit are in the same run, or, where nothing was taken twice, as a quarter. Nor does its ratio count alone, for it
may be the other that had a good minute: its figure must have got worse by as much.

**Noise between runs**: rounds know nothing of what differs from run to run, the host and the minute. Where four or
more of the last five kept runs have what is compared, it is twice the median step from one of them to the next, better
or worse. The median, since a gain that lasts is one large step and no noise: by the largest one a row would be
unguarded just after it gained. Twice, since every other step is larger than the median one. What is worse than in all
of these runs, by more than the noise within a run, fell however much it moved before. (Of three figures the median step
would be the mean of two, and hide that all was lost that one of them had gained.)

**Slid** is what did not fall since the last run, and is worse than the median of these runs by more than the noise: who
compares with the last alone never sees what goes in small steps. Of a steady slide the median lies three steps back:

    kept 100  96  92  88  85, now 82    since the last: 4 %; steps of 4 %, so noise of 8 %
                  │                     since the median: 11 %, slid
                  └─ median

What fell and stays down is named as slid in the next runs, until most of the five are like it.

Not compared is a row that the last kept run has no figure of, or none above nothing: there is no share of it to lose.
"""

import statistics
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import itemgetter

from benchmarks import growth
from benchmarks.figures import Better
from benchmarks.results import BARE, OURS, RIVALS, Row, Run, rows
from benchmarks.shapes import NOISE_SHARE

SMALLEST_FALL = 0.05
ROUNDS_WITH_SPREAD = 3
RUNS, RUNS_WITH_STEPS = 5, 4
"""Over how many kept runs it is seen what a row moves by, and of how many at least."""
_LAST = itemgetter(-1)


@dataclass(frozen=True, slots=True)
class Fall:
    """A row that got worse: `share` of what it was."""

    row: Row
    before: float
    now: float
    beside: str | None
    """Whose ratio was compared."""
    over: int = 0
    """Slid: of how many runs `before` is the median. 0: fell, it is what the last one had."""

    @property
    def share(self) -> float:
        return abs(self.now - self.before) / self.before

    def text(self) -> str:
        figure, what = self.row.figure, f"× {self.beside}" if self.beside else self.row.figure.unit
        key = "" if figure.title in figure.key else f" ({figure.key})"
        return f"{figure.title}{key}: {self.before:,.3g} → {self.now:,.3g} {what}, {self.share:.0%} worse"


def falls(run: Run, *kept: Run) -> list[Fall]:
    """Rows of ours in `run` that are worse than in those kept before it, which come oldest first. The worst first."""
    return fallen(every_row(run), *map(every_row, kept))


def every_row(run: Run) -> list[Row]:
    """Those of the usual cases, and the points of each growth."""
    return rows(run) + growth.rows(run)


def told(made: Sequence[Row], *kept: Sequence[Row], since: str) -> str:
    """The section of a page: what fell since the last of those kept, the run of that name, and what slid."""
    compared = len(_compared(made, kept[-1]))
    if not compared:
        return f"No row could be compared with {since}."
    fell, slid = _apart(fallen(made, *kept))
    over = _looked_back(kept)
    moved = f"which includes the changes of a row over the last {over} kept runs"
    if fell:
        parts = [
            f"## {_fell_title(since)}",
            f"{compared} rows were compared. These got worse by more than the noise"
            + (f" ({moved}), or are worse than in all of these runs:" if over else ":"),
            _listed(fell),
        ]
    else:
        parts = [
            f"None of {compared} rows fell since {since} by more than the noise{f', {moved}' if over else ''}."
        ]
    if slid:
        parts += [
            f"## {_slid_title(over)}",
            f"{compared} rows were compared. These did not fall since the last run, but are worse than the median of "
            f"the last {over} kept runs by more than the noise:",
            _listed(slid),
        ]
    if lost := gone(made, kept[-1]):
        titles = "; ".join(row.figure.title for row in lost)
        parts.append(f"Rows that {since} had and this run does not have: {titles}.")
    return "\n\n".join(parts)


def outcome(found: Sequence[Fall], kept: Sequence[Run], page: str = "") -> str:
    """How many fell and how many slid, with links to where `page`, or this one, names them."""
    fell, slid = _apart(found)
    since, over = kept[-1].name, _looked_back(kept)
    return " ".join(
        f"{len(those)} {'row' if len(those) == 1 else 'rows'} "
        f"[{what}]({page}#{title.lower().replace(' ', '-')}){beyond}."
        for those, what, title, beyond in (
            (fell, "fell", _fell_title(since), f" by more than the noise since {since}"),
            (slid, "slid", _slid_title(over), f": worse than the median of the last {over} kept runs"),
        )
        if those
    )


def _apart(found: Sequence[Fall]) -> tuple[list[Fall], list[Fall]]:
    """Which fell, and which slid."""
    return [fall for fall in found if not fall.over], [fall for fall in found if fall.over]


def _looked_back(kept: Sequence[object]) -> int:
    """Over how many kept runs it is seen what rows move by; 0 when there are too few."""
    return min(RUNS, len(kept)) if len(kept) >= RUNS_WITH_STEPS else 0


def _fell_title(since: str) -> str:
    return f"Fell since {since}"


def _slid_title(over: int) -> str:
    return f"Slid over the last {over} kept runs"


def _listed(found: Sequence[Fall]) -> str:
    return "\n".join(f"- {fall.text()}" for fall in found)


def gone(made: Sequence[Row], before: Sequence[Row]) -> list[Row]:
    """Rows that ours had a figure for and has none: their case was void, or did not take part."""
    now = {row.figure.key for row in made if OURS in row.values}
    return [row for row in before if OURS in row.values and row.figure.key not in now]


def fallen(made: Sequence[Row], *kept: Sequence[Row]) -> list[Fall]:
    """Rows of ours in `made` that are worse than in the runs kept, which come oldest first. The worst first."""
    if not kept:
        return []
    noise, noise_before = _Noise(made), _Noise(kept[-1])
    by_key = [{row.figure.key: row for row in of_run} for of_run in kept[-RUNS:]]
    found = []
    for row, old in _compared(made, kept[-1]):
        beside = _beside(row, old)
        fall = _fall(
            row,
            [of_run[row.figure.key] for of_run in by_key if row.figure.key in of_run],
            beside,
            noise_within=max(SMALLEST_FALL, noise.of(row, beside), noise_before.of(old, beside)),
            counts_alone=_rounds(row, beside) >= ROUNDS_WITH_SPREAD <= _rounds(old, beside),
        )
        if fall is not None:
            found.append(fall)
    return sorted(found, key=lambda fall: -fall.share)


def _fall(
    row: Row, before: Sequence[Row], beside: str | None, *, noise_within: float, counts_alone: bool
) -> Fall | None:
    """Of a row that the runs `before` had, the last of them in any case; None where it neither fell nor slid."""
    have = [each for each in before if _level(each, beside) > 0 and _level(each, None) > 0]
    figures, alone = ([_level(each, of) for each in have] for of in (beside, None))

    def is_worse(than: Callable[[Sequence[float]], float], noise: float) -> bool:
        by, by_itself = (
            _worse(row, than(figures), _level(row, beside)),
            _worse(row, than(alone), _level(row, None)),
        )
        return by > noise and (counts_alone or by_itself > noise)

    has_steps = len(have) >= RUNS_WITH_STEPS
    noise = max(noise_within, _noise_between(row, figures)) if has_steps else noise_within
    worst = min if row.figure.better is Better.MORE else max
    if is_worse(_LAST, noise) or (has_steps and is_worse(worst, noise_within)):
        return Fall(row=row, before=figures[-1], now=_level(row, beside), beside=beside)
    if has_steps and is_worse(statistics.median, noise):
        was = statistics.median(figures)
        return Fall(row=row, before=was, now=_level(row, beside), beside=beside, over=len(have))
    return None


def _noise_between(row: Row, figures: Sequence[float]) -> float:
    """Two median steps from a run to the next, as a share. Steps are factors: what halves and doubles is as it was."""
    step = statistics.median(max(pair) / min(pair) for pair in pairwise(figures))
    return _worse(row, step**2, 1.0) if row.figure.better is Better.MORE else _worse(row, 1.0, step**2)


def _level(row: Row, beside: str | None) -> float:
    """What is compared of a row, its ratio or its figure; 0 where it has none."""
    if beside:
        return row.ratios.get(beside, 0.0)
    return max(row.values[OURS].median, _floor(row)) if OURS in row.values else 0.0


def _beside(row: Row, old: Row) -> str | None:
    """Whose ratio is compared: of those that both have the one with most rounds, and of these the first."""
    both = [one for one in (*RIVALS, BARE) if one in row.ratios and old.ratios.get(one, 0.0) > 0]
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
        and _level(old, None) > 0
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
