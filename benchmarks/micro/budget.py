"""Where each µs of one request goes, step by step: `request_path` under a sampling profiler.

    python -m benchmarks.micro.budget [--seconds N]

`request_path` tells what one request costs in the network process, the worker and the network process again. Here
py-spy looks at the same loop a thousand times a second; a function's share of the looks, times the whole, is its part
of the budget, system calls and C functions included in the line that calls them. Pure source only: a compiled function
has no frame.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from benchmarks.micro.request_path import Bench, fetch_frame, produce_frame

RATE = 1000
FUNCTIONS_SHOWN = 12
STEPS = (
    ("wait and be woken: epoll, eventfd", ("ipc/agent", "ipc/doorbell", "ipc/fence", "ipc/brief_wait")),
    ("socket: receive a frame, send an answer", ("netproc/intake", "netproc/outlet", "netproc/connection")),
    (
        "understand the request, build the answer",
        (
            "protocol/produce",
            "protocol/fetch",
            "protocol/headers",
            "protocol/primitives",
            "netproc/apis",
            "netproc/log_handlers",
            "netproc/fetch_session",
            "netproc/topic_routes",
            "netproc/processor",
            "netproc/segment_files",
        ),
    ),
    (
        "between processes: rings, pools",
        ("ipc/", "netproc/worker_lines", "netproc/purgatory_line", "channels/"),
    ),
    (
        "check the batch: CRC-32C, record count, offsets",
        ("protocol/records", "log/validator", "log/producer"),
    ),
    ("append or look up in the segment", ("log/",)),
    ("worker: take from the ring, publish, answer", ("ioproc/",)),
)
"""Step and the files of its functions; the first that fits."""
TURN = ("Processor.turn (", "Worker.serve_rings (")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--seconds", type=int, default=8)
    options.add_argument("--loop", choices=("produce", "fetch"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.loop:
        _loop(given.loop, given.seconds)
        return
    for name in ("produce", "fetch"):
        _tell(name, given.seconds)


def _loop(name: str, seconds: int) -> None:
    """In a process of its own: ask until the time is up, then say what one request cost."""
    frame = produce_frame() if name == "produce" else fetch_frame()
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        try:
            bench.request(produce_frame())  # something to fetch: an empty log would be waited for
            until, spent = time.monotonic() + seconds, list[int]()
            while time.monotonic() < until:
                spent.append(sum(bench.request(frame)[:3]))
            # What others took of the processor meanwhile is in the mean, and not in the median.
            print(statistics.median(spent) / 1000)
        finally:
            bench.close()


def _tell(name: str, seconds: int) -> None:
    spy = shutil.which("py-spy") or str(Path(sys.executable).parent / "py-spy")
    with tempfile.TemporaryDirectory() as directory:
        told = Path(directory) / "told"
        words = [
            spy,
            "record",
            "--format",
            "raw",
            "--rate",
            str(RATE),
            "--output",
            str(told),
        ]
        words += ["--", sys.executable, "-m", "benchmarks.micro.budget"]
        words += ["--loop", name, "--seconds", str(seconds)]
        # Unwatched first: who is watched is paused at each look, so only its shares are true.
        alone = subprocess.run(words[words.index("--") + 1 :], capture_output=True, text=True, check=True)
        whole_us = float(alone.stdout.split()[-1])
        subprocess.run(words, capture_output=True, text=True, check=True)
        looks, functions = Counter[str](), Counter[str]()
        for line in told.read_text().splitlines():
            stack, _, count = line.rpartition(" ")
            frames = stack.split(";")
            if any(frame.startswith(TURN) for frame in frames):
                where, function = _ours(frames)
                looks[next((step for step, files in STEPS if where.startswith(files)), "else")] += int(count)
                functions[f"{where} {function}"] += int(count)
    total = sum(looks.values())
    print(f"{name}: {whole_us:.1f} µs, {total} looks")
    for step, seen in looks.most_common():
        print(f"| {step} | {seen / total * whole_us:.1f} |")
    for function, seen in functions.most_common(FUNCTIONS_SHOWN):
        print(f"    {seen / total * whole_us:5.1f}  {function}")


def _ours(frames: list[str]) -> tuple[str, str]:
    """File and name of the innermost function of our own source."""
    for frame in reversed(frames):
        if "appliance/" in frame:
            function, _, where = frame.partition(" (")
            return where.rpartition("appliance/")[2].partition(":")[0], function
    return "", frames[-1]


if __name__ == "__main__":
    main()
