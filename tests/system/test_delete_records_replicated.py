"""DeleteRecords of a replicated topic is answered when every living replica has let go of the records as well."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cluster import TopicPartition
from appliance.log.checkpoint import read_offsets
from appliance.log.file_names import LOG_STARTS
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.acked_load import create, in_sync, leaders
from tests.system.raw import ask, produce, suspend, wait_until

TOPIC = "shortened"
SLOTS = 3
RECORDS = 10
LONG_MS = 50_000
LONG_S = 60.0
SHORT_MS = 50


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data", slots=SLOTS)
    appliance.start()
    yield appliance
    appliance.stop()


def fill(broker: Appliance, connection: WireSocket) -> None:
    """RECORDS records, on every slot."""
    for number in range(RECORDS):
        assert produce(connection, TOPIC, encode_batch([Record(b"%d" % number)])).error == 0
    wait_until(lambda: len(in_sync(broker, TOPIC)[0]) == SLOTS, "all are in sync", timeout_s=30)


def delete(connection: WireSocket, before: int, timeout_ms: int) -> DeleteRecordsPartitionResult:
    wanted = DeleteRecordsTopic(TOPIC, (DeleteRecordsPartition(0, before),))
    answer = ask(connection, ApiKey.DELETE_RECORDS, DeleteRecordsRequest((wanted,), timeout_ms))
    told: DeleteRecordsPartitionResult = answer.topics[0].partitions[0]
    return told


def test_deletion_waits_for_a_living_replica_as_long_as_it_may_and_not_for_a_dead_one(
    broker: Appliance,
) -> None:
    create(broker, TOPIC, 1, replicas=SLOTS)
    leader = leaders(broker, TOPIC)[0]
    with WireSocket(broker.port + leader, timeout_s=LONG_S) as connection:
        fill(broker, connection)
        assert delete(connection, 3, LONG_MS) == DeleteRecordsPartitionResult(0, 3, 0)

        (stopped,) = broker.pids(f"replica {(leader + 1) % SLOTS}")
        suspend(stopped)
        try:
            told = delete(connection, 5, SHORT_MS)
            assert (told.error_code, told.low_watermark) == (ErrorCode.REQUEST_TIMED_OUT, 3)
        finally:
            os.kill(stopped, signal.SIGCONT)
        assert delete(connection, 6, LONG_MS) == DeleteRecordsPartitionResult(0, 6, 0)

        suspend(stopped)
        os.kill(stopped, signal.SIGKILL)
        assert delete(connection, -1, LONG_MS) == DeleteRecordsPartitionResult(0, RECORDS, 0)


def test_deleted_records_do_not_come_back_with_any_slot(broker: Appliance) -> None:
    """Not even where all is killed a moment later, and whoever leads then."""
    create(broker, TOPIC, 1, replicas=SLOTS)
    leader = leaders(broker, TOPIC)[0]
    with WireSocket(broker.port + leader, timeout_s=LONG_S) as connection:
        fill(broker, connection)
        assert delete(connection, 6, LONG_MS) == DeleteRecordsPartitionResult(0, 6, 0)

    def starts() -> list[int | None]:
        found = (read_offsets(broker.data_dir / f"slot-{slot}" / LOG_STARTS) for slot in range(SLOTS))
        return [each.get(TopicPartition(TOPIC, 0)) for each in found]

    wait_until(lambda: starts() == [6] * SLOTS, "every disk knows", timeout_s=15)
