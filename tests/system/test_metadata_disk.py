"""The disk below the metadata store fails for a while: the appliance goes on, and so does the controller afterwards."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.control.store.embedded_store import DATABASE_NAME
from appliance.control.store.metadata_copy import COPY_NAME
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import appliance
from tests.support.broker import Appliance, BrokerFailed
from tests.support.power_loss import LAYER
from tests.support.wire import WireSocket
from tests.system.offsets import SETTINGS, commit, committed, find, topic_id
from tests.system.raw import create_topic, generations, produce, wait_until

EIO_S = 2.5
TOPIC = "t"


@pytest.fixture
def trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "trigger"
    monkeypatch.setenv("PYTHONPATH", str(LAYER))
    monkeypatch.setenv("DISK_LAYER_SQLITE", str(path))
    return path


@pytest.fixture
def broker(tmp_path: Path, trigger: Path) -> Iterator[Appliance]:
    started = Appliance(tmp_path / "data", settings={"metadata.store": "embedded"})
    started.start()
    assert create_topic(started.port, TOPIC) == 0
    yield started
    trigger.unlink(missing_ok=True)
    started.stop()


def fail(trigger: Path, name: str, calls: str = "*") -> None:
    temporary = trigger.with_suffix(".new")
    temporary.write_text(f"{errno.EIO} {calls} {name}")
    temporary.rename(trigger)


@pytest.mark.parametrize("calls", ["*", "pread64,pread,read"])
@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_controller_that_starts_while_the_disk_fails_waits_for_it(
    broker: Appliance, trigger: Path, suffix: str, calls: str
) -> None:
    before = generations(broker)
    fail(trigger, f"{DATABASE_NAME}{suffix}", calls)
    broker.kill_role("controller")
    with WireSocket(broker.port, timeout_s=20) as connection:
        until = time.monotonic() + EIO_S
        while time.monotonic() < until:
            assert produce(connection, TOPIC, encode_batch([Record(b"x")])).error == 0
            time.sleep(0.05)
    trigger.unlink()
    wait_until(lambda: create_topic(broker.port, "afterwards") in (0, 36), "a new topic")
    after = generations(broker)
    assert {role for role in before if after.get(role) != before[role]} == {"controller"}
    assert "RESTORED" not in broker.output()


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_controller_that_leads_while_the_disk_fails_comes_back(
    broker: Appliance, trigger: Path, suffix: str
) -> None:
    before = generations(broker)
    fail(trigger, f"{DATABASE_NAME}{suffix}")
    with WireSocket(broker.port, timeout_s=20) as connection:
        until = time.monotonic() + EIO_S
        number = 0
        while time.monotonic() < until:
            number += 1
            create_topic(broker.port, f"meanwhile-{number}", timeout_ms=300)
            assert produce(connection, TOPIC, encode_batch([Record(b"x")])).error == 0
    trigger.unlink()
    wait_until(lambda: create_topic(broker.port, "afterwards") in (0, 36), "a new topic")
    after = generations(broker)
    assert {role for role in before if after.get(role) != before[role]} <= {"controller"}
    assert "RESTORED" not in broker.output()


def test_appliance_whose_store_and_copy_are_damaged_does_not_start_and_says_what_to_do(
    broker: Appliance,
) -> None:
    broker.stop()
    for name in (DATABASE_NAME, COPY_NAME):
        path = broker.data_dir / name
        path.write_bytes(os.urandom(path.stat().st_size))
    kept = {path: path.read_bytes() for path in broker.data_dir.glob("metadata.*")}
    with pytest.raises(BrokerFailed, match=r"docs/metadata\.md"):
        broker.start()
    for path, data in kept.items():
        assert path.read_bytes() == data


def test_records_of_a_damaged_store_are_served_again_after_it_was_restored(broker: Appliance) -> None:
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert produce(connection, TOPIC, encode_batch([Record(b"x")])).base_offset == 0
    broker.stop()
    path = broker.data_dir / DATABASE_NAME
    path.write_bytes(os.urandom(path.stat().st_size))
    broker.start()
    assert "RESTORED" in broker.output()
    with WireSocket(broker.port, timeout_s=20) as connection:
        assert produce(connection, TOPIC, encode_batch([Record(b"x")])).base_offset == 1


def coordinator_of(group: str, port: int) -> int:
    """Return the slot that coordinates the group, once there is one: the first question creates the internal topic."""
    deadline = time.monotonic() + 30
    with WireSocket(port, timeout_s=20) as connection:
        while (found := find(connection, group)).error_code:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
    slot: int = found.node_id
    return slot


def test_store_that_is_lost_with_its_copy_is_rebuilt_from_a_log_directory(tmp_path: Path) -> None:
    lost = Appliance(tmp_path / "lost", slots=2, settings={"metadata.store": "embedded", **SETTINGS})
    lost.start()
    assert create_topic(lost.port, TOPIC) == 0
    topics = (OffsetCommitTopic(TOPIC, partitions=(OffsetCommitPartition(0, 3),)),)
    with WireSocket(lost.port + coordinator_of("g", lost.port), timeout_s=20) as connection:
        assert not any(commit(connection, OffsetCommitRequest("g", topics=topics)))
    produced = 0
    while produced < 5:
        for slot in range(2):
            with WireSocket(lost.port + slot, timeout_s=20) as connection:
                produced += produce(connection, TOPIC, encode_batch([Record(b"x")])).error == 0
    before = topic_id(lost.port, TOPIC)
    lost.stop()
    for name in (DATABASE_NAME, COPY_NAME):
        path = lost.data_dir / name
        path.write_bytes(os.urandom(path.stat().st_size))
    appliance("adopt", lost.data_dir / "slot-0", "--data-dir", tmp_path / "new").succeeded()
    rebuilt = Appliance(tmp_path / "new", settings={"metadata.store": "embedded", **SETTINGS})
    rebuilt.start()
    assert topic_id(rebuilt.port, TOPIC) == before
    with WireSocket(rebuilt.port, timeout_s=20) as connection:
        assert produce(connection, TOPIC, encode_batch([Record(b"x")])).base_offset == produced
        find(connection, "g")
        assert committed(connection, "g", TOPIC) == 3
    rebuilt.stop()
