"""Cores that are awake when one lone request comes, in whichever way wakes them soonest on the machine at hand.

A core with nothing to do halts. On a virtual machine its waking is then an interrupt that the host carries and a host
that must run the core again, tens of µs; a bare core sleeps so lightly that it sees the waker's write by itself. What
comes nearest to that differs:

    halting    the machine as it was found
    spinning   a process of the idle class on each core: it never halts, but waking is an interrupt still
    looking    the kernel is told that no wake-up may take time (PM QoS, /dev/cpu_dma_latency): an idle core looks for
               work by itself, and needs no interrupt. Asks for root, and for a kernel that has an idle governor

So each is tried, by waking another core and being woken by it, and the quickest is taken, alike for all brokers. The
page tells which, and what each took.
"""

import functools
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path

from benchmarks.load import build

WAKE_LATENCY = Path("/dev/cpu_dma_latency")
PAIRS = 2000
PATIENCE_SECONDS = 20.0


class Way(StrEnum):
    """What idle cores do meanwhile."""

    HALTING = "halting"
    SPINNING = "spinning"
    LOOKING = "looking"


@contextmanager
def _spinning() -> Iterator[None]:
    """A spinning process a core, in the idle scheduling class: no core halts, and all other work goes first."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for core in sorted(os.sched_getaffinity(0)):
            processes.append(subprocess.Popen([build.spinner(), str(core)]))
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def _looking() -> Iterator[None]:
    """The kernel's word for as long as the file is open, so that it is taken back whatever becomes of the harness.

    Raises OSError where that is not ours to ask.
    """
    request = os.open(WAKE_LATENCY, os.O_WRONLY)
    try:
        os.write(request, bytes(4))  # i32, µs
        yield
    finally:
        os.close(request)


WAYS: dict[Way, Callable[[], AbstractContextManager[None]]] = {
    Way.HALTING: nullcontext,
    Way.SPINNING: _spinning,
    Way.LOOKING: _looking,
}


@functools.cache
def wakes_us() -> dict[Way, float]:
    """µs to wake another core and be woken by it, by each way that this machine allows; none where it has one core."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    taken: dict[Way, float] = {}
    for way, keeping in WAYS.items() if len(cores) == 2 else ():
        try:
            with keeping():
                words = [str(build.wake()), *map(str, cores), str(PAIRS)]
                told = subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
        except (OSError, subprocess.SubprocessError):
            continue
        taken[way] = float(told.stdout)
    return taken


def way() -> Way:
    """The quickest of them."""
    taken = wakes_us()
    return min(taken, key=taken.__getitem__, default=Way.HALTING)


def told(taken: Mapping[Way, float] | Mapping[str, float]) -> str:
    """What each way took, for people."""
    return "there and back between two cores: " + (
        ", ".join(f"{way} {us:.0f} µs" for way, us in taken.items()) or "there is one"
    )


def awake_cores() -> AbstractContextManager[None]:
    """Keeps all cores awake, in that way."""
    return WAYS[way()]()
