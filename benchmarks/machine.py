"""The machine under the figures: what it is, whether it is quiet, and what keeps it from colouring them.

Seen on virtual machines: an idle core is halted, and waking it costs tens of µs that a bare core would not
ask; and free memory is given back to the host, so that its first touch runs at 0.3 GB/s instead of several.
Neither is the broker's doing. `awake.py` keeps cores from halting, `WarmMemory` hands over pages that the host
already backs.
"""

import ctypes
import mmap
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy

from benchmarks.void import Busy, Void

MADV_POPULATE_WRITE = 23
GIB = 1 << 30
QUIET_SECONDS = 0.25
"""Before each case. That is 25 ticks of the kernel's count of processor time; longer would be minutes of a run, and who
comes later is seen by what the case itself looks at."""
KERNEL_FATHER = 2
"""Parent of all kernel threads: write-back and the like is part of a broker's load, not somebody else's."""


def description() -> dict[str, str | int]:
    """Cores, processor, memory and kernel: no name and no path of the machine."""
    model = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "unknown",
    )
    flags = next((line for line in _lines("/proc/cpuinfo") if line.startswith("flags")), "")
    return {
        "cores": os.cpu_count() or 0,
        "processor": model,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB),
        "kernel": platform.release().partition("-")[0],
        "virtual": "yes" if " hypervisor" in flags else "no",
        "python": platform.python_version(),
    }


@dataclass(frozen=True, slots=True)
class Activity:
    """Processor seconds of everything on the machine so far, and of the kernel's own threads."""

    at: float
    busy_seconds: float
    kernel_seconds: float
    stolen_seconds: float

    @staticmethod
    def now() -> "Activity":
        tick = os.sysconf("SC_CLK_TCK")
        user, nice, system, _idle, _wait, _irq, _soft, steal = (
            int(n) / tick for n in _lines("/proc/stat")[0].split()[1:9]
        )
        kernel = 0
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[1]) == KERNEL_FATHER:
                    kernel += int(fields[11]) + int(fields[12])
        return Activity(
            at=time.monotonic(),
            busy_seconds=user + nice + system,
            kernel_seconds=kernel / tick,
            stolen_seconds=steal,
        )

    def others_share(self, before: "Activity", *, ours_seconds: float) -> float:
        """Cores' worth of work since `before` that was neither ours nor the kernel's."""
        busy = self.busy_seconds - before.busy_seconds - (self.kernel_seconds - before.kernel_seconds)
        return max(0.0, busy - ours_seconds) / max(self.at - before.at, 1e-9)


class Patience:
    """Seconds for which a run waits, in all, until others leave the machine alone: for one case not long, and for all
    cases not the day that it would take to find each of them void."""

    def __init__(self, *, case_seconds: float = 120.0, run_seconds: float = 600.0) -> None:
        self._case_seconds = case_seconds
        self.left_seconds = run_seconds

    def await_quiet(self, limit_share: float) -> None:
        """Wait for a quarter of a second in which the whole machine used less than `limit_share` of a core.

        Raises Busy when that does not come. `ours` is nothing then: brokers are idle between cases.
        """
        began = time.monotonic()
        for_seconds = min(self._case_seconds, self.left_seconds)
        while (share := _share_of_a_look()) > limit_share:
            if (waited := time.monotonic() - began) > for_seconds:
                self.left_seconds -= min(self.left_seconds, waited)
                raise Busy(f"the machine was busy: {share:.2f} cores used by others before the case")
        self.left_seconds -= min(self.left_seconds, time.monotonic() - began - QUIET_SECONDS)


def _share_of_a_look() -> float:
    before = Activity.now()
    time.sleep(QUIET_SECONDS)
    return Activity.now().others_share(before, ours_seconds=0.0)


class WarmMemory:
    """Holds touched memory; `lend()` frees some, so that the next to ask gets pages the host already backs.

    `folder` is on the disk where the brokers will write. Worth it only on a virtual machine that reports free
    pages to its host; on others it holds nothing.
    """

    def __init__(self, size_bytes: int, *, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        if not _reports_free_pages():
            size_bytes = 0
        self._size_bytes = size_bytes
        self._memory = (
            mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) if size_bytes else None
        )
        self.take_back()

    def lend(self, length_bytes: int) -> None:
        """Free `length_bytes` of it, all at most, and send as much through the page cache.

        The second step, because pages freed by a program are not those that a file is given first: a file
        written and removed leaves pages that the next file gets.
        """
        if self._memory is None:
            return
        length_bytes = min(length_bytes, self._size_bytes)
        self._memory.madvise(mmap.MADV_DONTNEED, 0, length_bytes)
        chunk = bytes(1 << 20)
        with tempfile.TemporaryFile(dir=self.folder) as passing:
            for _ in range(length_bytes // len(chunk)):
                passing.write(chunk)

    def take_back(self) -> None:
        """Touch all of it again."""
        if self._memory is not None:
            self._memory.madvise(MADV_POPULATE_WRITE, 0, self._size_bytes)


def log_files(folder: Path) -> list[Path]:
    """Every segment below `folder`."""
    return sorted(folder.rglob("*.log"))


def forget(folder: Path) -> None:
    """Write every file below `folder` to the disk and drop it from the page cache. Raises Void when much of it stays.

    Pages that somebody has mapped stay, whatever is asked; a few of those (indexes) are no matter.
    """
    held, total = 0, 0
    for path in log_files(folder):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            size = os.fstat(file.fileno()).st_size
            total += size
            held += _cached_bytes(file.fileno(), size)
    if held > total / 20:
        raise Void(f"{held / 1e6:.0f} of {total / 1e6:.0f} MB of the log stayed in the page cache")


def _cached_bytes(descriptor: int, size: int) -> int:
    """Of a file, how much is in the page cache: mincore over a mapping of it."""
    if not size:
        return 0
    page = mmap.PAGESIZE
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED) as mapped:
        found = (ctypes.c_ubyte * ((size + page - 1) // page))()
        view = numpy.frombuffer(mapped, dtype=numpy.uint8)
        ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), found
        )
        del view
        return int((numpy.frombuffer(bytes(found), dtype=numpy.uint8) & 1).sum()) * page


def _reports_free_pages() -> bool:
    return Path("/sys/module/page_reporting").exists()


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
