"""Requests of every served API and version, odd ones and mutated ones, against a live broker that must not mind.

The topic `fuzz` is there to be produced to, read, grown and deleted; who asks for it by name makes it again.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest as StrangerFetchRequest
from kafka.protocol.producer import ProduceRequest as StrangerProduceRequest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_partitions import CreatePartitionsRequest, PartitionsTopic
from appliance.protocol.apis.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource
from appliance.protocol.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.messages import encode_request
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, encode_batch
from tests.protocol import judges
from tests.support.broker import Appliance
from tests.support.mutation import mutated
from tests.support.wire import ConnectionEnded, WireSocket, answers_api_versions
from tests.system.raw import create_topic
from tests.system.steady import undisturbed

TOPIC = "fuzz"

QUICK = settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
LONG = settings(QUICK, max_examples=20_000)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
SMALL = st.integers(-3, 5)
NAMES = st.sampled_from([TOPIC, TOPIC, "", "no-such", "a/b", "x" * 300])


def own_topic(version: int, first_by_id: int, name: str) -> st.SearchStrategy[dict[str, Any]]:
    if version >= first_by_id:
        return st.integers(0, 2**128 - 1).map(lambda number: {"topic_id": uuid.UUID(int=number)})
    return NAMES.map(lambda topic: {name: topic})


@st.composite
def record_batches(draw: st.DrawFn) -> bytes | None:
    """A sound batch, most of the time."""
    values = draw(st.lists(st.none() | st.binary(max_size=20), max_size=5))
    raw = bytearray(
        encode_batch(
            [Record(value, timestamp_ms=draw(SMALL)) for value in values],
            codec=draw(st.sampled_from(Codec)),
            producer_id=draw(SMALL),
            producer_epoch=draw(SMALL),
            base_sequence=draw(SMALL),
        )
    )
    if draw(st.booleans()):
        raw[draw(st.integers(0, len(raw) - 1))] ^= draw(st.integers(1, 255))
    return draw(st.sampled_from([bytes(raw), bytes(raw), bytes(raw) * 2, b"", None]))


@st.composite
def produce_frames(draw: st.DrawFn) -> bytes:
    version = draw(st.integers(3, 13))
    partition = StrangerProduceRequest.TopicProduceData.PartitionProduceData
    partitions = [
        partition(index=draw(SMALL), records=draw(record_batches())) for _ in range(draw(st.integers(0, 3)))
    ]
    topic = draw(own_topic(version, 13, "name"))
    message = StrangerProduceRequest(
        transactional_id=draw(st.sampled_from([None, None, "t"])),
        acks=draw(SMALL),
        timeout_ms=draw(INT32),
        topic_data=[StrangerProduceRequest.TopicProduceData(partition_data=partitions, **topic)],
    )
    return framed(message, version)


@st.composite
def fetch_frames(draw: st.DrawFn) -> bytes:
    version = draw(st.integers(4, 18))
    partition = StrangerFetchRequest.FetchTopic.FetchPartition
    partitions = [
        partition(
            partition=draw(SMALL),
            current_leader_epoch=draw(SMALL),
            fetch_offset=draw(SMALL | INT64),
            last_fetched_epoch=draw(SMALL),
            log_start_offset=draw(SMALL),
            partition_max_bytes=draw(SMALL | INT32),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    topic = draw(own_topic(version, 13, "topic"))
    message = StrangerFetchRequest(
        replica_id=-1,
        max_wait_ms=draw(SMALL | INT32),
        min_bytes=draw(SMALL | INT32),
        max_bytes=draw(SMALL | INT32),
        isolation_level=draw(st.integers(0, 2)),
        session_id=draw(SMALL),
        session_epoch=draw(SMALL),
        topics=[StrangerFetchRequest.FetchTopic(partitions=partitions, **topic)],
        forgotten_topics_data=[],
        rack_id="",
    )
    return framed(message, version)


def framed(message: Any, version: int) -> bytes:
    message.with_header(correlation_id=41, client_id="fuzz")
    return bytes(message.encode(version=version, header=True, framed=True))


@st.composite
def other_frames(draw: st.DrawFn) -> bytes:
    """Anything that an API and version can say, whether it means something or not."""
    api, version = draw(st.sampled_from(judges.MESSAGES))
    return encode_request(api, version, draw(judges.messages(api, version, "Request")), 41, client_id="fuzz")


@st.composite
def frames_about_the_topic(draw: st.DrawFn) -> bytes:
    """What changes the topic under everybody's feet."""
    api = draw(
        st.sampled_from(
            [
                ApiKey.METADATA,
                ApiKey.LIST_OFFSETS,
                ApiKey.DESCRIBE_CONFIGS,
                ApiKey.CREATE_PARTITIONS,
                ApiKey.DELETE_TOPICS,
                ApiKey.DELETE_RECORDS,
            ]
        )
    )
    version = draw(st.integers(api.min_version, api.max_version))
    request: Any
    match api:
        case ApiKey.LIST_OFFSETS:
            wanted = ListOffsetsPartition(draw(SMALL), draw(st.integers(-7, 3) | INT64), draw(SMALL))
            request = ListOffsetsRequest(draw(SMALL), (ListOffsetsTopic(TOPIC, (wanted,) * 2),))
        case ApiKey.DESCRIBE_CONFIGS:
            keys = draw(st.sampled_from([None, (), ("retention.ms", "no.such")]))
            request = DescribeConfigsRequest((DescribedResource(draw(SMALL), draw(NAMES), keys),))
        case ApiKey.CREATE_PARTITIONS:
            request = CreatePartitionsRequest(
                (PartitionsTopic(TOPIC, draw(SMALL)),), draw(SMALL), draw(st.booleans())
            )
        case ApiKey.DELETE_RECORDS:
            before = DeleteRecordsPartition(draw(SMALL), draw(SMALL | INT64))
            request = DeleteRecordsRequest((DeleteRecordsTopic(draw(NAMES), (before,) * 2),), draw(INT32))
        case ApiKey.DELETE_TOPICS:
            request = DeleteTopicsRequest((TopicSelector(TOPIC),), draw(INT32))
        case _:
            request = MetadataRequest((TopicSelector(TOPIC),))
    return encode_request(api, version, request, 41, client_id="fuzz")


FRAMES = produce_frames() | fetch_frames() | other_frames() | frames_about_the_topic()


@st.composite
def mutated_frames(draw: st.DrawFn) -> bytes:
    """A frame with up to four places changed; its size prefix is true most of the time."""
    payload = draw(mutated(FRAMES.map(lambda frame: frame[4:])))
    size = len(payload) + draw(st.sampled_from([0, 0, 0, 0, 0, 1, -1, 100]))
    return struct.pack(">i", size) + payload


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    """One appliance for the file; at its end no process was restarted, and none wrote a traceback."""
    appliance = Appliance(
        tmp_path_factory.mktemp("fuzz") / "data",
        settings={
            "socket.request.max.bytes": 1 << 20,
            "max.partitions": 2000,
            "max.request.partition.size.limit": 20,
        },
    )
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        with undisturbed(appliance):
            yield appliance
    finally:
        appliance.stop()


def survives(broker: Appliance, *frames: bytes) -> None:
    """The frames on one connection to its end, whatever that is; then a request on a fresh one."""
    with WireSocket(broker.port, timeout_s=60) as connection:
        try:
            for frame in frames:
                connection.send(frame)
            with suppress(OSError):  # closed already
                connection.shutdown_writing()
            while True:
                connection.read_frame()
        except (ConnectionEnded, ConnectionError):
            pass
    assert answers_api_versions(broker.port, 30)


@QUICK
@given(frame=mutated_frames())
def test_mutated_requests_disturb_nobody(broker: Appliance, frame: bytes) -> None:
    survives(broker, frame)


@QUICK
@given(frames=st.lists(FRAMES, min_size=1, max_size=4))
def test_odd_but_well_formed_requests_disturb_nobody(broker: Appliance, frames: list[bytes]) -> None:
    survives(broker, *frames)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@LONG
@given(frames=st.lists(mutated_frames() | FRAMES, min_size=1, max_size=6))
def test_requests_of_all_kinds_disturb_nobody_for_minutes(broker: Appliance, frames: list[bytes]) -> None:
    survives(broker, *frames)
