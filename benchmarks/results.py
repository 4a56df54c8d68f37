"""A run as data: what was taken in each round, rows made of it, and the JSON file that keeps it."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from benchmarks.cases import CASES
from benchmarks.figures import FIGURES, Figure
from benchmarks.places import RESULTS

OURS = "appliance"
MOCK = "mock"
RIVALS = (MOCK, "kafka")
BARE = "bare"
"""No broker: the operation of the machine that a figure of the log is made of, taken beside it."""


@dataclass(frozen=True, slots=True)
class VoidCase:
    """Why a case of a round does not count. Round 0 is the trial start, case `*` the whole broker."""

    round: int
    broker: str
    case: str
    why: str


@dataclass(frozen=True, slots=True)
class Run:
    """All that one run took. `taken[broker][i]`: figures of round i + 1 by key, without the void ones."""

    date: str
    commit: str
    dirty: bool
    machine: dict[str, str | int]
    versions: dict[str, str]
    rounds: int
    pinned: str
    """Cores of the brokers, in runs of old: a run of today has settings."""
    taken: dict[str, list[dict[str, float]]]
    voids: list[VoidCase]
    settings: list[str] = field(default_factory=list)
    minutes: float = 0.0
    kind: str = ""
    """`scaling`, or empty for the usual cases."""
    began: str = ""
    """UTC, ISO 8601; not known of runs of old."""
    command: str = ""
    """By which it was made, and is made again; not known of runs of old."""
    awake_by: str = "spinning"
    """What idle cores did in the cases that keep them awake (`awake.py`); runs of old knew one way."""
    wakes_us: dict[str, float] = field(default_factory=dict)
    """µs to wake another core and be woken by it, by what idle cores do."""

    @property
    def name(self) -> str:
        """DATE-COMMIT, the name of its files; the kind behind it."""
        return "-".join(filter(None, (self.date, self.commit, "dirty" if self.dirty else "", self.kind)))

    def has_void(self, broker: str, case: str) -> bool:
        """Whether a round of a broker's case was void."""
        return any((each.broker, each.case) == (broker, case) for each in self.voids)


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over the rounds."""

    median: float
    lowest: float
    highest: float
    rounds: int

    @property
    def noise(self) -> float:
        """Half of the spread, as a share of the median."""
        return (self.highest - self.lowest) / 2 / abs(self.median) if self.median else 0.0


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of all brokers. `ratios[rival]` is ours by theirs, the median of those of each round; nothing is said
    of rounds in which theirs was nothing, or less: a heap that shrinks while connections come has no price for each."""

    figure: Figure
    values: dict[str, Spread]
    ratios: dict[str, float]
    ratio_noise: dict[str, float] = field(default_factory=dict)
    """Half of the spread of the rounds' ratios, as a share of their median: what drifted under both is not in it."""


def rows(run: Run) -> list[Row]:
    """A row for each figure of the page that any broker has."""
    return rows_of(run, FIGURES)


def rows_of(run: Run, figures: Iterable[Figure]) -> list[Row]:
    """A row for each of `figures` that any broker has."""
    made = []
    for figure in figures:
        values = {}
        for broker, rounds in run.taken.items():
            if got := [value for value in map(figure.of, rounds) if value is not None]:
                values[broker] = Spread(statistics.median(got), min(got), max(got), len(got))
        ratios, ratio_noise = {}, {}
        for rival in RIVALS:
            if rival == MOCK and not figure.is_beside_the_mock:
                continue
            pairs = zip(run.taken.get(OURS, []), run.taken.get(rival, []), strict=False)
            both = [
                mine / others
                for mine, others in ((figure.of(ours), figure.of(theirs)) for ours, theirs in pairs)
                if mine is not None and others is not None and others > 0
            ]
            if both:
                of_rounds = Spread(statistics.median(both), min(both), max(both), len(both))
                ratios[rival], ratio_noise[rival] = of_rounds.median, of_rounds.noise
        if values:
            made.append(Row(figure, values, ratios, ratio_noise))
    return made


def save(run: Run, stem: Path) -> Path:
    """Write `stem`.json."""
    path = stem.with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(run), indent=1, ensure_ascii=False) + "\n")
    return path


def load(path: Path) -> Run:
    """Read what `save` wrote."""
    data = json.loads(path.read_text())
    data["voids"] = [VoidCase(**void) for void in data["voids"]]
    return Run(**data)


def kept_runs(kind: str = "") -> list[Run]:
    """All kept runs of a kind, oldest first."""
    runs = (load(path) for path in sorted(RESULTS.glob("*.json")))
    return sorted((run for run in runs if run.kind == kind), key=_when)


def kept_before(run: Run) -> list[Run]:
    """All runs of its kind that were kept before this one, on a machine of the same kind, oldest first.

    Those whose cores were kept awake in another way come without what that was for: it is another figure.
    """
    return [
        other if other.awake_by == run.awake_by else _without_awake(other)
        for other in kept_runs(run.kind)
        if other.name != run.name
        and _when(other) <= _when(run)
        and other.machine.get("processor") == run.machine.get("processor")
        and other.machine.get("cores") == run.machine.get("cores")
        and other.pinned == run.pinned
        and any(other.taken.get(OURS, []))
    ]


def _without_awake(run: Run) -> Run:
    taken = {
        broker: [
            {key: value for key, value in figures.items() if not _was_kept_awake(key)} for figures in rounds
        ]
        for broker, rounds in run.taken.items()
    }
    return replace(run, taken=taken)


def _was_kept_awake(key: str) -> bool:
    """Whether cores were kept awake for this figure: all of such a case, and of a growth its lone record."""
    case, _, name = key.partition(".")
    if "@" in name:
        return name.startswith("p50_us@")
    known = CASES.get(case.rpartition("/")[2])  # runs of old had others
    return known is not None and known.awake


def _when(run: Run) -> tuple[str, str]:
    return run.date, run.began
