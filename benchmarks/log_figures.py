"""The log's own figures, without clients: what `make bench-log` measures, and the page it keeps.

Each part is a program of `micro/`, run alone one after the other; the page carries what they print. `rows()` reads a
page's figures again, so that the regression guard compares it with those kept.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from benchmarks import guard, machine
from benchmarks.cases.case import own_seconds, shares
from benchmarks.figures import Better, Figure
from benchmarks.places import CACHE, RESULTS, ROOT
from benchmarks.results import BARE, OURS, Row, Spread
from benchmarks.source import name_of_now
from benchmarks.void import Busy

PARTS: Final = (
    ("Append, beside CRC-32C and one `pwrite` of the same bytes", ("log_append",)),
    ("Group commit: acknowledged records a second, beside the disk's bare fdatasync", ("group_commit",)),
    ("Lookups by offset and by timestamp", ("log_lookup", "--segments", "10,10000")),
    ("Recovery of 1 GB", ("log_recovery", "--gigabytes", "1")),
    ("Recovery of 10 GB", ("log_recovery", "--gigabytes", "10")),
    ("Operations through the purgatory, beside many that wait", ("purgatory",)),
    ("Compaction of a million keys", ("compaction", "--keys", "1000000")),
    ("Compaction of ten million keys", ("compaction", "--keys", "10000000")),
)
MORE, LESS = Better.MORE, Better.LESS


@dataclass(frozen=True, slots=True)
class Line:
    """A kind of line that a program prints: `what` names the row, `bare` the same operation without us."""

    pattern: re.Pattern[str]
    columns: tuple[tuple[str, str, Better], ...]
    """Group, unit, and which way is better; the name of more than one group tells the rows apart."""


LINES: Final = (
    Line(
        re.compile(r"^(?P<what>\d.*?) {2,}(?P<µs>[\d.]+) +(?P<bare>[\d.]+) +-?[\d.]+ +[\d.]+$", re.M),
        (("µs", "µs", LESS),),
    ),
    Line(re.compile(r"^(?P<what>read, .*?) {2,}(?P<µs>[\d.]+)$", re.M), (("µs", "µs", LESS),)),
    Line(
        re.compile(r"^(?P<what>(fsync|page-cache) +\d+ producers): +(?P<rate>[\d,]+)/s", re.M),
        (("rate", "/s", MORE),),
    ),
    Line(
        re.compile(r"^(?P<what>by .*?) {2,}(?P<few>[\d.]+) +(?P<many>[\d.]+)$", re.M),
        (("few", "µs", LESS), ("many", "µs", LESS)),
    ),
    Line(
        re.compile(r"^(?P<what>recovery, .*?) {2,}[\d.]+ +(?P<speed>\d+)$", re.M), (("speed", "MB/s", MORE),)
    ),
    Line(
        re.compile(r"^ +(?P<what>\d+) +(?P<poked>[\d,]+) +(?P<cancelled>[\d,]+) +(?P<expired>[\d,]+)$", re.M),
        (("poked", "/s", MORE), ("cancelled", "/s", MORE), ("expired", "/s", MORE)),
    ),
    Line(
        re.compile(
            r"^.* (?P<what>)in \d+ rounds, .*: (?P<speed>\d+) MB/s, (?P<processor>[\d.]+) CPU s/GB; "
            r"peak \+(?P<memory>\d+) MiB",
            re.M,
        ),
        (("speed", "MB/s", MORE), ("processor", "CPU s/GB", LESS), ("memory", "MiB", LESS)),
    ),
)


def measure(wanted: Iterable[str] = (), *, busy_limit: float) -> tuple[Path, bool]:
    """Runs the parts, those of the programs `wanted` or all; the page, and whether a row fell or a part is void.

    A page with all parts is kept; one that lacks some, since they were not wanted or others used the machine, is none
    to compare with.

    Raises:
        SystemExit: a part failed, or there is none of that name; nothing is kept.
    """
    names = set(wanted)
    if unknown := names - {arguments[0] for _, arguments in PARTS}:
        raise SystemExit(f"no part {', '.join(sorted(unknown))}")
    build = "compiled" if any((ROOT / "appliance").rglob("*.so")) else "pure"
    about = ", ".join(f"{key} {value}" for key, value in machine.description().items())
    began = datetime.now(UTC).isoformat(timespec="seconds")
    text = f"# The log by itself, {name_of_now()}\n\n{build} build; {about}. One run, wall time; began {began}.\n"
    patience, whole = machine.Patience(), not names
    for title, (program, *arguments) in PARTS:
        if names and program not in names:
            continue
        print(f"{title} …", file=sys.stderr, flush=True)
        try:
            printed = _printed(program, arguments, patience, busy_limit)
        except Busy as busy:
            printed, whole = f"void: {busy}", False
        print(printed, flush=True)
        shown = " ".join(("python -m", f"benchmarks.micro.{program}", *arguments))
        text += f"\n## {title}\n\n`{shown}`\n\n```\n{printed.strip()}\n```\n"
    path = (RESULTS if whole else CACHE / "results") / f"{name_of_now()}-log.md"
    kept = [page for page in kept_pages() if page != path and _alike(page.read_text(), text)]
    fell = False
    if kept:
        made, before = rows(text), [rows(page.read_text()) for page in kept]
        section = guard.told(made, *before, since=kept[-1].stem)
        print(section)
        text += f"\n{section}\n"
        fell = bool(guard.fallen(made, *before))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path, fell or "\nvoid: " in text


def _printed(program: str, arguments: list[str], patience: machine.Patience, busy_limit: float) -> str:
    """What a program prints. Raises Busy when others used the machine meanwhile, twice; SystemExit when it fails."""
    for attempt in (1, 2):
        patience.await_quiet(busy_limit)
        before, ours = machine.Activity.now(), own_seconds()
        command = [sys.executable, "-m", f"benchmarks.micro.{program}", *arguments]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{program} failed")
        try:
            shares(before, machine.Activity.now(), ours_seconds=own_seconds() - ours, limit_share=busy_limit)
        except Busy:
            if attempt == 2:
                raise
            continue
        break
    return done.stdout


def kept_pages() -> list[Path]:
    """All kept pages, oldest first."""
    return sorted(
        RESULTS.glob("*-log.md"), key=lambda page: (page.name[:10], _began(page.read_text()), page.name)
    )


def rows(text: str) -> list[Row]:
    """Every figure of a page that the guard looks at."""
    return [
        row for title, printed in _sections(text) for line in LINES for row in _read(title, line, printed)
    ]


def _sections(text: str) -> Iterator[tuple[str, str]]:
    """Title and what was printed below it."""
    for section in text.split("\n## ")[1:]:
        title, _, rest = section.partition("\n")
        yield title.partition(",")[0].partition(":")[0], rest


def _read(title: str, line: Line, printed: str) -> Iterator[Row]:
    for found in line.pattern.finditer(printed):
        for group, unit, better in line.columns:
            words = " ".join(found["what"].split())
            name = ", ".join(filter(None, (title, words, group if len(line.columns) > 1 else "")))
            values = {OURS: _number(found[group])}
            if "bare" in found.groupdict():
                values[BARE] = _number(found["bare"])
            spreads = {who: Spread(value, value, value, 1) for who, value in values.items()}
            ratios = {BARE: values[OURS] / values[BARE]} if values.get(BARE) else {}
            yield Row(Figure(f"log.{name}", name, unit, better), spreads, ratios)


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _began(text: str) -> str:
    """Not told by pages of old."""
    found = re.search(r"; began (\S+)\.$", text, re.M)
    return found[1] if found else ""


def _alike(one: str, other: str) -> bool:
    """Whether two pages are of one build, on machines of a kind."""
    heads = [
        re.search(r"^(\w+) build; cores (\d+), processor (.*?), memory", text, re.M) for text in (one, other)
    ]
    return len({head.groups() if head else None for head in heads}) == 1
