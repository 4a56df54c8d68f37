"""The replica fetcher: a copy that was kept from going on is looked at again."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.channels.wiring import Attachment
from appliance.clock import ManualClock
from appliance.config import BrokerSettings
from appliance.errors import ApplianceError, DiskFull
from appliance.ipc.agent import Timers
from appliance.ipc.process_table import ProcessTable, process_table_size_bytes
from appliance.journal import RateLimited
from appliance.log.flusher import Flusher
from appliance.log.state_publisher import StatePublisher
from appliance.partition_host.checkpoints import Checkpoints
from appliance.partition_host.listener import PartitionListener
from appliance.partition_host.removals import Removals
from appliance.replicas.durable_copies import DurableCopies
from appliance.replicas.fetcher import REFUSED_AGAIN_MS, Fetcher
from appliance.replicas.follower import Follower
from appliance.replicas.leader_lines import LeaderLines
from tests.replicas.pair import ROW, Pair


class Fetching(PartitionListener[Follower]):
    """A fetcher of one copy, where no leader's worker is up: nobody to hear, nobody to tell."""

    def __init__(self, follower: Follower) -> None:
        self.clock = ManualClock()
        self.timers = Timers(self.clock.monotonic_ns)
        self.faults: list[ApplianceError] = []
        row = ProcessTable(memoryview(bytearray(process_table_size_bytes(1)))).row(0)
        nobody = cast("Attachment", SimpleNamespace(inbound={}, outbound={}, bells={}, row=row))
        settings = BrokerSettings()
        removals = Removals(self.timers, self.clock, settings=settings, eventfd=-1, warn=print)
        self.fetcher = Fetcher(
            self.timers,
            self.clock,
            lines=LeaderLines(nobody),
            durable=DurableCopies(Flusher("test", eventfd=-1), listener=self),
            checkpoints=Checkpoints(
                self.timers,
                self.clock,
                settings=settings,
                publisher=StatePublisher(self.timers.after_ms, self.clock, interval_ms=60_000, warn=print),
                removals=removals,
                listener=self,
                complain=RateLimited(print, self.clock),
            ),
            listener=self,
        )
        self.fetcher.open({ROW: follower})
        self.follower = follower

    def refused(self, partition: Follower, fault: ApplianceError) -> None:
        self.faults.append(fault)

    def told(self) -> None:
        """A word of the leader, and turns until there is no more."""
        self.fetcher.look_at(self.follower)
        self.go_on()

    def go_on(self) -> None:
        for _ in range(1000):
            if not self.fetcher.turn():
                return
        raise AssertionError("there is always more")

    def pass_time(self, duration_ms: int) -> None:
        self.clock.advance(duration_ms)
        self.timers.run_due(self.clock.monotonic_ns())
        self.go_on()


@contextmanager
def no_room_for_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def refused(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(os, "rename", refused)
        yield


def test_a_copy_whose_old_segments_cannot_be_retired_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(tmp_path)
    fetching = Fetching(pair.follower)
    pair.append(60)
    fetching.told()
    assert pair.files(1) == pair.files(0)
    pair.leader.advance_start(40)
    pair.append(1)
    with no_room_for_names(monkeypatch):
        fetching.told()
    assert [type(fault) for fault in fetching.faults] == [DiskFull]
    assert pair.follower.log.first_base_offset == 0
    assert fetching.fetcher.statistics() == {"due": 0}
    fetching.pass_time(REFUSED_AGAIN_MS)
    assert 0 < pair.follower.log.first_base_offset <= 40
    assert pair.follower.log.log_start_offset == 40
    pair.append(1)
    fetching.told()
    assert pair.follower.log.log_end_offset == 62
