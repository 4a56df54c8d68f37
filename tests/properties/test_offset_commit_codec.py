"""The quick codecs of OffsetCommit and of keyed batches say what the slow ones say."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import MalformedFrame
from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitPartitionResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetCommitTopic,
    OffsetCommitTopicResponse,
)
from appliance.protocol.headers import parse_request_header
from appliance.protocol.offset_commit import (
    FIRST_BY_TOPIC_ID,
    FIRST_WITH_EPOCH,
    FIRST_WITH_INSTANCE,
    LAST_WITH_RETENTION,
    encode_offset_commit_response,
    parse_offset_commit,
)
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.keyed_batch import encode_keyed_batch
from appliance.protocol.records.record import Record, encode_batch

API = ApiKey.OFFSET_COMMIT
VERSIONS = st.integers(API.min_version, API.max_version)
TEXTS = st.text(max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
IDS = st.binary(min_size=16, max_size=16).map(lambda raw: UUID(bytes=raw)).filter(lambda uuid: uuid.int != 0)
PARTITIONS = st.builds(OffsetCommitPartition, INT32, INT64, st.none() | st.text(max_size=200), INT32)
TOPICS = st.builds(OffsetCommitTopic, TEXTS, IDS, st.lists(PARTITIONS, max_size=4).map(tuple))
REQUESTS = st.builds(
    OffsetCommitRequest,
    TEXTS,
    INT32,
    TEXTS,
    st.lists(TOPICS, max_size=3).map(tuple),
    st.none() | TEXTS,
    INT64,
)


def body_of(request: OffsetCommitRequest, version: int) -> tuple[memoryview, int]:
    """A frame with something before and behind it, as in a pool, and where its body begins."""
    frame = b"\xff" * 7 + messages.encode_request(API, version, request, 5, client_id="c")
    view = memoryview(frame + b"\xff" * 9)
    return view[: len(frame)], parse_request_header(view, 11, len(frame)).body_position


@settings(deadline=None)  # the other codec is compiled at its first use
@given(REQUESTS, VERSIONS)
def test_parser_reads_what_was_said_in_every_version(request: OffsetCommitRequest, version: int) -> None:
    view, position = body_of(request, version)
    parsed = parse_offset_commit(view, position, len(view), version)
    assert (parsed.group_id, parsed.generation, parsed.member_id) == (
        request.group_id,
        request.generation_id_or_member_epoch,
        request.member_id,
    )
    assert parsed.instance_id == (request.group_instance_id if version >= FIRST_WITH_INSTANCE else None)
    assert parsed.retention_ms == (request.retention_time_ms if version <= LAST_WITH_RETENTION else -1)
    expected: list[Any] = [
        (
            topic.topic_id if version >= FIRST_BY_TOPIC_ID else topic.name,
            [
                (
                    p.partition_index,
                    p.committed_offset,
                    p.committed_leader_epoch if version >= FIRST_WITH_EPOCH else -1,
                    (p.committed_metadata or "").encode(),
                )
                for p in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    assert parsed.topics == expected


@settings(deadline=None)
@given(REQUESTS, VERSIONS, st.data())
def test_cut_or_bent_bytes_are_refused_or_read_and_never_anything_else(
    request: OffsetCommitRequest, version: int, data: st.DataObject
) -> None:
    view, position = body_of(request, version)
    body = bytearray(view[position:])
    for _ in range(data.draw(st.integers(0, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    stop = data.draw(st.integers(0, len(body)))
    with suppress(MalformedFrame):
        parse_offset_commit(memoryview(bytes(body)), 0, stop, version)


def test_count_that_the_frame_cannot_hold_is_refused_before_anything_is_made_for_it() -> None:
    body = b"\0\1g" + b"\0\0\0\1" + b"\0\0" + b"\0\0" + b"\x7f\xff\xff\xff"
    with pytest.raises(MalformedFrame, match="an array of 2147483647"):
        parse_offset_commit(memoryview(body), 0, len(body), 7)


@given(
    st.lists(st.tuples(TEXTS, IDS, st.lists(st.tuples(INT32, st.integers(-1, 120)), max_size=4)), max_size=3),
    VERSIONS,
)
def test_answer_has_the_bytes_of_the_other_codec(
    topics: list[tuple[str, UUID, list[tuple[int, int]]]], version: int
) -> None:
    shaped = OffsetCommitResponse(
        tuple(
            OffsetCommitTopicResponse(
                name, identity, tuple(OffsetCommitPartitionResponse(index, error) for index, error in each)
            )
            for name, identity, each in topics
        )
    )
    by_id = version >= FIRST_BY_TOPIC_ID
    quick = [(identity if by_id else name, each) for name, identity, each in topics]
    assert encode_offset_commit_response(version, 9, quick) == messages.encode_response(
        API, version, shaped, 9
    )


@given(
    st.lists(
        st.tuples(st.binary(max_size=5000), st.none() | st.binary(max_size=5000)), min_size=1, max_size=5
    ),
    st.integers(0, 2**60),
    st.sampled_from((Codec.NONE, Codec.GZIP, Codec.ZSTD)),
)
def test_keyed_batch_has_the_bytes_of_the_other_encoder(
    pairs: list[tuple[bytes, bytes | None]], timestamp_ms: int, codec: Codec
) -> None:
    records = [Record(value, key, (), timestamp_ms) for key, value in pairs]
    assert encode_keyed_batch(pairs, timestamp_ms=timestamp_ms, codec=codec) == encode_batch(
        records, codec=codec
    )


def test_keyed_batch_of_more_records_than_its_table_has_lengths_is_the_same_too() -> None:
    pairs: list[tuple[bytes, bytes | None]] = [(b"%d" % n, None if n % 3 else b"v") for n in range(5000)]
    records = [Record(value, key, (), 1) for key, value in pairs]
    assert encode_keyed_batch(pairs, timestamp_ms=1) == encode_batch(records)
