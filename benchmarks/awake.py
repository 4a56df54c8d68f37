"""Cores that are awake when one lone request comes, in the way that suits the machine at hand.

A core with nothing to do halts. On a virtual machine its waking is then an interrupt that the host carries, and a host
that must run the core again: tens of µs. A bare core sleeps so lightly that it sees the waker's write by itself. What
comes nearest to that differs:

    halting    the machine as it was found
    looking    the kernel is told that no wake-up may take time (PM QoS, /dev/cpu_dma_latency): an idle core looks for
               work by itself, and needs no interrupt. Asks for root, and for a kernel that has an idle governor
    spinning   a process of the idle class on each core: it never halts, but its waking is an interrupt still

So each is tried, by waking another core and being woken by it. Taken is the first of them, in this order, that costs
less than twice what the quickest does: what is nearly as quick and nearer to the machine as it is. All brokers have it
alike, and the page tells which it was and what each took.
"""

import functools
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path

from benchmarks.load import build
from benchmarks.void import Void

WAKE_LATENCY = Path("/dev/cpu_dma_latency")
TURNS, PAIRS = 3, 1000
PATIENCE_SECONDS = 20.0
ENOUGH = 2.0
"""A way must cost less than this share of another to be taken before it: less than that differs from start to start."""


class Way(StrEnum):
    """What idle cores do meanwhile, the nearest to the machine as it is first."""

    HALTING = "halting"
    LOOKING = "looking"
    SPINNING = "spinning"


@contextmanager
def _spinning() -> Iterator[None]:
    """A spinning process a core, in the idle scheduling class: no core halts, and all other work goes first.

    Raises Void when one of them has ended before its time.
    """
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for core in sorted(os.sched_getaffinity(0)):
            processes.append(subprocess.Popen([build.spinner(), str(core)]))
        yield
        if any(process.poll() is not None for process in processes):
            raise Void("a process that keeps a core awake has ended")
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
    Way.LOOKING: _looking,
    Way.SPINNING: _spinning,
}


@functools.cache
def wakes_us() -> dict[Way, float]:
    """µs to wake another core and be woken by it, by each way that this machine allows: the median of some turns.

    Nothing where there is one core. Raises Void when that cannot be tried at all.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return {}
    ways = [way for way in Way if _is_ours(way)]
    took: dict[Way, list[float]] = {way: [] for way in ways}
    for _ in range(TURNS):
        for way in ways:
            with WAYS[way]():
                took[way].append(_there_and_back_us(cores[0], cores[-1]))
    return {way: statistics.median(each) for way, each in took.items()}


def _is_ours(way: Way) -> bool:
    """Whether this machine lets us."""
    try:
        with WAYS[way]():
            return True
    except OSError:
        return False


def _there_and_back_us(core: int, other: int) -> float:
    words = [str(build.wake()), str(core), str(other), str(PAIRS)]
    try:
        return float(subprocess.run(words, check=True, capture_output=True, timeout=PATIENCE_SECONDS).stdout)
    except subprocess.SubprocessError as fault:
        raise Void(f"how soon a core is woken cannot be tried: {fault}") from fault


def chosen() -> Way:
    """The way that is taken here."""
    took = wakes_us()
    quickest = min(took.values(), default=0.0)
    return next((way for way in Way if way in took and took[way] < ENOUGH * quickest), Way.HALTING)


def described(took: Mapping[Way, float] | Mapping[str, float]) -> str:
    """What each way took, for people."""
    each = ", ".join(f"{way} {us:.0f} µs" for way, us in took.items())
    return f"there and back between two cores: {each or 'there is one'}"


def choice() -> str:
    """Which way is taken here and what each took, for people."""
    return f"{chosen()}; {described(wakes_us())}"


def awake_cores() -> AbstractContextManager[None]:
    """Keeps all cores awake, in that way."""
    return WAYS[chosen()]()
