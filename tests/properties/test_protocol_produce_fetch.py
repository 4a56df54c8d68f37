"""Produce and Fetch in every version: strangers write what we read, and read what we write."""

from __future__ import annotations

import io
import struct
import uuid
from itertools import groupby
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.protocol.consumer import FetchRequest as StrangerFetchRequest
from kafka.protocol.consumer import FetchResponse as StrangerFetchResponse
from kafka.protocol.producer import ProduceRequest as StrangerProduceRequest
from kafka.protocol.producer import ProduceResponse as StrangerProduceResponse
from kio.serial import entity_reader, entity_writer

from appliance.errors import RejectedRequest
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.fetch_request import FetchPartition, FetchRequest, ForgottenPartition, parse_fetch
from appliance.protocol.fetch_response import (
    AbortedTransaction,
    DivergingEpoch,
    FetchedPartition,
    FetchFrames,
    RecordsSlot,
    encode_fetch_response,
)
from appliance.protocol.headers import parse_request_header
from appliance.protocol.node_endpoint import CurrentLeader, NodeEndpoint
from appliance.protocol.produce import (
    NULL_RECORDS,
    ProduceMemo,
    ProduceRequest,
    ProduceResult,
    RecordError,
    encode_produce_response,
    parse_produce,
)
from tests.protocol import judges

QUICK = settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))

every_produce = pytest.mark.parametrize("version", range(3, 14))
every_fetch = pytest.mark.parametrize("version", range(4, 19))

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.sampled_from(["t", "topic-ü", "a" * 126, "b" * 127, "c" * 249])
IDS = st.integers(1, 2**128 - 1).map(lambda number: uuid.UUID(int=number))
RECORDS = st.none() | st.binary(max_size=40) | st.sampled_from([b"r" * 126, b"s" * 127, b"t" * 20_000])


def topics(version: int, first_by_id: int, partition: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """[(topic, [partition, …]), …] without a topic twice."""
    topic: st.SearchStrategy[Any] = IDS if version >= first_by_id else NAMES
    one = st.tuples(topic, st.lists(partition, min_size=1, max_size=3))
    return st.lists(one, max_size=3, unique_by=lambda pair: pair[0])


def topic_field(topic: str | uuid.UUID, name: str) -> dict[str, Any]:
    return {"topic_id": topic} if isinstance(topic, uuid.UUID) else {name: topic}


def framed(message: Any, version: int) -> memoryview:
    message.with_header(correlation_id=41, client_id="stranger")
    return memoryview(message.encode(version=version, header=True, framed=True))


def body_of(frame: memoryview) -> int:
    return parse_request_header(frame, 4, len(frame)).body_position


def as_kio_reads(api: ApiKey, version: int, kind: str, body: bytes) -> list[Any]:
    message, size = entity_reader(judges.kio_class(api, version, kind))(body, 0)
    assert size == len(body)
    return judges.kio_tree(message)


# ── produce ──────────────────────────────────────────────────────────────────────────────────────────────


def produce_frame(version: int, txn: str | None, acks: int, timeout_ms: int, data: list[Any]) -> memoryview:
    stranger = StrangerProduceRequest
    return framed(
        stranger(
            version=version,
            transactional_id=txn,
            acks=acks,
            timeout_ms=timeout_ms,
            topic_data=[
                stranger.TopicProduceData(
                    version=version,
                    **topic_field(topic, "name"),
                    partition_data=[
                        stranger.TopicProduceData.PartitionProduceData(
                            version=version, index=index, records=records
                        )
                        for index, records in partitions
                    ],
                )
                for topic, partitions in data
            ],
        ),
        version,
    )


def with_records(request: ProduceRequest, buffer: memoryview) -> list[Any]:
    return [
        (
            one.topic,
            one.partition,
            None
            if one.records_length == NULL_RECORDS
            else bytes(buffer[one.records_position : one.records_position + one.records_length]),
        )
        for one in request.partitions
    ]


@every_produce
@QUICK
@given(data=st.data())
def test_produce_request_of_a_stranger_is_read_without_touching_records(
    version: int, data: st.DataObject
) -> None:
    wanted = data.draw(topics(version, 13, st.tuples(INT32, RECORDS)))
    txn = data.draw(st.none() | st.text(max_size=200))
    acks, timeout_ms = data.draw(st.sampled_from([-1, 0, 1])), data.draw(INT32)
    frame = produce_frame(version, txn, acks, timeout_ms, wanted)
    request = parse_produce(frame, body_of(frame), len(frame), version)
    assert request[:4] == (version, txn, acks, timeout_ms)
    assert with_records(request, frame) == [
        (topic, index, records) for topic, partitions in wanted for index, records in partitions
    ]


@every_produce
@QUICK
@given(data=st.data())
def test_produce_request_of_kio_is_read_where_it_lies_in_a_larger_buffer(
    version: int, data: st.DataObject
) -> None:
    wanted = data.draw(topics(version, 13, st.tuples(INT32, RECORDS)))
    frame = produce_frame(version, None, 1, 500, wanted)
    start = body_of(frame)
    theirs, _ = entity_reader(judges.kio_class(ApiKey.PRODUCE, version, "Request"))(bytes(frame[start:]), 0)
    out = io.BytesIO()
    entity_writer(type(theirs))(out, theirs)
    lead, body = b"\xff" * data.draw(st.integers(0, 9)), out.getvalue()
    buffer = memoryview(lead + body + b"\xff" * 100)
    request = parse_produce(buffer, len(lead), len(lead) + len(body), version)
    assert with_records(request, buffer) == [
        (topic, index, records) for topic, partitions in wanted for index, records in partitions
    ]


@every_produce
@QUICK
@given(data=st.data())
def test_memo_never_reads_a_frame_otherwise_than_the_parser(version: int, data: st.DataObject) -> None:
    memo = ProduceMemo()
    topic = data.draw(IDS if version >= 13 else NAMES)
    hits = 0
    for _ in range(4):
        other = data.draw(st.booleans())
        records = data.draw(RECORDS)
        frame = produce_frame(
            version, None, 1, 30_000 + other, [(topic, [(data.draw(INT32), records)] * (1 + other))]
        )
        header = parse_request_header(frame, 4, len(frame))
        request = parse_produce(frame, header.body_position, len(frame), version)
        remembered = memo.parse(frame, 4, len(frame), version)
        assert remembered in (None, request)
        hits += remembered is not None
        if remembered is None:
            memo.remember(frame, 4, header=header, request=request)
        if len(request.partitions) == 1 and records is not None:
            assert memo.parse(frame, 4, len(frame), version) == request
            assert memo.client_id == "stranger"


RESULTS = st.builds(
    ProduceResult,
    topic=st.just(""),
    partition=INT32,
    error_code=st.sampled_from([0, 0, 2, 6, 56]),
    base_offset=INT64,
    log_append_time_ms=st.just(-1),
    log_start_offset=INT64,
    error_message=st.none() | st.text(max_size=200),
    record_errors=st.lists(st.builds(RecordError, INT32, st.none() | st.text(max_size=9)), max_size=2).map(
        tuple
    ),
    current_leader=st.none() | st.builds(CurrentLeader, INT32, INT32),
)
ENDPOINTS = st.lists(
    st.builds(NodeEndpoint, INT32, st.text(max_size=9), INT32, st.none() | st.text(max_size=9)),
    max_size=2,
    unique_by=lambda endpoint: endpoint.node_id,
)


@every_produce
@QUICK
@given(data=st.data())
def test_strangers_read_our_produce_responses(version: int, data: st.DataObject) -> None:
    answers = data.draw(topics(version, 13, RESULTS))
    results = [one._replace(topic=topic) for topic, group in answers for one in group]
    endpoints = data.draw(ENDPOINTS)
    throttle_ms = data.draw(INT32)
    frame = encode_produce_response(version, -6, results, throttle_ms=throttle_ms, node_endpoints=endpoints)
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, -6)
    expected = [
        [[topic, [produce_result_tree(one, version) for one in group]] for topic, group in answers],
        throttle_ms,
    ]
    if version >= 10:
        expected.append([list(endpoint) for endpoint in endpoints])
    assert as_kio_reads(ApiKey.PRODUCE, version, "Response", frame[9 if version >= 9 else 8 :]) == (
        kio_throttled(expected, version)
    )
    theirs = StrangerProduceResponse.decode(frame, version=version, header=True, framed=True)
    assert theirs.header.correlation_id == -6
    assert judges.kafka_python_tree(theirs, StrangerProduceResponse._struct, version) == expected


def kio_throttled(expected: list[Any], version: int) -> list[Any]:
    """kio tells log append times of -1 as None."""
    return [
        [[topic, [[*one[:3], None, *one[4:]] for one in group]] for topic, group in expected[0]],
        *expected[1:],
    ]


def produce_result_tree(one: ProduceResult, version: int) -> list[Any]:
    tree: list[Any] = [one.partition, one.error_code, one.base_offset, one.log_append_time_ms]
    if version >= 5:
        tree.append(one.log_start_offset)
    if version >= 8:
        tree += [[list(record_error) for record_error in one.record_errors], one.error_message]
    if version >= 10:
        tree.append(list(one.current_leader or (-1, -1)))
    return tree


# ── fetch ────────────────────────────────────────────────────────────────────────────────────────────────

WANTED = st.builds(
    FetchPartition,
    topic=st.just(""),
    partition=INT32,
    current_leader_epoch=INT32,
    fetch_offset=INT64,
    last_fetched_epoch=INT32,
    log_start_offset=INT64,
    max_bytes=INT32,
)


def fetch_frame(version: int, request: FetchRequest, *, replica_id: int = -1) -> memoryview:
    stranger = StrangerFetchRequest
    fields: dict[str, Any] = {}
    if version >= 7:
        fields |= {
            "session_id": request.session_id,
            "session_epoch": request.session_epoch,
            "forgotten_topics_data": [
                stranger.ForgottenTopic(
                    version=version,
                    **topic_field(topic, "topic"),
                    partitions=[one.partition for one in group],
                )
                for topic, group in groupby(request.forgotten, lambda one: one.topic)
            ],
        }
    if version >= 11:
        fields["rack_id"] = request.rack
    if version < 15:
        fields["replica_id"] = replica_id
    elif replica_id >= 0:
        fields["replica_state"] = stranger.ReplicaState(version=version, replica_id=replica_id)
    return framed(
        stranger(
            version=version,
            max_wait_ms=request.max_wait_ms,
            min_bytes=request.min_bytes,
            max_bytes=request.max_bytes,
            isolation_level=request.isolation_level,
            topics=[
                stranger.FetchTopic(
                    version=version,
                    **topic_field(topic, "topic"),
                    partitions=[
                        stranger.FetchTopic.FetchPartition(
                            version=version,
                            partition=one.partition,
                            fetch_offset=one.fetch_offset,
                            partition_max_bytes=one.max_bytes,
                            **({"log_start_offset": one.log_start_offset} if version >= 5 else {}),
                            **({"current_leader_epoch": one.current_leader_epoch} if version >= 9 else {}),
                            **({"last_fetched_epoch": one.last_fetched_epoch} if version >= 12 else {}),
                        )
                        for one in group
                    ],
                )
                for topic, group in groupby(request.partitions, lambda one: one.topic)
            ],
            **fields,
        ),
        version,
    )


@every_fetch
@QUICK
@given(data=st.data())
def test_fetch_request_of_a_stranger_is_read(version: int, data: st.DataObject) -> None:
    wanted = data.draw(topics(version, 13, WANTED))
    forgotten = data.draw(topics(version, 13, INT32)) if version >= 7 else []
    request = FetchRequest(
        version=version,
        max_wait_ms=data.draw(INT32),
        min_bytes=data.draw(INT32),
        max_bytes=data.draw(INT32),
        isolation_level=data.draw(st.sampled_from([0, 1])),
        session_id=data.draw(INT32) if version >= 7 else 0,
        session_epoch=data.draw(INT32) if version >= 7 else -1,
        partitions=tuple(
            one._replace(
                topic=topic,
                log_start_offset=one.log_start_offset if version >= 5 else -1,
                current_leader_epoch=one.current_leader_epoch if version >= 9 else -1,
                last_fetched_epoch=one.last_fetched_epoch if version >= 12 else -1,
            )
            for topic, group in wanted
            for one in group
        ),
        forgotten=tuple(ForgottenPartition(topic, index) for topic, group in forgotten for index in group),
        rack=data.draw(st.text(max_size=140)) if version >= 11 else "",
    )
    frame = fetch_frame(version, request)
    assert parse_fetch(frame, body_of(frame), len(frame), version) == request
    lead = b"\xff" * 3
    buffer = memoryview(lead + bytes(frame) + b"\xff" * 100)
    assert parse_fetch(buffer, body_of(frame) + 3, len(frame) + 3, version) == request


@every_fetch
def test_fetch_of_a_replica_is_refused(version: int) -> None:
    request = FetchRequest(version, 0, 0, 0, 0, 0, -1, (), (), "")
    frame = fetch_frame(version, request, replica_id=3)
    with pytest.raises(RejectedRequest, match="Replica 3"):
        parse_fetch(frame, body_of(frame), len(frame), version)


FETCHED = st.builds(
    FetchedPartition,
    topic=st.just(""),
    partition=INT32,
    error_code=st.sampled_from([0, 0, 1, 6]),
    high_watermark=INT64,
    last_stable_offset=INT64,
    log_start_offset=INT64,
    records_length=st.sampled_from([0, 1, 126, 127, 128, 20_000]),
    aborted_transactions=st.none()
    | st.lists(st.builds(AbortedTransaction, INT64, INT64), max_size=2).map(tuple),
    preferred_read_replica=INT32,
    diverging_epoch=st.none() | st.builds(DivergingEpoch, INT32, INT64),
    current_leader=st.none() | st.builds(CurrentLeader, INT32, INT32),
)


def assembled(frames: FetchFrames, partitions: list[FetchedPartition]) -> bytes:
    """The frame with its slots filled, each with bytes that tell whose they are."""
    out = b"".join(
        records_of(piece.ordinal, partitions) if isinstance(piece, RecordsSlot) else piece
        for piece in frames.pieces
    )
    assert len(out) == frames.length_bytes
    return out


def records_of(ordinal: int, partitions: list[FetchedPartition]) -> bytes:
    return bytes([ordinal + 1]) * partitions[ordinal].records_length


@every_fetch
@QUICK
@given(data=st.data())
def test_strangers_read_our_fetch_responses(version: int, data: st.DataObject) -> None:
    answers = data.draw(topics(version, 13, FETCHED))
    partitions = [one._replace(topic=topic) for topic, group in answers for one in group]
    endpoints = data.draw(ENDPOINTS)
    throttle_ms, session_id = data.draw(INT32), data.draw(INT32)
    error_code = data.draw(st.sampled_from([0, 71]))
    frames = encode_fetch_response(
        version,
        9,
        partitions,
        throttle_ms=throttle_ms,
        error_code=error_code,
        session_id=session_id,
        node_endpoints=endpoints,
    )
    frame = assembled(frames, partitions)
    assert struct.unpack_from(">ii", frame) == (len(frame) - 4, 9)
    ordinals = iter(range(len(partitions)))
    trees = [
        [topic, [fetched_tree(one, version, next(ordinals), partitions) for one in group]]
        for topic, group in answers
    ]
    expected = [throttle_ms, *([error_code, session_id] if version >= 7 else []), trees]
    if version >= 16:
        expected.append([list(endpoint) for endpoint in endpoints])
    assert as_kio_reads(ApiKey.FETCH, version, "Response", frame[9 if version >= 12 else 8 :]) == expected
    theirs = StrangerFetchResponse.decode(frame, version=version, header=True, framed=True)
    assert judges.kafka_python_tree(theirs, StrangerFetchResponse._struct, version) == expected


def fetched_tree(
    one: FetchedPartition, version: int, ordinal: int, partitions: list[FetchedPartition]
) -> list[Any]:
    tree: list[Any] = [one.partition, one.error_code, one.high_watermark, one.last_stable_offset]
    if version >= 5:
        tree.append(one.log_start_offset)
    aborted = one.aborted_transactions
    tree.append(None if aborted is None else [list(transaction) for transaction in aborted])
    if version >= 11:
        tree.append(one.preferred_read_replica)
    tree.append(records_of(ordinal, partitions))
    if version >= 12:
        tree += [list(one.diverging_epoch or (-1, -1)), list(one.current_leader or (-1, -1)), [-1, -1]]
    return tree
