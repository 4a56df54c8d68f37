"""Requests of one connection take effect in order: two in one send, the second sees what the first has done."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest
from appliance.protocol.apis.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from appliance.protocol.apis.list_offsets import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.framing import SIZE
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.raw_fetch import FETCH, PARTITION, REQUEST, VERSION, parse_batches
from tests.support.wire import WireSocket, nullable_string
from tests.system.offsets import commit, commit_request, find
from tests.system.raw import create_topic, produce, produce_frame, read_produced, wait_until

TRIES = 30
TOPIC = "ordered"
BATCH = encode_batch([Record(b"value")])
LONG_POLL_MS = 400


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path_factory.mktemp("order") / "data", settings={"io.workers": 2})
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC, partitions=2) == 0
        yield appliance
    finally:
        appliance.stop()


def framed(api: ApiKey, request: Any, version: int | None = None) -> bytes:
    version = api.max_version if version is None else version
    return bytes(messages.encode_request(api, version, request, 1, client_id="raw"))


def read(connection: WireSocket, api: ApiKey, version: int | None = None) -> Any:
    version = api.max_version if version is None else version
    body = connection.read_frame()
    return messages.decode_response(api, version, memoryview(SIZE.pack(len(body)) + body))[1]


def offsets_question(timestamp_ms: int, topic: str = TOPIC) -> bytes:
    topics = (ListOffsetsTopic(topic, (ListOffsetsPartition(0, timestamp_ms),)),)
    return framed(ApiKey.LIST_OFFSETS, ListOffsetsRequest(-1, topics))


def offset_answered(connection: WireSocket) -> int:
    answer = read(connection, ApiKey.LIST_OFFSETS).topics[0].partitions[0]
    assert answer.error_code == 0
    offset: int = answer.offset
    return offset


def fetch_frame(offset: int, *, max_wait_ms: int) -> bytes:
    wanted = PARTITION.pack(0, offset, 1 << 20)
    topics = struct.pack(">i", 1) + nullable_string(TOPIC) + struct.pack(">i", 1) + wanted
    header = struct.pack(">hhi", FETCH, VERSION, 2) + nullable_string("raw")
    payload = header + REQUEST.pack(-1, max_wait_ms, 1, 1 << 26, 0) + topics
    return SIZE.pack(len(payload)) + payload


def fetched(answer: bytes) -> list[int]:
    """The base offsets of the batches of a one-partition answer of Fetch v4."""
    position = 4 + 4 + 4 + 2 + len(TOPIC) + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, position)
    assert error == 0
    assert aborted <= 0
    (length,) = struct.unpack_from(">i", answer, position + 26)
    records = answer[position + 30 : position + 30 + max(length, 0)]
    return [batch.base_offset for batch in parse_batches(records)]


@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_list_offsets_behind_a_produce_knows_its_records(broker: Appliance, acks: int) -> None:
    stale = 0
    with WireSocket(broker.port) as connection:
        end = produce(connection, TOPIC, BATCH).base_offset + 1
        for _ in range(TRIES):
            connection.send(produce_frame(TOPIC, BATCH, acks=acks) + offsets_question(LATEST_TIMESTAMP))
            if acks:
                assert read_produced(connection.read_frame()).base_offset == end
            end += 1
            stale += offset_answered(connection) != end
    assert stale == 0


def test_fetch_behind_a_produce_reads_its_records(broker: Appliance) -> None:
    stale = 0
    with WireSocket(broker.port) as connection:
        end = produce(connection, TOPIC, BATCH).base_offset + 1
        for _ in range(TRIES):
            connection.send(produce_frame(TOPIC, BATCH) + fetch_frame(end, max_wait_ms=0))
            assert read_produced(connection.read_frame()).base_offset == end
            stale += fetched(connection.read_frame()) != [end]
            end += 1
    assert stale == 0


def test_produce_behind_a_fetch_that_waits_is_not_what_ends_the_wait(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:
        end = produce(connection, TOPIC, BATCH).base_offset + 1
        began = time.monotonic()
        connection.send(fetch_frame(end, max_wait_ms=LONG_POLL_MS) + produce_frame(TOPIC, BATCH))
        assert fetched(connection.read_frame()) == []
        assert time.monotonic() - began >= LONG_POLL_MS / 1000
        assert read_produced(connection.read_frame()).base_offset == end


def test_list_offsets_behind_delete_records_knows_the_new_start(broker: Appliance) -> None:
    stale = 0
    with WireSocket(broker.port) as connection:
        for _ in range(TRIES):
            start = produce(connection, TOPIC, BATCH).base_offset + 1
            wanted = DeleteRecordsTopic(TOPIC, (DeleteRecordsPartition(0, start),))
            deletion = framed(ApiKey.DELETE_RECORDS, DeleteRecordsRequest((wanted,), 10_000))
            connection.send(deletion + offsets_question(EARLIEST_TIMESTAMP))
            assert read(connection, ApiKey.DELETE_RECORDS).topics[0].partitions[0].error_code == 0
            stale += offset_answered(connection) != start
    assert stale == 0


def test_offset_fetch_behind_a_commit_reads_it(broker: Appliance) -> None:
    wanted = OffsetFetchGroup("orderly", (OffsetFetchTopic(TOPIC, partition_indexes=(0,)),))
    question = framed(ApiKey.OFFSET_FETCH, OffsetFetchRequest(groups=(wanted,)), 9)
    stale = 0
    with WireSocket(broker.port) as connection:
        find(connection, "orderly")
        assert commit(connection, commit_request("orderly", TOPIC, 1)) == [0]
        for offset in range(2, TRIES + 2):
            request = commit_request("orderly", TOPIC, offset)
            connection.send(framed(ApiKey.OFFSET_COMMIT, request, 9) + question)
            assert read(connection, ApiKey.OFFSET_COMMIT, 9).topics[0].partitions[0].error_code == 0
            (answer,) = read(connection, ApiKey.OFFSET_FETCH, 9).groups
            stale += answer.topics[0].partitions[0].committed_offset != offset
    assert stale == 0


def test_metadata_behind_create_topics_knows_the_topic(broker: Appliance) -> None:
    stale = 0
    with WireSocket(broker.port) as connection:
        for number in range(TRIES):
            name = f"created-{number}"
            creation = CreateTopicsRequest((CreatableTopic(name, 1, 1),), 10_000, False)
            question = framed(ApiKey.METADATA, MetadataRequest((TopicSelector(name=name),), False))
            connection.send(framed(ApiKey.CREATE_TOPICS, creation) + question)
            assert read(connection, ApiKey.CREATE_TOPICS).topics[0].error_code == 0
            stale += read(connection, ApiKey.METADATA).topics[0].error_code != 0
    assert stale == 0


def test_produces_in_flight_of_one_connection_are_appended_in_order(broker: Appliance) -> None:
    """Behind each other they do not wait: all leave in one send, and offsets follow their order."""
    with WireSocket(broker.port) as connection:
        end = produce(connection, TOPIC, BATCH).base_offset + 1
        connection.send(b"".join(produce_frame(TOPIC, BATCH) for _ in range(200)))
        answers = [read_produced(connection.read_frame()) for _ in range(200)]
    assert [answer.base_offset for answer in answers] == list(range(end, end + 200))


def open_connections(broker: Appliance) -> int:
    """How many connections of clients the network processes have open."""
    return sum(
        each.status != psutil.CONN_LISTEN
        for pid in broker.pids("netproc")
        for each in psutil.Process(pid).net_connections("tcp")
    )


def test_a_client_that_leaves_while_its_request_waits_behind_a_fetch_is_forgotten_at_once(
    broker: Appliance,
) -> None:
    wait_until(lambda: open_connections(broker) == 0, "nobody is connected")
    with WireSocket(broker.port) as connection:
        end = produce(connection, TOPIC, BATCH).base_offset + 1
        connection.send(fetch_frame(end, max_wait_ms=600_000) + offsets_question(LATEST_TIMESTAMP))
        time.sleep(0.2)
        assert open_connections(broker) == 1
    wait_until(lambda: open_connections(broker) == 0, "the connection is closed", timeout_s=10)


def test_what_was_produced_behind_a_fetch_by_who_left_is_appended(broker: Appliance) -> None:
    with WireSocket(broker.port) as witness:
        end = produce(witness, TOPIC, BATCH).base_offset + 1
        with WireSocket(broker.port) as connection:
            frames = fetch_frame(end, max_wait_ms=LONG_POLL_MS) + produce_frame(TOPIC, BATCH, acks=0)
            connection.send(frames)
            connection.shutdown_writing()
            assert fetched(connection.read_frame()) == []
            assert connection.ends_without_an_answer()

        def is_appended() -> bool:
            witness.send(offsets_question(LATEST_TIMESTAMP))
            return offset_answered(witness) == end + 1

        # Another connection's network process may be ahead of the one that closes and then hands the Produce over.
        wait_until(is_appended, "it is appended")


@pytest.mark.parametrize("sent_bytes", [None, 40], ids=["a whole request", "half a request"])
def test_a_fetch_that_waits_ends_when_its_client_has_left_behind_a_produce(
    broker: Appliance, sent_bytes: int | None
) -> None:
    """Else the connection's descriptor would be held for as long as the fetch may wait: weeks."""
    pids = broker.pids("netproc")

    def descriptors() -> int:
        return sum(psutil.Process(pid).num_fds() for pid in pids)

    with WireSocket(broker.port) as probe:
        end = produce(probe, TOPIC, bytes(BATCH)).base_offset + 1_000_000
    before = descriptors()
    for _ in range(20):
        with WireSocket(broker.port) as connection:
            connection.send(fetch_frame(end, max_wait_ms=2**31 - 1))
            time.sleep(0.005)  # as a client that does the one after the other
            connection.send(produce_frame(TOPIC, bytes(BATCH))[:sent_bytes])
    wait_until(lambda: descriptors() <= before + 2, "the descriptors come back")
