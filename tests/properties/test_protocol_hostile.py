"""Frames of strangers who mean no good: read or refused, quickly and in little memory, never anything else."""

from __future__ import annotations

import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.errors import ClientFault, MalformedFrame
from appliance.protocol.api_versions import SERVED_VERSIONS, ApiKey
from appliance.protocol.primitives import ELEMENTS_MAX, uvarint_bytes
from appliance.protocol.produce import ProduceMemo, parse_produce
from tests.protocol.reading import FRAME_BYTES_MAX, from_hex, parsed
from tests.support.mutation import LIES, mutated

CORPUS = Path(__file__).parent.parent / "protocol" / "corpus"
SEEDS = [from_hex(file.read_text()) for file in sorted(CORPUS.glob("*/*.hex"))]

FUZZ = settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


MUTATED = mutated(st.sampled_from([seed[4:] for seed in SEEDS])).map(framed)


def read_or_refused(frame: bytes) -> Any:
    try:
        return parsed(frame)
    except ClientFault:
        return None


@FUZZ
@given(frame=MUTATED)
def test_mutated_frames_raise_nothing_but_client_faults(frame: bytes) -> None:
    read_or_refused(frame)


@FUZZ
@given(
    api=st.sampled_from(sorted(SERVED_VERSIONS)),
    version=st.integers(0, 18),
    body=st.binary(max_size=200),
)
def test_random_bodies_raise_nothing_but_client_faults(api: int, version: int, body: bytes) -> None:
    read_or_refused(framed(struct.pack(">hhih", api, version, 1, -1) + b"\x00" + body))


@settings(FUZZ, max_examples=150)
@given(frame=MUTATED)
def test_no_frame_takes_memory_out_of_proportion(frame: bytes) -> None:
    read_or_refused(frame)  # codecs compile on first use; that is not the frame's doing
    tracemalloc.start()
    try:
        read_or_refused(frame)
        assert tracemalloc.get_traced_memory()[1] < 60 * len(frame) + 40_000
    finally:
        tracemalloc.stop()


def swollen(api: ApiKey, version: int, lead: bytes, element: bytes, tail: bytes) -> bytes:
    """A frame near the limit that is one array of as many of the smallest elements as fit."""
    flexible = version >= api.first_flexible
    head = struct.pack(">hhih", api, version, 1, -1) + (b"\x00" if flexible else b"")
    count = (FRAME_BYTES_MAX - 200) // len(element)
    size = uvarint_bytes(count + 1) if flexible else struct.pack(">i", count)
    return framed(head + lead + size + element * count + tail)


PRODUCE_LEAD = struct.pack(">hi", 1, 100)
FETCH_LEAD_V7 = struct.pack(">iiiibii", -1, 1, 2, 3, 0, 0, -1)

SWOLLEN = {
    "metadata-v1-empty-names": swollen(ApiKey.METADATA, 1, b"", b"\x00\x00", b""),
    "metadata-v13-ids": swollen(ApiKey.METADATA, 13, b"", b"\x01" * 16 + b"\x00\x00", b"\x00\x00\x00"),
    "delete-topics-v4-empty-names": swollen(ApiKey.DELETE_TOPICS, 4, b"", b"\x01", bytes(5)),
    "create-topics-v7-assignments": swollen(
        ApiKey.CREATE_TOPICS, 7, b"\x02\x02t" + bytes(6), b"\x00\x00\x00\x00\x01\x00", bytes(9)
    ),
    "create-partitions-v3-broker-ids": swollen(
        ApiKey.CREATE_PARTITIONS, 3, b"\x02\x02t" + bytes(4) + b"\x02", b"\x00\x00\x00\x00", bytes(9)
    ),
    "list-offsets-v1-partitions": swollen(
        ApiKey.LIST_OFFSETS, 1, struct.pack(">iih", -1, 1, 0), bytes(12), b""
    ),
    "describe-configs-v4-keys": swollen(ApiKey.DESCRIBE_CONFIGS, 4, b"\x02\x02\x01", b"\x01", bytes(4)),
    "produce-v3-topics": swollen(ApiKey.PRODUCE, 3, b"\xff\xff" + PRODUCE_LEAD, bytes(6), b""),
    "produce-v3-partitions": swollen(
        ApiKey.PRODUCE, 3, b"\xff\xff" + PRODUCE_LEAD + struct.pack(">ih", 1, 0), bytes(8), b""
    ),
    "produce-v9-topics": swollen(ApiKey.PRODUCE, 9, b"\x00" + PRODUCE_LEAD, b"\x01\x01\x00", b"\x00"),
    "produce-v9-partitions": swollen(
        ApiKey.PRODUCE, 9, b"\x00" + PRODUCE_LEAD + b"\x02\x02t", bytes(6), b"\x00\x00"
    ),
    "fetch-v7-topics": swollen(ApiKey.FETCH, 7, FETCH_LEAD_V7, bytes(6), bytes(4)),
    "fetch-v7-forgotten-indexes": swollen(
        ApiKey.FETCH, 7, FETCH_LEAD_V7 + struct.pack(">iih", 0, 1, 0), bytes(4), b""
    ),
    "fetch-v12-forgotten-topics": swollen(
        ApiKey.FETCH, 12, FETCH_LEAD_V7 + b"\x01", b"\x01\x01\x00", b"\x01\x00"
    ),
}


@pytest.mark.parametrize("frame", SWOLLEN.values(), ids=SWOLLEN)
def test_frame_swollen_with_smallest_elements_stays_within_bounds(frame: bytes) -> None:
    read_or_refused(frame)
    tracemalloc.start()
    try:
        began = time.thread_time()
        read_or_refused(frame)
        assert time.thread_time() - began < 5
        assert tracemalloc.get_traced_memory()[1] < 300 * ELEMENTS_MAX
    finally:
        tracemalloc.stop()


FORGOTTEN_PIECEMEAL = framed(
    struct.pack(">hhih", ApiKey.FETCH, 7, 1, -1)
    + FETCH_LEAD_V7
    + struct.pack(">ii", 0, 3)
    + (struct.pack(">hi", 0, 60_000) + bytes(4 * 60_000)) * 3
)


@pytest.mark.parametrize(
    "frame",
    [
        FORGOTTEN_PIECEMEAL,
        SWOLLEN["metadata-v1-empty-names"],
        SWOLLEN["delete-topics-v4-empty-names"],
        SWOLLEN["create-topics-v7-assignments"],
        SWOLLEN["describe-configs-v4-keys"],
        SWOLLEN["produce-v3-topics"],
        SWOLLEN["produce-v9-topics"],
        SWOLLEN["produce-v9-partitions"],
        SWOLLEN["fetch-v7-topics"],
        SWOLLEN["fetch-v7-forgotten-indexes"],
        SWOLLEN["fetch-v12-forgotten-topics"],
    ],
)
def test_more_elements_than_any_client_needs_are_refused(frame: bytes) -> None:
    with pytest.raises(MalformedFrame):
        parsed(frame)


def test_empty_tagged_fields_by_the_million_are_refused_at_once() -> None:
    count = FRAME_BYTES_MAX // 2 - 100
    header = struct.pack(">hhih", ApiKey.METADATA, 13, 1, -1) + uvarint_bytes(count) + b"\x05\x00" * count
    frame = framed(header)
    began = time.thread_time()
    with pytest.raises(MalformedFrame, match="tagged fields"):
        parsed(frame)
    refused = time.thread_time()
    for _ in range(count):
        pass
    assert refused - began < time.thread_time() - refused, "it has looked at each of them"


PRODUCE_SEEDS = [frame for frame in SEEDS if frame[4:6] == b"\x00\x00" and read_or_refused(frame) is not None]


@FUZZ
@given(data=st.data())
def test_memo_takes_no_frame_that_the_parser_refuses(data: st.DataObject) -> None:
    honest = memoryview(data.draw(st.sampled_from(PRODUCE_SEEDS)))
    header, request = parsed(bytes(honest))
    memo = ProduceMemo()
    memo.remember(honest, 4, header=header, request=request)
    # Lies behind what the memo compares: index, length, records, tagged fields, end.
    at = data.draw(st.integers(max(12, len(honest) - 90), len(honest)))
    lie = data.draw(st.sampled_from(LIES) | st.binary(max_size=4))
    kept = data.draw(st.sampled_from([at, at + len(lie)]))
    frame = memoryview(framed(bytes(honest[4:at]) + lie + bytes(honest[kept:])) + b"\x00" * 64)
    end = len(frame) - 64
    try:
        said = parse_produce(frame, header.body_position, end, header.version)
    except MalformedFrame:
        said = None
    try:
        remembered = memo.parse(frame, 4, end, header.version)
    except MalformedFrame:
        remembered = None
    assert remembered is None or remembered == said
