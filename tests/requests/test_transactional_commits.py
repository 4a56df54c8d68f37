"""TxnOffsetCommit: the transaction's coordinator is asked, then the group's coordinator gets the client's frame."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from appliance.cluster import CONSUMER_OFFSETS
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartition,
    TxnOffsetCommitPartitionResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitTopic,
    TxnOffsetCommitTopicResponse,
)
from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.group_partition import group_partition
from appliance.protocol.messages import encode_request
from appliance.requests.session import Request, Session
from tests.requests.serving import TOPIC
from tests.requests.transacting import EPOCH, ID, PARTITIONS, PRODUCER, Transacting, transacting

GROUP = "group"
COMMIT = ApiKey.TXN_OFFSET_COMMIT
REQUEST = TxnOffsetCommitRequest(
    ID,
    GROUP,
    PRODUCER,
    EPOCH,
    (TxnOffsetCommitTopic(TOPIC, (TxnOffsetCommitPartition(0, 5, ""), TxnOffsetCommitPartition(1, 6, ""))),),
)
VERSIONS = range(COMMIT.min_version, COMMIT.max_version + 1)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Transacting]:
    with transacting(tmp_path) as made:
        yield made


def commit(house: Transacting, session: Session, version: int) -> Request:
    return house.serve(session, encode_request(COMMIT, version, REQUEST, 1))


def told_errors(response: Any) -> list[int]:
    return [each.error_code for topic in response.topics for each in topic.partitions]


@pytest.mark.parametrize("version", VERSIONS)
def test_frame_goes_to_the_group_when_the_transaction_has_its_partition(
    house: Transacting, version: int
) -> None:
    pending = commit(house, house.session(), version)
    (question,) = house.questions()
    assert question.partitions == [(CONSUMER_OFFSETS, group_partition(GROUP, PARTITIONS))]
    assert question.producer == (ID, PRODUCER, EPOCH)
    assert question.verifies is (version < 5)
    house.coordinator_says(question)
    (received,) = house.coordinator_got()
    assert received.reply.header.api_key == COMMIT
    assert house.read(received) == REQUEST
    partitions = tuple(TxnOffsetCommitPartitionResponse(number) for number in range(2))
    house.reply(received, TxnOffsetCommitResponse((TxnOffsetCommitTopicResponse(TOPIC, partitions),)))
    assert told_errors(house.told(pending)) == [0, 0]
    assert house.holds_nothing


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (ErrorCode.PRODUCER_FENCED, 3, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.TRANSACTION_ABORTABLE, 3, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 4, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.NETWORK_EXCEPTION, 5, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_COORDINATOR, 5, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 4, ErrorCode.CONCURRENT_TRANSACTIONS),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 0, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
    ],
)
def test_word_of_the_transactions_coordinator_is_told_for_every_partition(
    house: Transacting, said: ErrorCode, version: int, told: ErrorCode
) -> None:
    pending = commit(house, house.session(), version)
    house.coordinator_says(house.questions()[0], int(said))
    assert house.worker_describes() == 1
    assert told_errors(house.told(pending)) == [int(told)] * 2
    assert house.coordinator_got() == []
    assert house.holds_nothing


@pytest.mark.parametrize("version", VERSIONS)
def test_partition_that_is_not_there_has_its_own_error_beside_any_other(
    house: Transacting, version: int
) -> None:
    topics = (
        TxnOffsetCommitTopic(
            TOPIC, (TxnOffsetCommitPartition(0, 5, ""), TxnOffsetCommitPartition(PARTITIONS, 6, ""))
        ),
        TxnOffsetCommitTopic("none", (TxnOffsetCommitPartition(0, 5, ""),)),
    )
    request = msgspec.structs.replace(REQUEST, topics=topics)
    pending = house.serve(house.session(), encode_request(COMMIT, version, request, 1))
    house.coordinator_says(house.questions()[0], int(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    assert house.worker_describes() == 1
    assert told_errors(house.told(pending)) == [int(ErrorCode.INVALID_PRODUCER_ID_MAPPING), 3, 3]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("found", "is_open"),
    [
        ((PRODUCER, EPOCH, 0), True),
        ((PRODUCER, EPOCH, 70), True),
        ((PRODUCER, EPOCH, -1), False),
        ((PRODUCER, EPOCH + 1, 70), False),
        ((PRODUCER, EPOCH - 1, 70), False),
        ((PRODUCER + 1, EPOCH, 70), False),
        (None, False),
    ],
)
def test_offsets_go_into_a_transaction_that_is_open_there_whatever_its_coordinator_says(
    house: Transacting, version: int, found: tuple[int, int, int] | None, *, is_open: bool
) -> None:
    pending = commit(house, house.session(), version)
    house.coordinator_says(house.questions()[0], int(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    assert house.coordinator_got() == []
    assert house.worker_describes(found) == 1
    received = house.coordinator_got()
    if is_open:
        assert [house.read(each) for each in received] == [REQUEST]
    else:
        assert received == []
        assert told_errors(house.told(pending)) == [int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)] * 2
        assert house.holds_nothing


def test_death_of_the_worker_that_is_asked_leaves_the_coordinators_word(house: Transacting) -> None:
    pending = commit(house, house.session(), 4)
    house.coordinator_says(house.questions()[0], int(ErrorCode.TRANSACTION_ABORTABLE))
    house.worker_dies()
    assert told_errors(house.told(pending)) == [int(ErrorCode.TRANSACTION_ABORTABLE)] * 2
    assert house.holds_nothing


def test_session_that_leaves_while_the_worker_is_asked_commits_nothing(house: Transacting) -> None:
    session = house.session()
    commit(house, session, 4)
    house.coordinator_says(house.questions()[0], int(ErrorCode.TRANSACTION_ABORTABLE))
    session.closed = True
    assert house.worker_describes((PRODUCER, EPOCH, 0)) == 1
    assert house.coordinator_got() == []
    assert house.holds_nothing


@pytest.mark.parametrize("when", ["before", "asked", "handed over"])
def test_death_of_the_coordinator_is_told(house: Transacting, when: str) -> None:
    if when == "before":
        house.coordinator_dies()
    pending = commit(house, house.session(), 5)
    if when != "before":
        (question,) = house.questions()
        if when == "handed over":
            house.coordinator_says(question)
            assert len(house.coordinator_got()) == 1
        house.coordinator_dies()
    assert house.worker_describes() == (when != "handed over")
    assert told_errors(house.told(pending)) == [int(ErrorCode.COORDINATOR_NOT_AVAILABLE)] * 2
    assert house.holds_nothing


def test_session_that_leaves_before_the_answer_commits_nothing(house: Transacting) -> None:
    session = house.session()
    commit(house, session, 5)
    (question,) = house.questions()
    session.closed, session.queue = True, None
    house.coordinators.leave(session)
    house.coordinator_says(question)
    assert house.coordinator_got() == []
    assert house.holds_nothing


def test_slot_that_does_not_lead_the_partition_adds_nothing_to_the_transaction(house: Transacting) -> None:
    session = house.session()
    session.slot = 1
    commit(house, session, 5)
    (received,) = house.coordinator_got()
    assert received.reply.header.api_key == COMMIT
    assert received.reply.slot == 1


def test_question_is_for_the_slot_that_leads_the_partition_of_the_transactional_id(
    house: Transacting,
) -> None:
    session = house.session()
    commit(house, session, 5)
    (question,) = house.questions()
    assert question.received.reply.slot == 0


# ── InitProducerId by request, and markers for offsets ───────────────────────────────────────────────────


@pytest.mark.parametrize("version", range(6))
def test_producer_with_a_transactional_id_gets_its_id_from_the_coordinator(
    house: Transacting, version: int
) -> None:
    request = InitProducerIdRequest(ID, 60_000)
    pending = house.serve(house.session(), encode_request(ApiKey.INIT_PRODUCER_ID, version, request, 1))
    (received,) = house.coordinator_got()
    assert house.read(received) == request
    house.reply(received, InitProducerIdResponse(producer_id=77, producer_epoch=5))
    told = house.told(pending)
    assert (told.error_code, told.producer_id, told.producer_epoch) == (0, 77, 5)


@pytest.mark.parametrize("version", range(6))
def test_producer_without_a_transactional_id_is_none_of_the_coordinators(
    house: Transacting, version: int
) -> None:
    request = InitProducerIdRequest(None, 60_000)
    house.serve(house.session(), encode_request(ApiKey.INIT_PRODUCER_ID, version, request, 1))
    assert house.coordinator_got() == []


def markers(house: Transacting, session: Session) -> Request:
    marker = WritableTxnMarker(
        PRODUCER, EPOCH, True, (WritableTxnMarkerTopic(CONSUMER_OFFSETS, (2,)),), 1, transaction_version=2
    )
    frame = encode_request(ApiKey.WRITE_TXN_MARKERS, 2, WriteTxnMarkersRequest((marker,)), 1)
    pending = house.serve(session, frame)
    house.run()
    return pending


def marker_error(response: Any) -> int:
    error: int = response.markers[0].topics[0].partitions[0].error_code
    return error


@pytest.mark.parametrize("error", [0, int(ErrorCode.INVALID_PRODUCER_EPOCH)])
def test_marker_for_offsets_goes_to_the_coordinator_of_its_partition(house: Transacting, error: int) -> None:
    pending = markers(house, house.session())
    (received,) = house.coordinator_got()
    (marker,) = house.read(received).markers
    assert (marker.producer_id, marker.transaction_result, marker.transaction_version) == (PRODUCER, True, 2)
    result = WritableTxnMarkerTopicResult(CONSUMER_OFFSETS, (WritableTxnMarkerPartitionResult(2, error),))
    house.reply(received, WriteTxnMarkersResponse((WritableTxnMarkerResult(PRODUCER, (result,)),)))
    house.run()
    assert marker_error(house.told(pending)) == error
    assert house.holds_nothing


def test_marker_for_offsets_without_a_coordinator_is_asked_for_again(house: Transacting) -> None:
    pending = markers(house, house.session())
    assert len(house.coordinator_got()) == 1
    house.coordinator_dies()
    house.run()
    assert marker_error(house.told(pending)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert house.holds_nothing


def test_marker_for_offsets_that_another_slot_leads_is_not_written(house: Transacting) -> None:
    session = house.session()
    session.slot = 1
    pending = markers(house, session)
    assert marker_error(house.told(pending)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert house.coordinator_got() == []
