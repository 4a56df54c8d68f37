"""Our own tagged fields: absent unless somebody asks, and skipped by everybody else."""

from __future__ import annotations

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.offset_fetch import (
    OffsetFetchGroup,
    OffsetFetchGroupResponse,
    OffsetFetchPartitionResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchTopicResponse,
)
from appliance.protocol.headers import parse_request_header
from appliance.protocol.messages import decode_request, decode_response, encode_request, encode_response
from tests.protocol import judges


def response(commit_time_ms: int) -> OffsetFetchResponse:
    partition = OffsetFetchPartitionResponse(3, 41, "note", 0, 7, commit_time_ms)
    topic = OffsetFetchTopicResponse("orders", partitions=(partition,))
    return OffsetFetchResponse(groups=(OffsetFetchGroupResponse("readers", (topic,)),))


@pytest.mark.parametrize("version", [8, 9])
def test_commit_times_are_asked_for_and_told_from_version_8_on(version: int) -> None:
    request = OffsetFetchRequest(groups=(OffsetFetchGroup("readers"),), with_commit_times=True)
    frame = memoryview(encode_request(ApiKey.OFFSET_FETCH, version, request, 1))
    header = parse_request_header(frame, 4, len(frame))
    read = decode_request(ApiKey.OFFSET_FETCH, version, frame, header.body_position, len(frame))
    assert read == request
    answer = memoryview(encode_response(ApiKey.OFFSET_FETCH, version, response(1234), 1))
    assert decode_response(ApiKey.OFFSET_FETCH, version, answer)[1] == response(1234)


@pytest.mark.parametrize("version", [8, 9])
def test_another_client_reads_the_rest_of_an_answer_that_has_them(version: int) -> None:
    for commit_time_ms in (-1, 1234):
        frame = encode_response(ApiKey.OFFSET_FETCH, version, response(commit_time_ms), 1)
        stranger = judges.kafka_python_class(ApiKey.OFFSET_FETCH, "Response")
        read = stranger.decode(frame, version=version, header=True, framed=True)
        assert read.groups[0].topics[0].partitions[0].committed_offset == 41


def test_who_does_not_ask_gets_kafkas_bytes() -> None:
    asked, plain = (encode_response(ApiKey.OFFSET_FETCH, 8, response(time_ms), 1) for time_ms in (1234, -1))
    assert len(asked) == len(plain) + 3 + 8  # the tag (two bytes), its length and the time
    wanted, unwanted = (
        encode_request(ApiKey.OFFSET_FETCH, 8, OffsetFetchRequest(groups=(), with_commit_times=flag), 1)
        for flag in (True, False)
    )
    assert len(wanted) == len(unwanted) + 3 + 1
