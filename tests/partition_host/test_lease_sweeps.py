"""Owners of logs sweep expired leases of readers each minute."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.clock import ManualClock
from appliance.cluster import TopicPartition
from appliance.config import BrokerSettings
from appliance.ipc.agent import Timers
from appliance.log.config import LogSettings
from appliance.log.log_directories import LogDirectories
from appliance.log.reader_leases import LEASE, READERS, SWEEP_MS, Lease
from appliance.partition_host.removals import Removals

TTL_MS = SWEEP_MS // 2


class Owner:
    """Logs with a lease on each, and the time of their owner."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock.monotonic_ns)
        self.directories = LogDirectories.open([root], node_id=0, cluster_id="tests", clock=self.clock)
        self.leases = []
        for number in range(3):
            partition = TopicPartition("orders", number)
            log = self.directories.open_partition(partition, UUID(int=7), LogSettings())
            path = log.directory / READERS / f"dead{LEASE}"
            path.parent.mkdir()
            path.write_bytes(Lease("dead", "tests", "here", "batch", TTL_MS, 0).encode())
            self.leases.append(path)

    def pass_ms(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        for _ in range(2):  # what a timer adds is due in the next turn
            self.timers.run_due(self.clock.monotonic_ns())


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[Owner]:
    found = Owner(tmp_path / "slot-0")
    yield found
    found.directories.abandon()


def expect_swept(owner: Owner, swept: Callable[[], object]) -> None:
    """Each lease is seen by the first sweep, and removed by the one a minute later."""
    owner.pass_ms(0)
    swept()
    assert all(path.exists() for path in owner.leases)
    owner.pass_ms(SWEEP_MS)
    swept()
    deadline_s = time.monotonic() + 30
    while any(path.exists() for path in owner.leases):
        assert time.monotonic() < deadline_s, "the leases are not swept"
        time.sleep(0.01)


def test_a_worker_sweeps_leases_of_its_logs_though_it_removes_nothing(owner: Owner) -> None:
    eventfd = os.eventfd(0)
    try:
        removals = Removals(
            owner.timers, owner.clock, settings=BrokerSettings(), eventfd=eventfd, warn=pytest.fail
        )
        removals.open(owner.directories)
        removals.open(owner.directories)
        expect_swept(owner, lambda: os.eventfd_read(eventfd))
        removals.take_removed()
        owner.pass_ms(SWEEP_MS)
        os.eventfd_read(eventfd)
        assert not removals.take_removed(), "nobody need hear of a sweep"
    finally:
        os.close(eventfd)
