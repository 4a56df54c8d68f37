"""What `metrics.listener` costs a request: the real network process and worker with it and without it, in turns.

    scripts/on-compiled.sh .venv/bin/python -m benchmarks.micro.metrics_cost [TURNS]

As `request_path`, everything runs in one process: a client sends one Produce request with one record of 100 bytes, or
one Fetch request, and the turns of the network process and the worker are timed. A turn is REQUESTS requests to each
of the two; the order changes with each turn. So what other programs do to one, they do to the other one, too. A turn
counts as the mean of its requests without the slowest tenth, because one request in 16 is timed and costs more than
the others, while a request that the kernel has interrupted says nothing about either. The network process without
metrics has a timer, too, as every network process that serves: to look at a timer in each turn costs 0.7 µs.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from statistics import fmean, median, quantiles
from typing import Final

from appliance.build import build
from appliance.ipc.agent import freeze_garbage
from benchmarks.micro.request_path import Bench, fetch_frame, produce_frame

TURNS: Final = 400
REQUESTS: Final = 160
WARM_UP: Final = 500
KEPT: Final = 0.9
A_DAY_MS: Final = 24 * 3_600_000
OPTIONS: Final = {"metrics.listener": "127.0.0.1:9644"}
"""Nobody listens there: this process has no metrics process."""


def main(arguments: list[str]) -> int:
    """Measure, and print a table."""
    turns = int(arguments[0]) if arguments else TURNS
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        plain, counted = Bench(Path(one)), Bench(Path(other), options=OPTIONS)
        plain.processor._cycle.timers.after_ms(A_DAY_MS, lambda: None)
        freeze_garbage()
        try:
            print(f"{build()} build, {turns} turns of {REQUESTS} requests")
            print(
                "| one request | without metrics, µs | with metrics, µs | ratio (quartiles) |\n|---|--:|--:|--:|"
            )
            for name, frame in (("Produce", produce_frame()), ("Fetch", fetch_frame())):
                for bench in (plain, counted):
                    _stream_us(bench, frame, WARM_UP)
                _print(name, *_measured(plain, counted, frame, turns))
        finally:
            for bench in (plain, counted):
                bench.close()
    return 0


def _measured(plain: Bench, counted: Bench, frame: bytes, turns: int) -> tuple[list[float], list[float]]:
    without: list[float] = []
    with_: list[float] = []
    ways = [(plain, without), (counted, with_)]
    for _ in range(turns):
        ways.reverse()
        for bench, found in ways:
            found.append(_stream_us(bench, frame, REQUESTS))
    return without, with_


def _stream_us(bench: Bench, frame: bytes, count: int) -> float:
    times_ns = sorted(sum(bench.request(frame)[:3]) for _ in range(count))
    return fmean(times_ns[: int(count * KEPT)]) / 1000


def _print(name: str, without: list[float], with_: list[float]) -> None:
    low, middle, high = quantiles([one / other for one, other in zip(with_, without, strict=True)], n=4)
    print(
        f"| {name} | {median(without):.2f} | {median(with_):.2f} | {middle:.3f} ({low:.3f} to {high:.3f}) |"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
