"""`durability = "fsync"` with replicas: what acks=all acknowledged outlives the power on each in-sync disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.support.broker import Appliance
from tests.support.power_loss import after_power_loss, layer_environment
from tests.support.raw_fetch import parse_batches
from tests.support.wire import WireSocket
from tests.system.acked_load import AckedLoad, create, in_sync, leaders, settled
from tests.system.raw import produce, wait_until

SLOTS: Final = 3
PARTITIONS: Final = 3
SEGMENT_BYTES: Final = 1 << 20
SETTINGS: Final = {"durability": "fsync", "log.segment.bytes": SEGMENT_BYTES}
TOPIC: Final = "t"


def numbers_in(partition: Path) -> set[int]:
    """The records of AckedLoad in a partition's files, as far as they hold whole batches."""
    found: set[int] = set()
    for segment in sorted(partition.glob("*.log")):
        stored = segment.read_bytes()
        stored = stored.rstrip(b"\0") + b"\0"  # the last byte of a batch without headers
        for batch in parse_batches(stored):
            found |= {
                int(bytes(record.value or b"")) for record in decode_records(stored[: batch.length_bytes])
            }
            stored = stored[batch.length_bytes :]
    return found


def test_acked_records_are_on_the_disk_of_every_replica_when_the_power_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    for name, value in (layer_environment() | {"DISK_LAYER_SHADOW": str(shadow)}).items():
        monkeypatch.setenv(name, value)
    broker = Appliance(tmp_path / "data", slots=SLOTS, settings=SETTINGS)
    broker.start()
    create(broker, TOPIC, PARTITIONS, replicas=SLOTS, min_insync_replicas=str(SLOTS))
    with AckedLoad(broker, TOPIC, PARTITIONS) as load:
        load.until(300, timeout_s=60)
        # A leader that was a follower has a log whose end its disk may not have.
        leader = leaders(broker, TOPIC)[0]
        broker.kill_role(f"ioproc {leader}.0")
        load.until(300, timeout_s=60)
        broker.kill()
        acknowledged = {number: set(records) for number, records in load.acked.items()}
        load.give_up()
    for slot in range(SLOTS):
        left = tmp_path / f"left-{slot}"
        after_power_loss(tmp_path / f"data/slot-{slot}", shadow, left)
        for number, records in acknowledged.items():
            lost = records - numbers_in(left / f"{TOPIC}-{number}")
            assert not lost, f"slot {slot} lost {sorted(lost)[:5]} of partition {number}"


def test_copy_whose_flush_failed_counts_no_more_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = tmp_path / "fail"
    for name, value in (layer_environment() | {"DISK_LAYER_FAULTS": str(trigger)}).items():
        monkeypatch.setenv(name, value)
    broker = Appliance(tmp_path / "data", slots=SLOTS, settings=SETTINGS)
    broker.start()
    create(broker, TOPIC, 1, replicas=SLOTS, min_insync_replicas="2")
    wait_until(lambda: len(in_sync(broker, TOPIC)[0]) == SLOTS, "all are in sync", timeout_s=30)
    leader = leaders(broker, TOPIC)[0]
    follower = (leader + 1) % SLOTS
    with WireSocket(broker.port + leader, timeout_s=60) as connection:
        assert produce(connection, TOPIC, encode_batch([Record(b"0")])).error == 0
        trigger.write_text(f"{os.sep}slot-{follower}{os.sep}{TOPIC}-0{os.sep}")
        assert produce(connection, TOPIC, encode_batch([Record(b"1")])).error == 0
        wait_until(lambda: follower not in in_sync(broker, TOPIC)[0], "out of sync", timeout_s=30)
        trigger.unlink()
        assert produce(connection, TOPIC, encode_batch([Record(b"2")])).error == 0
    assert in_sync(broker, TOPIC)[0] == set(range(SLOTS)) - {follower}
    broker.stop()
    monkeypatch.undo()
    broker.start()
    settled(broker, TOPIC, 1)
    broker.stop()
