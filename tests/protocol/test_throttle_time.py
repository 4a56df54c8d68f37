"""The throttle time in a frame that is encoded already, for every API and version, read back by the client's side."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.node_endpoint import CurrentLeader, NodeEndpoint, node_endpoints_field
from appliance.protocol.produce import ProduceResult, encode_produce_response
from appliance.protocol.throttle_time import with_throttle_time
from tests.protocol import judges

RESPONSES = [
    (api, version)
    for api in ApiKey
    if api.served and api not in {ApiKey.PRODUCE, ApiKey.FETCH}
    for version in range(api.min_version, api.max_version + 1)
]
WITHOUT_THE_FIELD = {
    (ApiKey.LIST_OFFSETS, 1),
    (ApiKey.METADATA, 0),
    (ApiKey.METADATA, 1),
    (ApiKey.METADATA, 2),
    (ApiKey.OFFSET_COMMIT, 2),
    (ApiKey.OFFSET_FETCH, 1),
    (ApiKey.OFFSET_FETCH, 2),
    (ApiKey.FIND_COORDINATOR, 0),
    (ApiKey.JOIN_GROUP, 0),
    (ApiKey.JOIN_GROUP, 1),
    (ApiKey.HEARTBEAT, 0),
    (ApiKey.LEAVE_GROUP, 0),
    (ApiKey.SYNC_GROUP, 0),
    (ApiKey.DESCRIBE_GROUPS, 0),
    (ApiKey.LIST_GROUPS, 0),
    (ApiKey.SASL_HANDSHAKE, 0),
    (ApiKey.SASL_HANDSHAKE, 1),
    (ApiKey.API_VERSIONS, 0),
    (ApiKey.SASL_AUTHENTICATE, 0),
    (ApiKey.SASL_AUTHENTICATE, 1),
    (ApiKey.SASL_AUTHENTICATE, 2),
    (ApiKey.WRITE_TXN_MARKERS, 1),
    (ApiKey.WRITE_TXN_MARKERS, 2),
    (ApiKey.DESCRIBE_QUORUM, 0),
    (ApiKey.DESCRIBE_QUORUM, 1),
    (ApiKey.DESCRIBE_QUORUM, 2),
}


@pytest.mark.parametrize(("api", "version"), RESPONSES)
@settings(max_examples=10)
@given(data=st.data())
def test_the_time_is_written_where_a_client_reads_it_and_nothing_else_changes(
    api: ApiKey, version: int, data: st.DataObject
) -> None:
    response: Any = data.draw(judges.messages(api, version, "Response"))
    frame = messages.encode_response(api, version, response, 7)
    throttled = with_throttle_time(frame, api, version, 12_345)
    assert len(throttled) == len(frame)
    number, read = messages.decode_response(api, version, memoryview(throttled))
    _, expected = messages.decode_response(api, version, memoryview(frame))
    assert number == 7
    if (api, version) in WITHOUT_THE_FIELD:
        assert throttled == frame
        return
    assert read.throttle_time_ms == 12_345
    assert type(read)(**{**as_fields(read), "throttle_time_ms": expected.throttle_time_ms}) == expected


def as_fields(shape: Any) -> dict[str, Any]:
    return {name: getattr(shape, name) for name in shape.__struct_fields__}


def test_the_answer_to_an_unknown_version_of_api_versions_stays_as_it_is() -> None:
    frame = messages.encode_unsupported_api_versions(7)
    assert with_throttle_time(frame, ApiKey.API_VERSIONS, 99, 1_234) == frame


@pytest.mark.parametrize("version", range(3, 14))
@pytest.mark.parametrize("error", [0, 6])
def test_produce_responses_get_what_their_encoder_would_write(version: int, error: int) -> None:
    topic = "t" if version < 13 else UUID(int=5)
    leader = CurrentLeader(1, 2) if error else None
    results = [ProduceResult(topic, number, error, 4, current_leader=leader) for number in range(2)]
    endpoints = (NodeEndpoint(1, "host", 9092),) if error and version >= 10 else ()
    frame, expected = (
        encode_produce_response(version, 7, results, throttle_ms=delay_ms, node_endpoints=endpoints)
        for delay_ms in (0, 1_234)
    )
    if not endpoints:
        assert with_throttle_time(frame, ApiKey.PRODUCE, version, 1_234) == expected
        return
    tags = len(node_endpoints_field(endpoints))
    head = with_throttle_time(frame[:-tags], ApiKey.PRODUCE, version, 1_234, is_whole=False)
    assert head + frame[-tags:] == expected
