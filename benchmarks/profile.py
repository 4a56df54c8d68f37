"""Flame graphs: py-spy watches every Python process of the appliance while one case runs.

Of the pure build by default: its frames are Python's, and it is watched without being paused. With `--native` of the
compiled build, with the stacks of its C code; for that py-spy must pause what it watches at each sample, so read
shares there, no times.

A case goes on until the time is up. One that has a broker of its own runs once, however long it takes, and each process
is watched from its start, or some ten milliseconds later, to its end: who was killed and who came after it.
"""

import argparse
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from benchmarks import proc
from benchmarks.brokers.broker import Broker
from benchmarks.brokers.running import Running
from benchmarks.brokers.setting import SETTINGS, Setting
from benchmarks.cases.case import Bench, Case, Scale
from benchmarks.machine import GIB, WarmMemory
from benchmarks.places import CACHE, DATA
from benchmarks.quick import show
from benchmarks.rounds import fresh
from benchmarks.void import Void

SAMPLES_PER_SECOND = 200
LOOK_SECONDS = 0.02
TOO_SHORT = "the case was over before py-spy had looked at it"


def record(case: Case, options: argparse.Namespace) -> int:
    """Leave one SVG a process in the cache. Returns the exit status."""
    if case.own and options.at is not None:
        raise SystemExit(f"{case.name} starts and kills its broker: it takes none that runs already")
    setting = setting_of(case, options.setting)
    name = setting.key(case.name).replace("/", "-")
    folder = CACHE / "profiles" / (f"{name}-native" if options.native else name)
    # Of a run before: other processes, which nobody should take for those of this one.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with _broker(options, setting) as broker:
        bench = Bench(
            broker=broker,
            scale=Scale(stream_bytes=2 * GIB, seconds=options.seconds + 2, busy_limit_share=float("inf")),
            memory=WarmMemory(0, folder=DATA),
        )
        watch = Watch(broker, folder, native=options.native, seconds=None if case.own else options.seconds)
        try:
            if case.own:
                _once(case, bench, watch)
            else:
                watch.look()
                _keep_busy(case, bench, until=watch)
        except Void as why:
            print(f"{case.name}: VOID: {why}")
        for line in watch.end():
            print(line)
    return 0


def setting_of(case: Case, asked_for: str | None) -> Setting:
    """The one that was asked for; else as shipped, or what the case is made for."""
    name = asked_for if asked_for is not None else "" if "" in case.settings else min(case.settings)
    return SETTINGS[name]


class Watch:
    """One py-spy for each process of a broker, from when it is first seen."""

    def __init__(self, broker: Broker, folder: Path, *, native: bool, seconds: float | None) -> None:
        """`seconds` None: each until its process ends, or `end()`."""
        self._broker, self._folder = broker, folder
        self._spy = shutil.which("py-spy") or str(Path(sys.executable).parent / "py-spy")
        # Without pausing what it watches: a paused broker would be another broker.
        self._how = ["--native"] if native else ["--nonblocking"]
        if seconds is not None:
            self._how += ["--duration", str(round(seconds))]
        self.watchers: dict[int, subprocess.Popen[str]] = {}
        self._titles: dict[int, str] = {}

    def look(self) -> None:
        """Begin to watch whom nobody watches yet."""
        for pid in self._broker.pids() if self._broker.is_alive() else []:
            try:
                title = proc.title_of(
                    pid
                )  # one that has just begun has not its own yet, one that has ended no more
            except OSError:
                continue
            if not (pid in self._titles and title.startswith(proc.CUT_TITLE)):
                self._titles[pid] = title
            if pid not in self.watchers:
                words = [self._spy, "record", "--pid", str(pid), "--output", str(self._raw(pid))]
                words += ["--rate", str(SAMPLES_PER_SECOND), *self._how]
                self.watchers[pid] = subprocess.Popen(
                    words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
                )

    def wait(self) -> None:
        """Until the time of all is up."""
        for watcher in self.watchers.values():
            watcher.wait()

    def end(self) -> list[str]:
        """The path of each graph, named for its process; or why there is none."""
        for watcher in self.watchers.values():
            if watcher.poll() is None:
                watcher.send_signal(signal.SIGINT)
        lines = []
        for pid, watcher in self.watchers.items():
            said, _ = watcher.communicate()
            title = "-".join(self._titles[pid].replace("/", "-").split())
            path = self._folder / f"{title}-{pid}.svg"
            if self._raw(pid).exists():
                self._raw(pid).rename(path)
                lines.append(str(path))
            else:
                lines.append(f"{path.name}: {said.strip()[-200:] or TOO_SHORT}")
        return lines

    def _raw(self, pid: int) -> Path:
        return self._folder / f"{pid}.svg"


def _keep_busy(case: Case, bench: Bench, *, until: Watch) -> None:
    """Run the case until all watchers have ended."""
    over = threading.Event()

    def wait() -> None:
        until.wait()
        over.set()

    threading.Thread(target=wait, daemon=True).start()
    while not over.is_set():
        show(case, case.run(bench))


def _once(case: Case, bench: Bench, watch: Watch) -> None:
    """Run the case, and look out for processes all the while."""
    over = threading.Event()

    def look_out() -> None:
        while not over.is_set():
            watch.look()
            time.sleep(LOOK_SECONDS)

    thread = threading.Thread(target=look_out, daemon=True)
    thread.start()
    try:
        show(case, case.run(bench))
    finally:
        over.set()
        thread.join()


def _broker(options: argparse.Namespace, setting: Setting) -> AbstractContextManager[Broker]:
    if options.at is None:
        return fresh("appliance" if options.native else "pure", setting)
    return nullcontext(Running(options.at))
