"""Every API in every version: what we write others read, and what they write we read."""

from __future__ import annotations

import io
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer
from msgspec.structs import replace

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.headers import parse_request_header
from appliance.protocol.schema import structure_of
from tests.protocol import judges

# Sixty messages, five promises each: few examples a piece are many in all.
QUICK = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))

every_message = pytest.mark.parametrize(
    ("api", "version"),
    [pytest.param(api, version, id=f"{api.title}-v{version}") for api, version in judges.MESSAGES],
)

every_message_of_kafka_python = pytest.mark.parametrize(
    ("api", "version"),
    [
        pytest.param(api, version, id=f"{api.title}-v{version}")
        for api, version in judges.MESSAGES
        if api not in judges.UNKNOWN_TO_KAFKA_PYTHON
    ],
)


def request_body(api: ApiKey, version: int, request: Any) -> memoryview:
    frame = memoryview(messages.encode_request(api, version, request, 7))
    return frame[parse_request_header(frame, 4, len(frame)).body_position :]


def whole(pieces: Generator[None, None, Any]) -> Any:
    """What a generator returns in the end."""
    while True:
        try:
            next(pieces)
        except StopIteration as end:
            return end.value


@every_message
@QUICK
@given(data=st.data())
def test_request_of_every_version_is_read_as_it_was_written(
    api: ApiKey, version: int, data: st.DataObject
) -> None:
    request = data.draw(judges.messages(api, version, "Request"))
    body = request_body(api, version, request)
    expected = request
    if api is ApiKey.METADATA and version == 0 and not request.topics:
        expected = type(request)(topics=None)
    assert messages.decode_request(api, version, body, 0) == expected
    assert whole(messages.decode_request_in_pieces(api, version, body, 0, len(body))) == expected


@every_message
@QUICK
@given(data=st.data())
def test_response_of_every_version_is_read_as_it_was_written(
    api: ApiKey, version: int, data: st.DataObject
) -> None:
    response = data.draw(judges.messages(api, version, "Response"))
    frame = memoryview(messages.encode_response(api, version, response, -77))
    assert messages.decode_response(api, version, frame) == (-77, response)
    body = messages.encode_response_body(api, version, response)
    assert whole(messages.encode_response_body_in_pieces(api, version, response)) == body


@every_message_of_kafka_python
@QUICK
@given(data=st.data())
def test_kafka_python_reads_our_responses(api: ApiKey, version: int, data: st.DataObject) -> None:
    response = data.draw(judges.messages(api, version, "Response"))
    if api is ApiKey.API_VERSIONS:
        # With an error in it, kafka-python reads this one as v0, whatever it asked for.
        response = replace(response, error_code=0)
    frame = messages.encode_response(api, version, response, 5)
    stranger = judges.kafka_python_class(api, "Response")
    theirs = stranger.decode(frame, version=version, header=True, framed=True)
    assert theirs.header.correlation_id == 5
    ours = judges.tree(response, structure_of(api, version, response=True))
    assert judges.kafka_python_tree(theirs, stranger._struct, version) == ours


@every_message_of_kafka_python
@QUICK
@given(data=st.data())
def test_kafka_python_reads_our_requests_and_we_read_its(
    api: ApiKey, version: int, data: st.DataObject
) -> None:
    request = data.draw(judges.messages(api, version, "Request"))
    body = request_body(api, version, request)
    stranger = judges.kafka_python_class(api, "Request")
    theirs = stranger.decode(bytes(body), version=version)
    ours = judges.tree(request, structure_of(api, version, response=False))
    assert judges.kafka_python_tree(theirs, stranger._struct, version) == ours
    theirs.with_header(correlation_id=-9, client_id="stranger")
    frame = memoryview(theirs.encode(version=version, header=True, framed=True))
    header = parse_request_header(frame, 4, len(frame))
    assert (header.correlation_id, header.client_id) == (-9, "stranger")
    again = messages.decode_request(api, version, frame, header.body_position, len(frame))
    assert again == messages.decode_request(api, version, body, 0)


@every_message
@QUICK
@given(data=st.data())
def test_kio_reads_and_writes_the_same_bytes(api: ApiKey, version: int, data: st.DataObject) -> None:
    for kind in ("Request", "Response"):
        message = data.draw(judges.messages(api, version, kind))
        if kind == "Request":
            body = bytes(request_body(api, version, message))
        else:
            body = messages.encode_response_body(api, version, message)
        stranger = judges.kio_class(api, version, kind)
        theirs, size = entity_reader(stranger)(body, 0)
        assert size == len(body)
        ours = judges.tree(message, structure_of(api, version, response=kind == "Response"))
        assert judges.kio_tree(theirs) == ours
        out = io.BytesIO()
        entity_writer(stranger)(out, theirs)
        assert out.getvalue() == body
