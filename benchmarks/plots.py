"""Bars of ours beside theirs, as PNG and SVG. Needs matplotlib; without it there are no plots."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import BY_KEY
from benchmarks.results import Row, Run, Spread, rows


@dataclass(frozen=True, slots=True)
class Panel:
    """A few rows of one unit, side by side. `divisor`: of what a row is kept in, to what is drawn."""

    title: str
    unit: str
    bars: tuple[tuple[str, str], ...]
    """Key of a row, and what stands below its bars."""
    divisor: float = 1.0


PANELS = (
    Panel("Streams, 1 KiB", "MB/s", (("throughput_1k.in_mb_s", "in"), ("throughput_1k.out_mb_s", "out"))),
    Panel("Streams, 100 B", "MB/s", (("throughput_100.in_mb_s", "in"), ("throughput_100.out_mb_s", "out"))),
    Panel(
        "One-record requests",
        "thousands a second",
        (
            ("requests_64.requests_s", "64 conn."),
            ("requests_500.requests_s", "500 conn."),
            ("fetches_64.requests_s", "fetch, 64"),
        ),
        1000.0,
    ),
    Panel(
        "One record at a time",
        "µs",
        (
            ("latency.p50_us", "p50"),
            ("latency.p99_us", "p99"),
            ("latency_client.p50_us", "p50, client"),
        ),
    ),
    Panel(
        "10,000 records/s, end to end",
        "ms",
        (("rate_10k.end_p50_us", "p50"), ("rate_10k.end_p99_us", "p99"), ("rate_10k.end_p999_us", "p99.9")),
        1000.0,
    ),
    Panel(
        "Processor of the broker, 1 KiB",
        "s per GB",
        (("throughput_1k.in_cpu_s_per_gb", "in"), ("throughput_1k.out_cpu_s_per_gb", "out")),
    ),
    Panel("Memory, idle", "MB PSS", (("idle.pss_mb", ""),)),
    Panel(
        "Start, until a record is acknowledged",
        "s",
        (
            ("start.first_ack_ms", "empty"),
            ("start_1000.first_ack_ms", "1,000 part."),
            ("recovery_10g.first_ack_ms", "kill -9, 10 GiB"),
        ),
        1000.0,
    ),
)
COLOURS = {"appliance": "#c4442a", "pure": "#e0a080", "mock": "#b0b0b0", "kafka": "#2a5fa8"}
TITLES = {
    "mock": "mock in C, in memory (upper bound)",
    "kafka": "Apache Kafka",
    "pure": "appliance, not compiled",
}
NO_FIGURE = "no figure"
"""Where a bar of ours or of Kafka's is missing, which a gap alone would make look like nothing."""


def has_bars(run: Run) -> bool:
    """Whether a plot would show anything: a run of some cases only, or about growth, may have nothing for it."""
    wanted = {key for panel in PANELS for key, _ in panel.bars}
    return any(row.figure.key in wanted for row in rows(run))


def draw(run: Run, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg. Returns the paths; none when there is nothing to draw, or no matplotlib."""
    if not has_bars(run):
        return []
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return []
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch  # type: ignore[import-not-found,unused-ignore]

    made = {row.figure.key: row for row in rows(run)}
    brokers = [name for name in run.taken if any(run.taken[name])]
    figure, axes = pyplot.subplots(2, 4, figsize=(16, 8), constrained_layout=True)
    for panel, axis in zip(PANELS, axes.flat, strict=True):
        _panel(axis, panel, made, brokers)
    handles = [Patch(color=_colour(name), label=TITLES.get(name, name)) for name in brokers]
    figure.suptitle(
        f"The appliance beside Apache Kafka, {run.date}, commit {run.commit}: "
        f"median of up to {run.rounds} rounds, line from lowest to highest",
        fontsize=13,
    )
    figure.legend(handles=handles, loc="outside lower center", ncols=len(brokers), frameon=False, fontsize=11)
    return save(figure, stem)


def _panel(axis: Any, panel: Panel, made: dict[str, Row], brokers: list[str]) -> None:
    """matplotlib's types are not to be had where it is not installed."""
    spreads = [made[key].values if key in made else {} for key, _ in panel.bars]
    # The bound in memory has no place where it has no part; a gap of anybody else is a figure that is missing.
    shown = [name for name in brokers if name != "mock" or any(name in values for values in spreads)]
    width = 0.84 / max(len(shown), 1)
    for index, broker in enumerate(shown):
        for number, values in enumerate(spreads):
            place = number - 0.42 + (index + 0.5) * width
            if broker in values:
                _bar(axis, place, width, values[broker], divisor=panel.divisor, colour=_colour(broker))
            elif broker != "mock":
                where, bottom = (place, 0.02), axis.get_xaxis_transform()
                look = {
                    "rotation": 90,
                    "ha": "center",
                    "va": "bottom",
                    "fontsize": 8,
                    "color": _colour(broker),
                }
                axis.text(*where, NO_FIGURE, transform=bottom, **look)
    better = BY_KEY[panel.bars[0][0]].better.value
    axis.set_title(f"{panel.title}\n{panel.unit}, {better} is better", fontsize=10)
    axis.set_xticks(range(len(panel.bars)), [label for _, label in panel.bars])
    axis.set_xlim(-0.5, len(panel.bars) - 0.5)
    axis.yaxis.set_major_formatter(thousands)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(y=0.12)
    axis.set_ylim(bottom=0)


def _bar(axis: Any, place: float, width: float, spread: Spread, *, divisor: float, colour: str) -> None:
    """A bar to the median, a line from lowest to highest, and the median above both, or it would be crossed out."""
    median, low, high = (each / divisor for each in (spread.median, spread.lowest, spread.highest))
    axis.bar(place, median, width * 0.94, color=colour)
    if spread.rounds > 1:
        axis.plot([place, place], [low, high], color="black", linewidth=1)
    how = {"xytext": (0, 2), "textcoords": "offset points", "ha": "center", "fontsize": 8}
    axis.annotate(short(median), (place, high), **how)


def _colour(broker: str) -> str:
    return COLOURS.get(broker, "#555555")


def save(figure: Any, stem: Path) -> list[Path]:
    """As `stem`.png and `stem`.svg; the same figures make the same files."""
    import matplotlib
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "benchmarks"
    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=100, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths


def thousands(value: float, _place: int = 0) -> str:
    """Of an axis: commas, and no zeros behind the point."""
    return f"{value:,.10g}"


def short(value: float) -> str:
    """Three figures that count; thousands with commas, from ten thousand on as k."""
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
