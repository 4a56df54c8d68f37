"""Bars of ours beside theirs, as PNG and SVG. Needs matplotlib; without it there are no plots."""

from pathlib import Path

from benchmarks.results import Row, Run, rows

PANELS = (
    (
        "Streams, 1 KiB (MB/s, more is better)",
        ("throughput_1k.in_mb_s", "throughput_1k.out_mb_s"),
        ("in", "out"),
    ),
    ("Streams, 100 B (MB/s, more)", ("throughput_100.in_mb_s", "throughput_100.out_mb_s"), ("in", "out")),
    (
        "One-record requests a second (more)",
        ("requests_64.requests_s", "requests_500.requests_s", "fetches_64.requests_s"),
        ("64 conn.", "500", "fetches, 64"),
    ),
    (
        "One record at a time (µs, less)",
        ("latency.p50_us", "latency.p99_us", "latency_client.p50_us"),
        ("p50", "p99", "p50 client"),
    ),
    (
        "10,000 records/s, end to end (ms, less)",
        ("rate_10k.end_p50_us", "rate_10k.end_p99_us", "rate_10k.end_p999_us"),
        ("p50", "p99", "p99.9"),
    ),
    (
        "Broker CPU s per GB, 1 KiB (less)",
        ("throughput_1k.in_cpu_s_per_gb", "throughput_1k.out_cpu_s_per_gb"),
        ("in", "out"),
    ),
    ("Idle memory (MB PSS, less)", ("idle.pss_mb",), ("",)),
    (
        "Until the first record is acknowledged (s, less)",
        ("start.first_ack_ms", "start_1000.first_ack_ms", "recovery_10g.first_ack_ms"),
        ("start", "1,000 part.", "kill -9, 10 GiB"),
    ),
)
THOUSANDTHS = ("end_", "first_ack")
"""Kept in µs and ms, drawn in ms and s."""
COLOURS = {"appliance": "#c4442a", "pure": "#e0a080", "mock": "#9a9a9a", "kafka": "#2a5fa8"}


def draw(run: Run, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg. Returns the paths; none when matplotlib is not installed."""
    try:
        import matplotlib  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return []
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "benchmarks"  # the same figures make the same file
    from matplotlib import pyplot

    made = {row.figure.key: row for row in rows(run)}
    brokers = [name for name in run.taken if any(run.taken[name])]
    figure, axes = pyplot.subplots(2, 4, figsize=(16, 7), constrained_layout=True)
    for (title, keys, labels), axis in zip(PANELS, axes.flat, strict=True):
        width = 0.8 / len(brokers)
        for index, broker in enumerate(brokers):
            places = [i - 0.4 + (index + 0.5) * width for i in range(len(keys))]
            heights = [_median(made.get(key), broker) / _scale(key) for key in keys]
            bars = axis.bar(places, heights, width * 0.95, label=broker, color=COLOURS.get(broker, "#555555"))
            axis.bar_label(bars, labels=[_short(height) for height in heights], fontsize=8, padding=2)
            for place, key in zip(places, keys, strict=True):
                if (row := made.get(key)) and (spread := row.values.get(broker)) and spread.rounds > 1:
                    ends = [spread.lowest / _scale(key), spread.highest / _scale(key)]
                    axis.plot([place, place], ends, color="black", linewidth=1)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(keys)), labels)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(y=0.15)
    axes.flat[0].legend(frameon=False)
    figure.suptitle(
        f"{run.date}, commit {run.commit}: median of {run.rounds} rounds, line from lowest to highest"
    )
    paths = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in paths:
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths


def _scale(key: str) -> float:
    return 1000.0 if any(word in key for word in THOUSANDTHS) else 1.0


def _median(row: Row | None, broker: str) -> float:
    return row.values[broker].median if row and broker in row.values else 0.0


def _short(value: float) -> str:
    if not value:
        return ""
    if value >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
