"""WriteTxnMarkers over a real connection: what is appended, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic, new_producer_id, produce


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("markers") / "data")
    appliance.start()
    try:
        yield appliance
    finally:
        appliance.stop()


def written(
    broker: Appliance, topic: str, producer_id: int, *, epoch: int = 0, coordinator_epoch: int = 5
) -> int:
    """The error of one marker for partition 0."""
    marker = WritableTxnMarker(
        producer_id, epoch, False, (WritableTxnMarkerTopic(topic, (0, 0)),), coordinator_epoch
    )
    with WireSocket(broker.port) as connection:
        response = ask(connection, ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest((marker,)))
    ((topics,),) = ((each.topics for each in response.markers),)
    ((result,),) = ((each.partitions for each in topics),)
    (partition,) = result
    error: int = partition.error_code
    return error


def test_a_marker_is_appended_once_and_fences_older_ones(broker: Appliance) -> None:
    assert create_topic(broker.port, "t") == ErrorCode.NONE
    producer_id, epoch = new_producer_id(broker.port)
    batch = bytes(
        encode_batch([Record(b"v")], producer_id=producer_id, producer_epoch=epoch, base_sequence=0)
    )
    with WireSocket(broker.port) as connection:
        assert produce(connection, "t", batch).base_offset == 0
        assert written(broker, "t", producer_id, epoch=epoch) == ErrorCode.NONE
        assert produce(connection, "t", bytes(encode_batch([Record(b"v")]))).base_offset == 2
    assert written(broker, "t", producer_id, coordinator_epoch=4) == (
        ErrorCode.TRANSACTION_COORDINATOR_FENCED
    )


@pytest.mark.parametrize(
    ("topic", "producer_id", "error"),
    [
        ("nowhere", 1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("here", -1, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_names_no_partition_or_no_producer_is_refused(
    broker: Appliance, topic: str, producer_id: int, error: ErrorCode
) -> None:
    create_topic(broker.port, "here")
    assert written(broker, topic, producer_id) == error
