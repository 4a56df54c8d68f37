"""The part of a page about growth: for each scaling case one table with the shapes named, one plot, and what is said
of it by hand (`growth.toml`)."""

import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.cases import CASES
from benchmarks.growth import METRICS, Points, growths, order
from benchmarks.places import ROOT
from benchmarks.plots import COLOURS, TITLES, save, short, thousands
from benchmarks.results import Run
from benchmarks.shapes import shape

REMARKS = ROOT / "benchmarks" / "growth.toml"
WIDE = 50
"""Last count by first from which on a plot needs a logarithmic axis."""
NEAR_SHARE = 0.08
"""Of the height of a plot: values that lie nearer would be written over each other."""


def tables(run: Run, stem_name: str) -> str:
    """Markdown; empty when no scaling case ran."""
    return "\n\n".join(part for case, rows in growths(run).items() for part in _one(case, rows, stem_name))


@cache
def remarks() -> dict[str, str]:
    """By name of the case: why its figures grow as they do."""
    return {name: str(said["why"]) for name, said in tomllib.loads(REMARKS.read_text()).items()}


def _one(case: str, rows: dict[tuple[str, str], Points], stem_name: str) -> Iterator[str]:
    counts = sorted({n for points in rows.values() for n, _ in points})
    yield f"### Growth with {CASES[case].what}\n\n![{CASES[case].what}]({stem_name}-{case}.svg)"
    lines = [
        f"| what | broker | {' | '.join(f'{n:,}' for n in counts)} | shape | each |",
        "|---|---|" + "--:|" * len(counts) + "---|--:|",
    ]
    for (metric, broker), points in sorted(rows.items(), key=lambda entry: order(*entry[0])):
        values = dict(points)
        cells = [_short(values[n]) if n in values else "" for n in counts]
        found = shape(points) if len(points) > 1 else None
        tail = [found.name, _short(found.each) if "linear" in found.name else ""] if found else ["", ""]
        lines.append(f"| {_title(metric)} | {broker} | {' | '.join(cells)} | {' | '.join(tail)} |")
    yield "\n".join(lines)
    if case in remarks():
        yield f"**Why**: {remarks()[case]}"


def _title(metric: str) -> str:
    return f"{METRICS[metric].title}, {METRICS[metric].unit}" if metric in METRICS else metric


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"


def draw(run: Run, stem: Path) -> list[Path]:
    """One plot a case, `stem`-CASE.svg and .png. Returns the paths; none without matplotlib."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot

    paths: list[Path] = []
    for case, rows in growths(run).items():
        metrics = sorted({metric for metric, _ in rows}, key=lambda metric: order(metric, ""))
        columns = min(4, len(metrics))
        lines = -(-len(metrics) // columns)
        figure, axes = pyplot.subplots(
            lines, columns, figsize=(3.6 * columns, 3.0 * lines), constrained_layout=True, squeeze=False
        )
        for axis, metric in zip(axes.flat, metrics, strict=False):
            _panel(
                axis, metric, {broker: points for (name, broker), points in rows.items() if name == metric}
            )
        for axis in list(axes.flat)[len(metrics) :]:
            axis.set_visible(False)
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=len(labels), frameon=False)
        figure.suptitle(f"Growth with {CASES[case].what}")
        paths += save(figure, stem.with_name(f"{stem.name}-{case}"))
    return paths


def _panel(axis: Any, metric: str, lines: dict[str, Points]) -> None:
    """One metric, a line a broker, each with its last value. matplotlib's types are not to be had everywhere."""
    highest = max(y for points in lines.values() for _, y in points)
    below = -1.0
    for broker, points in sorted(lines.items(), key=lambda line: line[1][-1][1]):
        colour = COLOURS.get(broker, "#555555")
        axis.plot(
            *zip(*points, strict=True),
            marker="o",
            markersize=4,
            label=TITLES.get(broker, broker),
            color=colour,
        )
        # Two that end side by side: the upper one's value goes above the lower one's.
        lifted = 14 if points[-1][1] - below < NEAR_SHARE * highest and below >= 0 else 5
        axis.annotate(
            short(points[-1][1]),
            points[-1],
            xytext=(0, lifted),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=colour,
        )
        below = points[-1][1]
    counts = sorted({n for points in lines.values() for n, _ in points})
    if max(counts) >= WIDE * min(counts):
        axis.set_xscale("log")
    axis.set_xticks(counts, [short(n) for n in counts], fontsize=8)
    axis.set_xticks([], minor=True)
    axis.yaxis.set_major_formatter(thousands)
    axis.set_ylim(0, highest * 1.2 or 1.0)
    known = METRICS[metric]
    axis.set_title(f"{known.title}\n{known.unit}, {known.better.value} is better", fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
