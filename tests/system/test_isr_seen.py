"""An operator sees when a replica leaves the ISR and when it returns: in the log, and as counters of `status`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from appliance.cli.status import processes_of
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import Lines, create_topic, produce, suspend, wait_until


@pytest.fixture
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    settings = {"replica.lag.time.max.ms": 1000, "default.replication.factor": 3}
    appliance = Appliance(tmp_path_factory.mktemp("isr") / "data", slots=3, settings=settings)
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


def counted(broker: Appliance) -> tuple[int, int]:
    """ISR shrinks and expansions, as `appliance status --json` has them."""
    processes = processes_of(broker.data_dir.resolve())
    (controller,) = (each for each in processes or () if each["role"] == "controller")
    return controller["counters"]["isr_shrinks"], controller["counters"]["isr_expansions"]


def test_a_replica_that_falls_behind_is_said_to_leave_the_isr_and_to_return(broker: Appliance) -> None:
    assert create_topic(broker.port, "seen") == ErrorCode.NONE
    batch = bytes(encode_batch([Record(b"v")]))
    ports = [broker.port + slot for slot in range(3)]

    def leader() -> int | None:
        """The slot that takes a record."""
        for slot, port in enumerate(ports):
            with WireSocket(port) as connection:
                if produce(connection, "seen", batch, acks=1).error == ErrorCode.NONE:
                    return slot
        return None

    wait_until(lambda: leader() is not None, "somebody leads")
    led_by = leader()
    assert led_by is not None
    shrinks, expansions = counted(broker)
    lines = Lines(broker)
    follower = (led_by + 1) % 3
    (replica,) = (row.pid for row in broker.processes() if row.role == f"replica {follower}")
    suspend(replica)
    try:
        leader()  # there is a record that the follower lacks
        wait_until(
            lambda: bool(lines.containing(f"slot {follower} left the ISR of seen-0")), "the shrink is said"
        )
        wait_until(lambda: counted(broker)[0] > shrinks, "the shrink is counted")
    finally:
        os.kill(replica, signal.SIGCONT)
    wait_until(
        lambda: bool(lines.containing(f"slot {follower} joined the ISR of seen-0")), "the expansion is said"
    )
    wait_until(lambda: counted(broker)[1] > expansions, "the expansion is counted")
