"""WriteTxnMarkers over a real connection: what is appended, and what is refused."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import pytest

from appliance.cluster import CONSUMER_OFFSETS
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from appliance.protocol.apis.find_coordinator import GROUP, TRANSACTION, FindCoordinatorRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartition,
    TxnOffsetCommitRequest,
    TxnOffsetCommitTopic,
)
from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic, new_producer_id, produce

LATER: Final = {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}


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


def fetched(connection: WireSocket, group: str) -> tuple[int, int]:
    """Return the error and the committed offset of partition 0 of `here`, asked with require_stable."""
    wanted = (OffsetFetchTopic("here", partition_indexes=(0,)),)
    request = OffsetFetchRequest(groups=(OffsetFetchGroup(group, wanted),), require_stable=True)
    (answer,) = ask(connection, ApiKey.OFFSET_FETCH, request, version=9).groups
    (partition,) = answer.topics[0].partitions
    return partition.error_code, partition.committed_offset


@pytest.mark.parametrize("commits", [True, False])
def test_marker_for_offsets_decides_about_those_of_a_hanging_transaction(
    broker: Appliance, *, commits: bool
) -> None:
    """`kafka-transactions.sh abort` sends it for a partition that stops its group from starting."""
    create_topic(broker.port, "here")
    group = f"hanging-{commits}"
    with WireSocket(broker.port, timeout_s=20) as connection:
        for kind in (GROUP, TRANSACTION):
            request = FindCoordinatorRequest(key_type=kind, coordinator_keys=(group,))
            until_served(partial(found, connection, request))
        init = InitProducerIdRequest(group, 60_000)
        producer = until_served(lambda: ask(connection, ApiKey.INIT_PRODUCER_ID, init))
        who = producer.producer_id, producer.producer_epoch
        added = AddOffsetsToTxnRequest(group, *who, group)
        until_served(lambda: ask(connection, ApiKey.ADD_OFFSETS_TO_TXN, added))
        topics = (TxnOffsetCommitTopic("here", (TxnOffsetCommitPartition(0, 42, ""),)),)
        commit = TxnOffsetCommitRequest(group, group, *who, topics)
        until_served(
            lambda: ask(connection, ApiKey.TXN_OFFSET_COMMIT, commit, version=4).topics[0].partitions[0]
        )
        assert fetched(connection, group)[0] == ErrorCode.UNSTABLE_OFFSET_COMMIT
        partition = group_partition(group, 50)
        marker = WritableTxnMarker(
            *who, commits, (WritableTxnMarkerTopic(CONSUMER_OFFSETS, (partition,)),), coordinator_epoch=5
        )
        response = ask(connection, ApiKey.WRITE_TXN_MARKERS, WriteTxnMarkersRequest((marker,)))
        assert response.markers[0].topics[0].partitions[0].error_code == ErrorCode.NONE
        assert fetched(connection, group) == (ErrorCode.NONE, 42 if commits else -1)


def found(connection: WireSocket, request: FindCoordinatorRequest) -> Any:
    return ask(connection, ApiKey.FIND_COORDINATOR, request).coordinators[0]


def until_served(ask_it: Callable[[], Any]) -> Any:
    """Return the first answer that does not say "later"."""
    deadline = time.monotonic() + 30
    while (answer := ask_it()).error_code in LATER:
        assert time.monotonic() < deadline, answer
        time.sleep(0.05)
    assert answer.error_code == ErrorCode.NONE
    return answer
