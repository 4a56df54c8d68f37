"""Appends to and reads from any topic, under the origin that the appender says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.log.producer_state import AppendOrigin
from appliance.partition_access.access import UNKNOWN_OUTCOME, Read
from appliance.partition_access.places import LogPlace
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.control import EndTransactionMarker, encode_marker_batch
from appliance.protocol.records.keyed_batch import encode_keyed_batch
from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.control.coordinator.runtime.host import WORKER, Host
from tests.control.coordinator.runtime.toy import ToyService

PRODUCER, EPOCH = 7, 3


@pytest.fixture(params=["audit", "__transaction_state", "__share_group_state"])
def host(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Host]:
    made = Host(tmp_path, request.param, lambda _: ToyService(request.param))
    made.settle()
    yield made
    made.close()


def place_of(host: Host, partition: int = 0) -> LogPlace:
    place = host.image.log_places(host.topic)[partition]
    assert place is not None
    return place


def append(
    host: Host, batch: bytes, *, origin: AppendOrigin = AppendOrigin.COORDINATOR, verified: bool = False
) -> int:
    """The outcome of an append to partition 0."""
    outcomes: list[int] = []
    taken = host.access.append(
        place_of(host), batch, outcomes.append, origin=origin, transaction_verified=verified
    )
    assert taken
    work(host)
    (outcome,) = outcomes
    return outcome


def work(host: Host) -> None:
    host.access.publish()
    host.fetch_requests()
    while host.asked:
        host.append_next()
    host.answer()
    host.turn()


def read(host: Host, offset: int, *, is_committed: bool = False) -> Read:
    found: list[Read] = []
    assert host.access.read(place_of(host), offset, found.append, is_committed=is_committed)
    work(host)
    (each,) = found
    return each


def transactional(number: int) -> bytes:
    """A producer's batch of one record in a transaction."""
    return encode_batch(
        [Record(key=b"key", value=b"%d" % number)],
        attributes=TRANSACTIONAL,
        producer_id=PRODUCER,
        producer_epoch=EPOCH,
        base_sequence=number,
    )


def marker(*, committed: bool = True) -> bytes:
    return encode_marker_batch(
        EndTransactionMarker(committed, 5), producer_id=PRODUCER, producer_epoch=EPOCH, timestamp_ms=1
    )


def test_what_was_appended_to_a_topic_is_read_from_it(host: Host) -> None:
    assert append(host, encode_keyed_batch([(b"key", b"value")], timestamp_ms=1)) == 0
    assert append(host, encode_keyed_batch([(b"key", None)], timestamp_ms=1)) == 0
    found = read(host, 0)
    (chunk,) = found.chunks
    records = [record for batch in chunk.batches for record in decode_records(chunk.data, batch.position)]
    assert [(record.key, record.value) for record in records] == [(b"key", b"value"), (b"key", None)]
    assert found.path.parent.name == f"{host.topic}-0"
    assert found.high_watermark == 2
    assert read(host, 2) == Read(high_watermark=2, log_start=0, end=2)


def test_committed_records_are_read_up_to_the_first_open_transaction(host: Host) -> None:
    for number, committed in ((0, False), (1, True)):
        assert append(host, transactional(number), origin=AppendOrigin.CLIENT, verified=True) == 0
        assert append(host, marker(committed=committed)) == 0
    assert append(host, transactional(2), origin=AppendOrigin.CLIENT, verified=True) == 0
    assert append(host, encode_keyed_batch([(b"key", b"behind")], timestamp_ms=1)) == 0
    found = read(host, 0, is_committed=True)
    assert (found.high_watermark, found.end, len(found.chunks[0].batches)) == (6, 4, 4)
    assert [(each.producer_id, each.first_offset, each.last_offset) for each in found.aborted] == [
        (PRODUCER, 0, 1)
    ]
    assert host.access.last_stable_offset(place_of(host)) == 4
    assert read(host, 2, is_committed=True).aborted == (), "it ended before"
    assert read(host, 4, is_committed=True).chunks == ()
    everything = read(host, 0)
    assert (everything.end, everything.aborted, len(everything.chunks[0].batches)) == (6, (), 6)


def test_only_a_coordinator_may_append_control_batches(host: Host) -> None:
    assert append(host, marker(), origin=AppendOrigin.CLIENT) == ErrorCode.INVALID_TXN_STATE
    assert append(host, marker(), origin=AppendOrigin.CLIENT, verified=True) == ErrorCode.INVALID_RECORD
    assert host.log_ends()[0] == 0
    assert append(host, marker()) == 0
    assert host.log_ends()[0] == 1


def test_batch_of_a_transaction_is_appended_where_the_transaction_is_verified_or_open(host: Host) -> None:
    assert append(host, transactional(0), origin=AppendOrigin.CLIENT) == ErrorCode.INVALID_TXN_STATE
    assert append(host, transactional(0), origin=AppendOrigin.CLIENT, verified=True) == 0
    assert append(host, transactional(1), origin=AppendOrigin.CLIENT) == 0, "it is open now"
    assert append(host, marker(committed=False)) == 0
    assert append(host, transactional(2), origin=AppendOrigin.CLIENT) == ErrorCode.INVALID_TXN_STATE


def test_coordinators_batches_need_no_sequence_numbers_and_clients_do(host: Host) -> None:
    batch = encode_batch(
        [Record(key=b"key", value=b"value")],
        attributes=TRANSACTIONAL,
        producer_id=PRODUCER,
        producer_epoch=EPOCH,
    )
    assert append(host, batch, origin=AppendOrigin.CLIENT, verified=True) == ErrorCode.INVALID_RECORD
    assert append(host, batch, verified=True) == 0
    assert append(host, batch, verified=True) == 0


def test_what_the_owner_has_not_read_is_counted(host: Host) -> None:
    place = place_of(host)
    outcomes: list[int] = []
    before = host.access.unread(place.worker)
    for _ in range(3):
        host.access.permit(place, PRODUCER, EPOCH, outcomes.append)
    assert host.access.unread(place.worker) == before + 3, "before it is shown, too"
    work(host)
    assert len(outcomes) == 3
    assert host.access.unread(place.worker) == 0
    host.kill_worker()
    assert host.access.unread(place.worker) == 0


def test_append_to_a_partition_that_nobody_serves_fails_at_once(host: Host) -> None:
    place = place_of(host)
    host.kill_worker()
    outcomes: list[int] = []
    assert host.access.append(place, b"batch", outcomes.append, origin=AppendOrigin.COORDINATOR)
    assert outcomes == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


def permit(host: Host, *, epoch: int = EPOCH) -> int:
    """What the owner answers to a permit."""
    outcomes: list[int] = []
    assert host.access.permit(place_of(host), PRODUCER, epoch, outcomes.append)
    work(host)
    (outcome,) = outcomes
    return outcome


def end(host: Host, *, epoch: int = EPOCH, version: int = 1, coordinator_epoch: int = 5) -> int:
    """What the owner answers to a commit marker."""
    outcomes: list[int] = []
    assert host.access.write_marker(
        place_of(host),
        producer_id=PRODUCER,
        producer_epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        commit=True,
        transaction_version=version,
        done=outcomes.append,
    )
    work(host)
    (outcome,) = outcomes
    return outcome


def test_permit_lets_one_transaction_begin_and_its_marker_ends_it(host: Host) -> None:
    assert permit(host) == 0
    assert append(host, transactional(0), origin=AppendOrigin.CLIENT) == 0
    assert append(host, transactional(1), origin=AppendOrigin.CLIENT) == 0
    assert end(host) == 0
    assert append(host, transactional(2), origin=AppendOrigin.CLIENT) == ErrorCode.INVALID_TXN_STATE
    assert permit(host) == 0
    assert append(host, transactional(2), origin=AppendOrigin.CLIENT) == 0


def test_marker_takes_the_permit_away_that_was_asked_for_before_it(host: Host) -> None:
    outcomes: list[int] = []
    assert host.access.permit(place_of(host), PRODUCER, EPOCH, outcomes.append)
    assert end(host) == 0
    assert outcomes == [0]
    assert append(host, transactional(0), origin=AppendOrigin.CLIENT) == ErrorCode.INVALID_TXN_STATE


def test_marker_of_an_older_coordinator_or_a_fenced_epoch_is_refused(host: Host) -> None:
    assert permit(host) == 0
    assert append(host, transactional(0), origin=AppendOrigin.CLIENT) == 0
    assert end(host, epoch=EPOCH - 1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end(host, version=2) == ErrorCode.INVALID_PRODUCER_EPOCH, "the next epoch is due"
    assert end(host, epoch=EPOCH + 1, version=2, coordinator_epoch=6) == 0
    assert end(host, epoch=EPOCH + 1, version=2, coordinator_epoch=6) == 0, "sent again"
    assert end(host, epoch=EPOCH + 1, version=2) == ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_what_waits_for_a_worker_that_dies_has_an_unknown_outcome(host: Host) -> None:
    outcomes: list[int] = []
    place = place_of(host)
    assert host.access.permit(place, PRODUCER, EPOCH, outcomes.append)
    assert host.access.write_marker(
        place,
        producer_id=PRODUCER,
        producer_epoch=EPOCH,
        coordinator_epoch=5,
        commit=True,
        transaction_version=2,
        done=outcomes.append,
    )
    host.access.publish()
    host.kill_worker()
    host.access.worker_down(WORKER)
    assert outcomes == [UNKNOWN_OUTCOME, UNKNOWN_OUTCOME]
    assert host.access.permit(place, PRODUCER, EPOCH, outcomes.append)
    assert outcomes[2:] == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
