"""An acknowledged commit outlives every process that had to do with it, whichever is killed while it goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.errors import ErrorCode
from tests.support.broker import Appliance
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.offsets import RETRIED, SETTINGS, commit_request, committed, find
from tests.system.raw import ask, create_topic, wait_until


class Committer(threading.Thread):
    """Commits 1, 2, 3 … for a group with its coordinator; `acked` is the last that was acknowledged."""

    def __init__(self, port: int, group: str, topic: str) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._group = group
        self._topic = topic
        self.acked = 0
        self.tried = 0
        self.faults: list[str] = []
        self.stop = threading.Event()

    def run(self) -> None:
        while not self.stop.is_set():
            try:
                with WireSocket(self._port, timeout_s=30) as connection:
                    found = find(connection, self._group)
                if found.error_code:
                    time.sleep(0.02)
                    continue
                with WireSocket(found.port, timeout_s=30) as connection:
                    self._commit(connection)
            except (ConnectionEnded, ConnectionError):
                time.sleep(0.02)
            except Exception as fault:
                self.faults.append(repr(fault))
                return

    def _commit(self, connection: WireSocket) -> None:
        while not self.stop.is_set():
            self.tried = max(self.tried, self.acked) + 1
            request = commit_request(self._group, self._topic, self.tried)
            (error,) = [
                p.error_code
                for topic in ask(connection, ApiKey.OFFSET_COMMIT, request, version=9).topics
                for p in topic.partitions
            ]
            if not error:
                self.acked = self.tried
            elif error == ErrorCode.NOT_COORDINATOR:
                return
            elif error in RETRIED:
                time.sleep(0.005)
            else:
                self.faults.append(ErrorCode(error).name)
                return


@pytest.fixture(scope="module", params=[1, 2], ids=["one coordinator", "two coordinators"])
def broker(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Appliance]:
    settings = {**SETTINGS, "coordinator.processes": request.param}
    appliance = Appliance(tmp_path_factory.mktemp("offsets"), settings=settings)
    appliance.start()
    yield appliance
    appliance.stop()


def test_acknowledged_commit_survives_kills_of_coordinator_worker_and_network_process(
    broker: Appliance,
) -> None:
    create_topic(broker.port, "kills")
    with WireSocket(broker.port, timeout_s=20) as connection:
        find(connection, "kills-0")
    committers = [Committer(broker.port, f"kills-{number}", "kills") for number in range(6)]
    for committer in committers:
        committer.start()
    for role in ("coordinator", "ioproc", "coordinator", "netproc", "ioproc", "coordinator"):
        await_progress(committers)
        broker.kill_role(role)
    for committer in committers:
        committer.stop.set()
    for committer in committers:
        committer.join(60)
        assert not committer.is_alive()
        assert not committer.faults
    with WireSocket(broker.port, timeout_s=20) as connection:
        for number, committer in enumerate(committers):
            there = committed(connection, f"kills-{number}", "kills")
            assert committer.acked <= there <= committer.tried


def test_acknowledged_commit_survives_kills_of_the_leading_slots_worker(tmp_path: Path) -> None:
    """The partitions of three slots' groups are led elsewhere when a worker dies, and led back."""
    appliance = Appliance(tmp_path, slots=3, settings={**SETTINGS, "offsets.topic.num.partitions": 3})
    appliance.start()
    try:
        create_topic(appliance.port, "slots", partitions=3)
        groups = [f"slots-{number}" for number in range(6)]
        with WireSocket(appliance.port, timeout_s=30) as connection:
            leaders = {find(connection, group).node_id for group in groups}
        assert len(leaders) > 1, "groups of more than one slot"
        committers = [Committer(appliance.port, group, "slots") for group in groups]
        for committer in committers:
            committer.start()
        for role, index in (("ioproc", 0), ("coordinator", 0), ("ioproc", 2), ("replica", 1)):
            await_progress(committers)
            appliance.kill_role(role, index)
        await_progress(committers)
        for committer in committers:
            committer.stop.set()
        for committer in committers:
            committer.join(60)
            assert not committer.is_alive()
            assert not committer.faults
        for group, committer in zip(groups, committers, strict=True):
            there = committed_at_its_coordinator(appliance.port, group, "slots")
            assert committer.acked <= there <= committer.tried
    finally:
        appliance.stop()


def await_progress(committers: list[Committer]) -> None:
    floor = [committer.acked for committer in committers]
    wait_until(
        lambda: all(c.acked > before for c, before in zip(committers, floor, strict=True)),
        "every group commits",
        timeout_s=30,
    )


def committed_at_its_coordinator(port: int, group: str, topic: str) -> int:
    with WireSocket(port, timeout_s=30) as connection:
        found = find(connection, group)
    with WireSocket(found.port, timeout_s=30) as connection:
        return committed(connection, group, topic)
