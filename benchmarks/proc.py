"""What a set of processes has used so far, read from /proc.

`sample()` is a snapshot; `used(before, after)` the difference. Processor time comes in nanoseconds from
`task/*/schedstat`, because the 10 ms ticks of `stat` are too coarse for an idle broker; when a thread ended
in between, its nanoseconds are gone with it and the ticks are taken instead.
"""

import ctypes
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.void import Void

PROC = Path("/proc")
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
CUT_TITLE = "appliance:"
"""How the name of an ended process begins, of which the kernel keeps fifteen characters."""
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """One process at one instant."""

    title: str
    ticks: int
    thread_ns: dict[int, int]
    context_switches: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Used:
    """What a set of processes used between two samples."""

    cpu_seconds: float
    cpu_seconds_by_title: dict[str, float]
    context_switches: int
    written_bytes: int
    """Pages dirtied towards the disk, less those truncated before they were written."""


def descendants(root: int) -> list[int]:
    """The process `root` and all below it, oldest first."""
    parents: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                parent = int(_stat(entry)[1])
            except OSError:
                continue
            parents.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        pid = queue.pop(0)
        found.append(pid)
        queue.extend(sorted(parents.get(pid, [])))
    return [pid for pid in found if (PROC / str(pid)).exists()]


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """During the body, whose parent dies becomes a child of this process, who is to `bury()` it: so the processor time
    of a broker that was killed is counted with that of the other children, and not lost with whoever started it."""
    _be_subreaper(1)
    try:
        yield
    finally:
        _be_subreaper(0)


def _be_subreaper(value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl: PR_SET_CHILD_SUBREAPER")


def bury(pids: Iterable[int]) -> None:
    """Wait for the end of each that was adopted; others are somebody else's."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def sample(pids: Iterable[int]) -> dict[int, ProcessSample]:
    """Read all counters of `pids`. Raises Void when one of them is gone."""
    return {pid: _sample(pid) for pid in pids}


def used(before: dict[int, ProcessSample], after: dict[int, ProcessSample]) -> Used:
    """The difference of two samples of the same processes. Raises Void when the set changed."""
    if before.keys() != after.keys():
        raise Void(f"the broker's processes changed from {sorted(before)} to {sorted(after)}")
    by_title: dict[str, float] = {}
    for pid, old in before.items():
        new = after[pid]
        if old.thread_ns.keys() <= new.thread_ns.keys():
            seconds = (sum(new.thread_ns.values()) - sum(old.thread_ns.values())) / 1e9
        else:
            seconds = (new.ticks - old.ticks) / TICKS_PER_SECOND
        title = new.title
        while title in by_title:
            title += "'"
        by_title[title] = seconds
    return Used(
        cpu_seconds=sum(by_title.values()),
        cpu_seconds_by_title=by_title,
        context_switches=sum(after[p].context_switches - before[p].context_switches for p in before),
        written_bytes=sum(after[p].written_bytes - before[p].written_bytes for p in before),
    )


def pss_bytes(pids: Iterable[int]) -> int:
    """Proportional set size: memory of all `pids`, each shared page counted once. Raises Void when one is gone."""
    total = 0
    for pid in pids:
        try:
            told = (PROC / str(pid) / "smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError) as gone:
            raise Void(f"process {pid} of the broker has ended") from gone
        for line in told.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def is_halted(pid: int) -> bool:
    """Whether it was stopped by a signal, or is gone."""
    try:
        return _stat(PROC / str(pid))[0] in "TZ"
    except OSError:
        return True


def title_of(pid: int) -> str:
    """The process title without its numbers' owner: `netproc 0` rather than `appliance: netproc 0`."""
    words = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    if words.startswith("appliance: "):
        return words.removeprefix("appliance: ")
    return (PROC / str(pid) / "comm").read_text().strip()


def _stat(process: Path) -> list[str]:
    """The fields of `stat` behind the name, which may have blanks and brackets: state, parent, …"""
    return (process / "stat").read_text().rpartition(")")[2].split()


def _sample(pid: int) -> ProcessSample:
    here = PROC / str(pid)
    try:
        fields = _stat(here)
        threads: dict[int, int] = {}
        switches = 0
        for task in (here / "task").iterdir():
            threads[int(task.name)] = int((task / "schedstat").read_text().split()[0])
            for line in (task / "status").read_text().splitlines():
                if "ctxt_switches" in line:
                    switches += int(line.split()[1])
        counters = dict(line.split(": ") for line in (here / "io").read_text().splitlines())
        return ProcessSample(
            title=title_of(pid),
            ticks=int(fields[11]) + int(fields[12]),
            thread_ns=threads,
            context_switches=switches,
            written_bytes=int(counters["write_bytes"]) - int(counters["cancelled_write_bytes"]),
        )
    except (FileNotFoundError, ProcessLookupError) as gone:
        raise Void(f"process {pid} of the broker has ended") from gone
