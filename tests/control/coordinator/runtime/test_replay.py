"""A state machine that is loaded gets every record and every end of a transaction, in the log's order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.control.coordinator.runtime.effects import Record
from appliance.control.coordinator.runtime.runtime import Share
from appliance.control.coordinator.runtime.shard import State
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import record as records
from appliance.protocol.records.batch import CONTROL, TRANSACTIONAL
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from tests.control.coordinator.runtime.host import Host
from tests.control.coordinator.runtime.toy import NO_PRODUCER, TOPIC, ToyMachine, ToyService

PARTITIONS = 3


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    made = Host(tmp_path, TOPIC, lambda _: ToyService(), partitions=PARTITIONS)
    made.settle()
    yield made
    made.close()


def machine(host: Host, partition: int = 0) -> ToyMachine:
    assert isinstance(host.service, ToyService)
    return host.service.by_partition[partition]


def append(host: Host, batch: bytes) -> None:
    """To partition 0, as the transaction coordinator will."""
    log = host.led[0].log
    log.append(memoryview(batch), leader_epoch=0, origin=AppendOrigin.COORDINATOR, transaction_verified=True)
    host.led[0].publish()


def data(*pairs: tuple[bytes, bytes | None], producer: int = NO_PRODUCER, epoch: int = -1) -> bytes:
    return records.encode_batch(
        [records.Record(key=key, value=value) for key, value in pairs],
        attributes=TRANSACTIONAL if producer >= 0 else 0,
        producer_id=producer,
        producer_epoch=epoch,
        codec=Codec.GZIP if len(pairs) > 1 else Codec.NONE,
    )


def marker(producer: int, epoch: int, *, committed: bool) -> bytes:
    return encode_marker_batch(
        EndTransactionMarker(committed, 9), producer_id=producer, producer_epoch=epoch, timestamp_ms=1
    )


def load_again(host: Host) -> None:
    host.kill_coordinator()
    host.settle()


def test_machine_gets_offset_producer_and_epoch_of_each_record_and_marker(host: Host) -> None:
    append(host, data((b"plain", b"1")))
    append(host, data((b"a", b"1"), (b"b", b"1"), producer=7, epoch=2))
    append(host, data((b"a", b"2"), producer=8, epoch=4))
    append(host, marker(7, 2, committed=True))
    append(host, data((b"plain", b"2")))
    append(host, marker(8, 4, committed=False))
    load_again(host)
    loaded = machine(host)
    assert [(offset, producer, epoch, each.key) for offset, producer, epoch, each in loaded.replayed] == [
        (0, -1, -1, b"plain"),
        (1, 7, 2, b"a"),
        (2, 7, 2, b"b"),
        (3, 8, 4, b"a"),
        (5, -1, -1, b"plain"),
    ]
    assert loaded.markers == [
        (4, 7, 2, EndTransactionMarker(True, 9)),
        (6, 8, 4, EndTransactionMarker(False, 9)),
    ]
    assert loaded.values == {b"plain": b"2", b"a": b"1", b"b": b"1"}


def test_record_of_a_transaction_that_is_open_is_given_and_counts_for_nothing_yet(host: Host) -> None:
    append(host, data((b"a", b"1"), producer=7, epoch=0))
    load_again(host)
    assert machine(host).open == {7: [(1, Record(b"a", b"1"))]}
    assert machine(host).values == {}


def test_tombstone_and_record_without_a_key_are_given_as_they_are(host: Host) -> None:
    append(host, data((b"a", b"1"), (b"a", None)))
    append(host, records.encode_batch([records.Record(key=None, value=b"x")]))
    load_again(host)
    assert [each for _, _, _, each in machine(host).replayed] == [
        Record(b"a", b"1"),
        Record(b"a", None),
        Record(b"", b"x"),
    ]


def test_control_batch_that_is_no_end_of_a_transaction_means_nothing(host: Host) -> None:
    leader_change = records.encode_batch(
        [records.Record(key=b"\0\0\0\2", value=b"\0\0")], attributes=CONTROL, producer_id=-1
    )
    append(host, leader_change)
    append(host, data((b"a", b"1")))
    load_again(host)
    assert machine(host).markers == []
    assert machine(host).values == {b"a": b"1"}


def test_log_that_the_machine_cannot_read_fails_its_partition_alone(host: Host) -> None:
    append(host, data((b"torn", b"1")))
    host.kill_coordinator()
    with pytest.raises(AssertionError, match="nothing settles"):
        host.settle()
    assert [shard.state for shard in host.shards.shards] == [State.FAILED, State.ACTIVE, State.ACTIVE]
    assert host.shards.shards[0].gate(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    host.new_epoch()
    with pytest.raises(AssertionError, match="nothing settles"):
        host.settle()
    assert host.shards.shards[0].state is State.FAILED, "it was tried once more"


def test_records_that_do_not_add_up_fail_the_partition_and_not_the_process(host: Host) -> None:
    """The batch's checksum holds, and the record's key is longer than the record."""
    key_of_100_bytes = bytes((12, 0, 0, 0, 0xC8, 0x01, 0))
    batch = records.frame_batch(key_of_100_bytes, count=1, leader_epoch=0)
    host.led[0].log.append_as_follower(memoryview(batch))
    host.led[0].publish()
    host.kill_coordinator()
    with pytest.raises(AssertionError, match="nothing settles"):
        host.settle()
    assert [shard.state for shard in host.shards.shards] == [State.FAILED, State.ACTIVE, State.ACTIVE]


def test_new_image_is_told_to_loaded_machines(host: Host) -> None:
    before = [machine(host, number).images for number in range(PARTITIONS)]
    host.publish_image()
    host.turn()
    assert [machine(host, number).images for number in range(PARTITIONS)] == [each + 1 for each in before]


@pytest.mark.parametrize("index", [0, 1])
def test_partitions_of_other_coordinators_are_not_loaded(tmp_path: Path, index: int) -> None:
    host = Host(
        tmp_path, TOPIC, lambda _: ToyService(), partitions=PARTITIONS, share=Share(index, processes=2)
    )
    try:
        host.settle()
        loaded = [shard.number for shard in host.shards.shards if shard.state is State.ACTIVE]
        assert loaded == list(range(index, PARTITIONS, 2))
        others = [shard for shard in host.shards.shards if shard.number not in loaded]
        assert {shard.gate(0) for shard in others} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
        host.kill_worker()
        host.settle()
        assert [shard.state is State.ACTIVE for shard in host.shards.shards].count(True) == len(loaded)
    finally:
        host.close()
