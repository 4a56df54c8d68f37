"""`durability = "fsync"`: an acknowledged record outlives the power, and a flush that failed is never taken for one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.support.broker import Appliance
from tests.support.power_loss import after_power_loss, layer_environment
from tests.support.raw_fetch import fetch, parse_batches
from tests.support.store import copy_metadata
from tests.support.wire import ConnectionEnded, WireSocket
from tests.system.raw import ask, create_topic, generations, produce, wait_until

FSYNC: Final = {"durability": "fsync"}
SEGMENT_BYTES: Final = 1 << 20
PRODUCERS, PARTITIONS = 8, 3
LATEST: Final = -1


class Writer:
    """Produces numbered records to one partition until the connection ends; `acked` maps offset → value."""

    def __init__(self, port: int, number: int) -> None:
        self._port, self._number = port, number
        self.partition = number % PARTITIONS
        self.acked: dict[int, bytes] = {}
        self.refused: list[int] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        count = 0
        try:
            with WireSocket(self._port) as connection:
                while True:
                    value = b"%d %d " % (self._number, count) + bytes(4000 if count % 3 else 10)
                    count += 1
                    told = produce(connection, "t", encode_batch([Record(value)]), partition=self.partition)
                    if told.error:
                        self.refused.append(told.error)
                        return
                    self.acked[told.base_offset] = value
        except (ConnectionEnded, OSError):
            return

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


def all_records(broker: Appliance, partition: int) -> dict[int, bytes]:
    """Offset → value of everything that consumers see; every batch here holds one record."""
    found: dict[int, bytes] = {}
    with WireSocket(broker.port, timeout_s=20) as connection:
        while True:
            offset = max(found, default=-1) + 1
            answer = fetch(connection, "t", partition, offset=offset)
            if not answer:
                return found
            for batch in parse_batches(answer):
                for record in decode_records(answer[: batch.length_bytes]):
                    found[batch.base_offset] = bytes(record.value or b"")
                answer = answer[batch.length_bytes :]


def latest(broker: Appliance, partition: int = 0) -> tuple[int, int]:
    """(error, end offset) as consumers are told."""
    request = ListOffsetsRequest(-1, (ListOffsetsTopic("t", (ListOffsetsPartition(partition, LATEST),)),))
    with WireSocket(broker.port) as connection:
        found = ask(connection, ApiKey.LIST_OFFSETS, request).topics[0].partitions[0]
    return found.error_code, found.offset


def under_load(broker: Appliance, end: Callable[[], None], records: int = 400) -> list[Writer]:
    """Writers that ran until `end` ended them, after `records` were acknowledged."""
    writers = [Writer(broker.port, number) for number in range(PRODUCERS)]
    wait_until(lambda: sum(len(w.acked) for w in writers) >= records, "records acknowledged", timeout_s=60)
    end()
    for writer in writers:
        writer.join()
    return writers


def check_all_there(broker: Appliance, writers: list[Writer]) -> None:
    for partition in range(PARTITIONS):
        found = all_records(broker, partition)
        assert list(found) == sorted(found)
        for writer in writers:
            if writer.partition == partition:
                assert {offset: found.get(offset) for offset in writer.acked} == writer.acked


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data", settings=FSYNC | {"log.segment.bytes": SEGMENT_BYTES})
    try:
        yield appliance
        assert "Traceback" not in appliance.output()
    finally:
        appliance.stop()


@pytest.mark.slow
def test_every_acknowledged_record_is_there_after_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    for name, value in (layer_environment() | {"DISK_LAYER_SHADOW": str(shadow)}).items():
        monkeypatch.setenv(name, value)
    settings = FSYNC | {"log.segment.bytes": SEGMENT_BYTES}
    broker = Appliance(tmp_path / "data", settings=settings)
    broker.start()
    assert create_topic(broker.port, "t", partitions=PARTITIONS) == 0
    writers = under_load(broker, broker.kill, records=1500)
    assert any(len(list(path.glob("*.log"))) > 1 for path in (tmp_path / "data/slot-0").glob("t-*")), (
        "no roll"
    )

    left = tmp_path / "left"
    left.mkdir()
    # The metadata store forces its file by itself (SQLite), which the layer does not see.
    same_tree = copy_metadata(tmp_path / "data", left)
    after_power_loss(tmp_path / "data/slot-0", shadow, left / "slot-0")
    monkeypatch.undo()
    after = Appliance(left, settings={**settings, **same_tree})
    after.start()
    try:
        check_all_there(after, writers)
    finally:
        after.stop()


def test_a_power_cut_takes_what_page_cache_mode_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge judges: without fsync the simulation loses records."""
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    for name, value in (layer_environment() | {"DISK_LAYER_SHADOW": str(shadow)}).items():
        monkeypatch.setenv(name, value)
    broker = Appliance(tmp_path / "data")
    broker.start()
    assert create_topic(broker.port, "t") == 0
    with WireSocket(broker.port) as connection:
        assert produce(connection, "t", encode_batch([Record(b"v")])).error == 0
    broker.kill()
    after_power_loss(tmp_path / "data/slot-0", shadow, tmp_path / "left")
    assert not any(path.stat().st_size for path in (tmp_path / "left").rglob("*.log"))


def test_acknowledged_records_survive_the_kill_of_everything_and_are_visible_again(broker: Appliance) -> None:
    broker.start()
    assert create_topic(broker.port, "t", partitions=PARTITIONS) == 0
    writers = under_load(broker, broker.kill)
    broker.start()
    check_all_there(broker, writers)


def test_a_stop_answers_who_waits_for_a_flush(broker: Appliance) -> None:
    broker.start()
    assert create_topic(broker.port, "t", partitions=PARTITIONS) == 0
    writers = under_load(broker, broker.stop)
    assert not any(writer.refused for writer in writers)
    broker.start()
    check_all_there(broker, writers)


def test_durability_is_a_topics_own_and_takes_what_kafka_would_refuse(broker: Appliance) -> None:
    broker.start()
    assert create_topic(broker.port, "t", configs={"durability": "page-cache"}) == 0
    assert create_topic(broker.port, "u", configs={"durability": "sometimes"}) == ErrorCode.INVALID_CONFIG
    with WireSocket(broker.port) as connection:
        assert produce(connection, "t", encode_batch([Record(b"v")])).error == 0


def test_a_failed_flush_takes_the_partition_offline_and_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: Appliance
) -> None:
    trigger = tmp_path / "fail"
    for name, value in (layer_environment() | {"DISK_LAYER_FAULTS": str(trigger)}).items():
        monkeypatch.setenv(name, value)
    broker.start()
    assert create_topic(broker.port, "t") == 0
    before = generations(broker)
    with WireSocket(broker.port) as connection:
        assert produce(connection, "t", encode_batch([Record(b"kept")])).error == 0
        trigger.write_text("/t-0/")
        refused = produce(connection, "t", encode_batch([Record(b"lost")]))
        assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
        trigger.unlink()
        again = produce(connection, "t", encode_batch([Record(b"lost")]))
        assert again.error == ErrorCode.KAFKA_STORAGE_ERROR, "the next fdatasync would have succeeded"
    assert latest(broker)[0] == ErrorCode.KAFKA_STORAGE_ERROR
    wait_until(
        lambda: offline_replicas(broker) == [(ErrorCode.LEADER_NOT_AVAILABLE, -1, (0,))], "metadata says so"
    )
    assert generations(broker) == before, "nobody died of it"
    assert "t-0 is offline" in broker.output()
    broker.stop()
    monkeypatch.undo()
    broker.start()
    values = all_records(broker, 0)
    assert values[0] == b"kept"
    assert offline_replicas(broker) == [(0, 0, ())]


def offline_replicas(broker: Appliance) -> list[Any]:
    with WireSocket(broker.port) as connection:
        metadata = ask(connection, ApiKey.METADATA, MetadataRequest((TopicSelector("t"),)))
    return [(p.error_code, p.leader_id, p.offline_replicas) for p in metadata.topics[0].partitions]
