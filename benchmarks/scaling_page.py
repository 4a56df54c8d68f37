"""The part of a page about growth: for each scaling case one table with the shapes named, and one plot."""

import statistics
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cases import CASES
from benchmarks.plots import COLOURS
from benchmarks.results import Run
from benchmarks.shapes import shape

Points = list[tuple[int, float]]
WIDE = 50
"""Last count by first from which on a plot needs a logarithmic axis."""
UNITS = {
    "pss_mb": "memory (PSS), MB",
    "idle_cpu_percent": "processor when idle, % of a core",
    "p50_us": "one record at a time, p50 µs",
    "requests_s": "one-record requests/s, 64 connections",
    "create_ms_each": "creation, ms each",
    "start_ms": "start to first acknowledged record, ms",
    "ready_ms": "start until it says that it is ready, ms",
    "stop_ms": "clean stop, ms",
    "start_after_kill_ms": "the same after kill -9, ms",
    "in_mb_s": "in, 1 KiB, 16 partitions, MB/s",
}


def growths(run: Run) -> dict[str, dict[tuple[str, str], Points]]:
    """Case → (metric, broker) → (n, median) in rising order."""
    found: dict[str, dict[tuple[str, str], dict[int, list[float]]]] = {}
    for broker, rounds in run.taken.items():
        for figures in rounds:
            for key, value in figures.items():
                case, _, name = key.partition(".")
                metric, at, count = name.partition("@")
                if at:
                    rows = found.setdefault(case, {}).setdefault((metric, broker), {})
                    rows.setdefault(int(count), []).append(value)
    return {
        case: {
            place: sorted((n, statistics.median(values)) for n, values in points.items())
            for place, points in rows.items()
        }
        for case, rows in found.items()
    }


def tables(run: Run, stem_name: str) -> str:
    """Markdown; empty when no scaling case ran."""
    return "\n\n".join(part for case, rows in growths(run).items() for part in _one(case, rows, stem_name))


def _one(case: str, rows: dict[tuple[str, str], Points], stem_name: str) -> Iterator[str]:
    counts = sorted({n for points in rows.values() for n, _ in points})
    yield f"### Growth with {CASES[case].what}\n\n![{CASES[case].what}]({stem_name}-{case}.svg)"
    lines = [
        f"| what | broker | {' | '.join(f'{n:,}' for n in counts)} | shape | each |",
        "|---|---|" + "--:|" * len(counts) + "---|--:|",
    ]
    for (metric, broker), points in sorted(rows.items(), key=lambda entry: _order(*entry[0])):
        values = dict(points)
        cells = [_short(values[n]) if n in values else "" for n in counts]
        found = shape(points) if len(points) > 1 else None
        tail = [found.name, _short(found.each) if "linear" in found.name else ""] if found else ["", ""]
        lines.append(f"| {UNITS.get(metric, metric)} | {broker} | {' | '.join(cells)} | {' | '.join(tail)} |")
    yield "\n".join(lines)


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2g}" if abs(value) < 1 else f"{value:.3g}"


def _order(metric: str, broker: str) -> tuple[int, str, str]:
    known = list(UNITS)
    return known.index(metric) if metric in known else len(known), metric, broker


def draw(run: Run, stem: Path) -> list[Path]:
    """One plot a case, `stem`-CASE.svg and .png. Returns the paths; none without matplotlib."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return []
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "benchmarks"  # the same figures make the same file
    from matplotlib import pyplot

    paths: list[Path] = []
    for case, rows in growths(run).items():
        metrics = sorted({metric for metric, _ in rows}, key=lambda metric: _order(metric, ""))
        columns = min(4, len(metrics))
        lines = -(-len(metrics) // columns)
        figure, axes = pyplot.subplots(
            lines, columns, figsize=(3.4 * columns, 2.9 * lines), constrained_layout=True, squeeze=False
        )
        for axis, metric in zip(axes.flat, metrics, strict=False):
            for (name, broker), points in rows.items():
                if name == metric:
                    axis.plot(
                        [n for n, _ in points],
                        [y for _, y in points],
                        marker="o",
                        markersize=4,
                        label=broker,
                        color=COLOURS.get(broker, "#555555"),
                    )
            counts = [n for (name, _), points in rows.items() if name == metric for n, _ in points]
            if max(counts) >= WIDE * min(counts):
                axis.set_xscale("log")
            axis.set_ylim(bottom=0)
            axis.set_title(UNITS.get(metric, metric), fontsize=9)
            axis.spines[["top", "right"]].set_visible(False)
        for axis in list(axes.flat)[len(metrics) :]:
            axis.set_visible(False)
        axes.flat[0].legend(frameon=False, fontsize=8)
        figure.suptitle(f"Growth with {CASES[case].what}")
        for suffix in (".png", ".svg"):
            path = stem.with_name(f"{stem.name}-{case}{suffix}")
            figure.savefig(path, dpi=100, metadata={"Date": None} if suffix == ".svg" else None)
            paths.append(path)
        pyplot.close(figure)
    return paths
