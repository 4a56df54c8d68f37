"""Regions that leave no name behind, and children that are always reaped."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from appliance.ipc.shared_memory import Region
from tests.support.private_directory import private_directory

MakeRegion = Callable[[int], Region]


class ForkedChild:
    """A forked process that runs one function: exit code 0, or 1 with its traceback on standard error."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._status: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                # A lost wake-up must fail the test, not hang it.
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(240)
                work()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)

    def join(self) -> int:
        """Its exit code; minus the signal's number when one ended it."""
        if self._status is None:
            _, status = os.waitpid(self.pid, 0)
            self._status = os.waitstatus_to_exitcode(status)
        return self._status

    def kill(self) -> int:
        if self._status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        return self.join()


Fork = Callable[[Callable[[], object]], ForkedChild]


@pytest.fixture
def instance() -> Iterator[str]:
    """Yield a private directory of this test's own, with a slash behind it."""
    with private_directory() as path:
        yield f"{path}/"


@pytest.fixture
def make_region(instance: str) -> Iterator[MakeRegion]:
    regions: list[Region] = []

    def make(size_bytes: int) -> Region:
        region = Region.create(f"{instance}{len(regions)}", size_bytes)
        regions.append(region)
        return region

    yield make
    for region in regions:
        region.close()


@pytest.fixture
def fork() -> Iterator[Fork]:
    children: list[ForkedChild] = []

    def start(work: Callable[[], object]) -> ForkedChild:
        child = ForkedChild(work)
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
