"""Flame graphs: py-spy watches every Python process of the appliance while one case runs.

Of the pure build by default: its frames are Python's, and it is watched without being paused. With `--native` of the
compiled build, with the stacks of its C code; for that py-spy must pause what it watches at each sample, so read
shares there, no times.
"""

import argparse
import shutil
import subprocess
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from benchmarks import proc
from benchmarks.brokers.broker import Broker
from benchmarks.brokers.running import Running
from benchmarks.cases.case import Bench, Case, Scale
from benchmarks.machine import GIB, WarmMemory
from benchmarks.places import CACHE, DATA
from benchmarks.quick import show
from benchmarks.rounds import fresh
from benchmarks.void import Void

SAMPLES_PER_SECOND = 200


def record(case: Case, options: argparse.Namespace) -> int:
    """Repeat the case for `--seconds`, leave one SVG a process in the cache. Returns the exit status."""
    if case.own:
        raise SystemExit(f"{case.name} starts and kills its broker: nobody could watch it all the while")
    spy = shutil.which("py-spy") or str(Path(sys.executable).parent / "py-spy")
    folder = CACHE / "profiles" / (f"{case.name}-native" if options.native else case.name)
    # Of a run before: other processes, which nobody should take for those of this one.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with _broker(options) as broker:
        bench = Bench(
            broker=broker,
            scale=Scale(stream_bytes=2 * GIB, seconds=options.seconds + 2, busy_limit_share=float("inf")),
            memory=WarmMemory(0, folder=DATA),
        )
        watchers = []
        for pid in broker.pids():
            title = "-".join(proc.title_of(pid).replace("/", "-").split())
            path = folder / f"{title}-{pid}.svg"
            words = [
                spy,
                "record",
                "--pid",
                str(pid),
                "--output",
                str(path),
                "--rate",
                str(SAMPLES_PER_SECOND),
            ]
            # Without pausing what it watches: a paused broker would be another broker.
            words += ["--native" if options.native else "--nonblocking"]
            words += ["--duration", str(round(options.seconds))]
            watchers.append(
                (path, subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            )
        try:
            _keep_busy(case, bench, until=[watcher for _, watcher in watchers])
        except Void as why:
            print(f"{case.name}: VOID: {why}")
        for path, watcher in watchers:
            said, _ = watcher.communicate()
            print(path if path.exists() else f"{path.name}: {said.strip()[-200:]}")
    return 0


def _keep_busy(case: Case, bench: Bench, *, until: list["subprocess.Popen[str]"]) -> None:
    """Run the case until all watchers have ended."""
    over = threading.Event()

    def wait() -> None:
        for watcher in until:
            watcher.wait()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    while not over.is_set():
        show(case, case.run(bench))


def _broker(options: argparse.Namespace) -> AbstractContextManager[Broker]:
    if options.at is None:
        return fresh("appliance" if options.native else "pure")
    return nullcontext(Running(options.at))
