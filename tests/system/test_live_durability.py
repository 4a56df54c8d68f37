"""`durability` of a topic changes while it is served, and the change outlives the kill of the worker that obeyed it."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.support.power_loss import layer_environment
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, produce, wait_until


def test_a_change_of_durability_governs_the_next_record_and_outlives_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = tmp_path / "fail"
    for name, value in (layer_environment() | {"DISK_LAYER_FAULTS": str(trigger)}).items():
        monkeypatch.setenv(name, value)
    broker = Appliance(tmp_path / "data")

    def error() -> int:
        with WireSocket(broker.port) as connection:
            return produce(connection, "t", encode_batch([Record(b"v")])).error

    def workers() -> list[int]:
        return broker.pids("ioproc 0.0")

    broker.start()
    try:
        assert create_topic(broker.port, "t") == 0
        trigger.write_text("/t-0/")
        assert error() == 0, "page-cache: nothing is forced"
        trigger.unlink()
        appliance("configs", "set", "durability=fsync", "--topic", "t", "-b", broker.address).succeeded()
        assert error() == 0
        before = broker.kill_role("ioproc 0.0")
        wait_until(
            lambda: workers() not in ([], [before]) and error() == 0, "its next life serves", timeout_s=30
        )
        trigger.write_text("/t-0/")
        assert error() == ErrorCode.KAFKA_STORAGE_ERROR, "fsync: the flush is tried, and fails"
    finally:
        broker.stop()
