"""Where each µs of one request goes from socket to socket, step by step (make budget).

    python -m benchmarks.micro.budget [--seconds N]

First `request_path` of the pure and of the compiled build, in turns: what one request costs in the network process,
the worker and the network process again. Then py-spy looks at the same loop a thousand times a second; a function's
share of the looks, times the whole, is its part of the budget, system calls and C functions included in the line that
calls them. Of the pure build only: a compiled function has no frame.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import machine
from benchmarks.brokers.builds import Kind, build
from benchmarks.micro.request_path import Bench, fetch_frame, produce_frame
from benchmarks.places import ROOT
from benchmarks.publish import between
from benchmarks.source import name_of_now

RATE = 1000
TURNS = 3
FUNCTIONS_SHOWN = 12
STEPS = (
    ("wait and be woken: epoll, eventfd", ("ipc/agent", "ipc/doorbell", "ipc/fence", "ipc/brief_wait")),
    (
        "socket: receive a frame, send an answer",
        ("netproc/intake", "netproc/outlet", "netproc/connection", "requests/session"),
    ),
    (
        "understand the request, build the answer",
        (
            "protocol/produce",
            "protocol/fetch",
            "protocol/headers",
            "protocol/primitives",
            "requests/apis",
            "requests/log_handlers",
            "requests/fetch_session",
            "requests/topic_routes",
            "netproc/processor",
            "requests/segment_files",
        ),
    ),
    (
        "between processes: rings, pools",
        ("ipc/", "requests/worker_lines", "requests/purgatory_line", "channels/"),
    ),
    (
        "check the batch: CRC-32C, record count, offsets",
        ("protocol/records", "log/validator", "log/producer"),
    ),
    ("append or look up in the segment", ("log/",)),
    ("worker: take from the ring, publish, answer", ("ioproc/", "partition_host/")),
)
"""Step and the files of its functions; the first that fits."""
SMALLEST_SHOWN_US = 0.05
TURN = ("NetworkAgent.turn (", "RequestRings.serve (")


README = ROOT / "benchmarks" / "README.md"
REQUESTS = ("produce", "fetch")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=8)
    options.add_argument("--keep", action="store_true", help="write the tables into benchmarks/README.md")
    options.add_argument("--loop", choices=REQUESTS, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.loop:
        _loop(given.loop, given.seconds)
        return
    by_process = _by_process()
    steps, functions = {}, {}
    for name in REQUESTS:
        steps[name], functions[name] = _by_step(name, by_process[name, Kind.PURE.value][-1], given.seconds)
    text = tables(by_process, steps)
    print(text)
    for name in REQUESTS:
        print(f"\n{name}, the dearest functions, µs:")
        for function, us in functions[name].items():
            print(f"    {us:5.1f}  {function}")
    if given.keep:
        README.write_text(between(README.read_text(), "budget", text))


def tables(
    by_process: Mapping[tuple[str, str], Sequence[float]], steps: Mapping[str, Mapping[str, float]]
) -> str:
    """What stands in the README: of both builds by process, of the pure one by step."""
    about = machine.description()
    lines = [
        f"{name_of_now()}, {about['cores']} shared cores of {about['processor']}, Python {about['python']}.",
        "",
        "| µs | network process takes it | worker | network process answers | all |",
        "|---|--:|--:|--:|--:|",
    ]
    for (name, kind), columns in by_process.items():
        lines.append(f"| {name}, {kind} | {' | '.join(f'{column:.1f}' for column in columns)} |")
    lines += ["", "The same by step, pure build.", "", f"| µs | {' | '.join(steps)} |", "|---|--:|--:|"]
    for step in sorted(
        {step for of in steps.values() for step in of}, key=lambda step: -steps["produce"].get(step, 0.0)
    ):
        cells = [f"{of[step]:.1f}" if of.get(step, 0.0) >= SMALLEST_SHOWN_US else "" for of in steps.values()]
        lines.append(f"| {step} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _by_process() -> dict[tuple[str, str], list[float]]:
    """(request, build) → µs by process and in all, medians of `TURNS` turns.

    The module path begins where a program is started, so each build runs its own source.
    """
    taken: dict[tuple[str, str], list[list[float]]] = {
        (name, kind.value): [] for name in REQUESTS for kind in (Kind.PURE, Kind.COMPILED)
    }
    for _ in range(TURNS):
        for kind in (Kind.PURE, Kind.COMPILED):
            words = [sys.executable, "-m", "benchmarks.micro.request_path", "--requests", "5000"]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                words, cwd=build(kind), env=environment, stdout=subprocess.PIPE, text=True, check=True
            )
            for line in done.stdout.splitlines()[1:]:
                name, *columns = line.split()
                taken[name, kind.value].append([float(column) for column in columns])
    return {
        key: [statistics.median(column) for column in zip(*turns, strict=True)]
        for key, turns in taken.items()
    }


def _loop(name: str, seconds: int) -> None:
    """In a process of its own: ask until the time is up."""
    frame = produce_frame() if name == "produce" else fetch_frame()
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        try:
            bench.request(produce_frame())  # something to fetch: an empty log would be waited for
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                bench.request(frame)
        finally:
            bench.close()


def _by_step(name: str, whole_us: float, seconds: int) -> tuple[dict[str, float], dict[str, float]]:
    """µs of each step and of each function: their shares of the looks, times the whole that nobody watched, for who is
    watched is paused at each look."""
    spy = shutil.which("py-spy") or str(Path(sys.executable).parent / "py-spy")
    steps, functions = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "told"
        words = [spy, "record", "--format", "raw", "--rate", str(RATE), "--output", str(told), "--"]
        words += [sys.executable, "-m", "benchmarks.micro.budget", "--loop", name, "--seconds", str(seconds)]
        subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        for line in told.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            frames = stack.split(";")
            if any(frame.startswith(TURN) for frame in frames):
                where, function = _ours(frames)
                steps[next((step for step, files in STEPS if where.startswith(files)), "else")] += int(count)
                functions[f"{where} {function}"] += int(count)
    each_us = whole_us / max(1, steps.total())
    return (
        {step: seen * each_us for step, seen in steps.items()},
        {function: seen * each_us for function, seen in functions.most_common(FUNCTIONS_SHOWN)},
    )


def _ours(frames: list[str]) -> tuple[str, str]:
    """File and name of the innermost function of our own source."""
    for frame in reversed(frames):
        if "appliance/" in frame:
            function, _, where = frame.partition(" (")
            return where.rpartition("appliance/")[2].partition(":")[0], function
    return "", frames[-1]


if __name__ == "__main__":
    main()
