"""The face of the room: bytes of a request to its shape, shape of a response to bytes.

Every API but Produce and Fetch goes this way (those have codecs of their own, because payloads must not be
copied). Whatever the version, a handler sees one shape per API, from `appliance.protocol.apis.<api>`.
The codec of an API and version is compiled when it is first used, a few ms; `prepare` does it ahead of time.

`encode_request` and `decode_response` are the client's side of the same table.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cache
from importlib import import_module
from typing import Any

from appliance.errors import ApplianceDefect, MalformedFrame
from appliance.protocol.api_versions import ApiKey, is_served
from appliance.protocol.errors import ErrorCode
from appliance.protocol.framing import SIZE
from appliance.protocol.headers import REQUEST_START, response_frame
from appliance.protocol.message_codec import (
    Read,
    ReadInPieces,
    Write,
    WriteInPieces,
    pieces_reader_for,
    pieces_writer_for,
    reader_for,
    writer_for,
)
from appliance.protocol.primitives import ELEMENTS_MAX, Cursor, skip_tagged_fields
from appliance.protocol.schema import structure_of

_OWN_CODEC = (ApiKey.PRODUCE, ApiKey.FETCH)


def decode_request(
    api_key: int, version: int, buffer: memoryview, position: int, end: int | None = None
) -> Any:
    """The request whose body begins at `position`, as the shape of its API.

    `end` is the end of the frame (the buffer's, if not given). Bytes after the body are ignored.

    Raises:
        MalformedFrame: the body does not parse, or declares more elements than it can hold.
    """
    read = _request_reader(api_key, version)
    return read(Cursor(buffer, position, len(buffer) if end is None else end))


def decode_request_in_pieces(
    api_key: int, version: int, buffer: memoryview, position: int, end: int
) -> Generator[None, None, Any]:
    """`decode_request` as a generator that yields after each piece of the work, and returns the request.

    Raises:
        MalformedFrame: as `decode_request`.
    """
    in_pieces = _request_pieces_reader(api_key, version)
    if in_pieces is None:
        return decode_request(api_key, version, buffer, position, end)
    request = yield from in_pieces(Cursor(buffer, position, end))
    return request


def encode_response_body_in_pieces(api_key: int, version: int, response: Any) -> Generator[None, None, bytes]:
    """`encode_response_body` as a generator that yields after each piece of the work, and returns the body."""
    in_pieces = _response_pieces_writer(api_key, version)
    if in_pieces is None:
        return encode_response_body(api_key, version, response)
    out = bytearray()
    yield from in_pieces(out, response)
    return bytes(out)


def encode_response(api_key: int, version: int, response: Any, correlation_id: int) -> bytes:
    """The whole frame of a response: size prefix, header and body.

    Raises:
        ApplianceDefect: the response holds what its version cannot say.
    """
    body = encode_response_body(api_key, version, response)
    return response_frame(ApiKey(api_key).response_header_version(version), correlation_id, body)


def encode_response_body(api_key: int, version: int, response: Any) -> bytes:
    """The body alone: what may be kept and sent again, as the header carries the correlation id."""
    out = bytearray()
    _response_writer(api_key, version)(out, response)
    return bytes(out)


def encode_unsupported_api_versions(correlation_id: int) -> bytes:
    """The answer to an ApiVersions request of a version that we do not know (KIP-511).

    Body of v0, whatever was asked: error 35 and the one row that the client needs, that of ApiVersions
    itself.
    """
    from appliance.protocol.apis.api_versions import ApiVersionRange, ApiVersionsResponse

    api = ApiKey.API_VERSIONS
    return encode_response(
        api,
        0,
        ApiVersionsResponse(
            error_code=ErrorCode.UNSUPPORTED_VERSION,
            api_keys=(ApiVersionRange(int(api), api.min_version, api.max_version),),
        ),
        correlation_id,
    )


def prepare(*apis: tuple[int, int]) -> None:
    """Compile the codecs of these (api key, version) pairs now, so that no client waits for it."""
    for api_key, version in apis:
        _request_reader(api_key, version)
        _response_writer(api_key, version)


def encode_request(
    api_key: int, version: int, request: Any, correlation_id: int, *, client_id: str | None = None
) -> bytes:
    """The whole frame of a request, as a client sends it."""
    api = ApiKey(api_key)
    raw_client_id = b"" if client_id is None else client_id.encode()
    out = bytearray(SIZE.size)
    out += REQUEST_START.pack(
        api_key, version, correlation_id, -1 if client_id is None else len(raw_client_id)
    )
    out += raw_client_id
    if api.request_header_version(version) == 2:
        out += b"\x00"
    _request_writer(api_key, version)(out, request)
    SIZE.pack_into(out, 0, len(out) - SIZE.size)
    return bytes(out)


def encode_request_body(api_key: int, version: int, request: Any) -> bytes:
    """A request without its header."""
    out = bytearray()
    _request_writer(api_key, version)(out, request)
    return bytes(out)


def decode_response(
    api_key: int, version: int, frame: memoryview, *, elements_max: int = ELEMENTS_MAX
) -> tuple[int, Any]:
    """(correlation id, response) of a whole response frame, as a client reads it.

    Raises:
        MalformedFrame: it does not parse, or declares more than `elements_max` elements, or than it can hold.
    """
    cursor = Cursor(frame, SIZE.size, len(frame))
    cursor.elements_left = elements_max
    correlation_id = cursor.int32()
    if ApiKey(api_key).response_header_version(version) == 1:
        cursor.position = skip_tagged_fields(frame, cursor.position, cursor.end)
    return correlation_id, _response_reader(api_key, version)(cursor)


@cache
def _request_reader(api_key: int, version: int) -> Read:
    api = _known(api_key, version)
    return reader_for(structure_of(api, version, response=False), _shape(api, "Request"), version)


@cache
def _response_writer(api_key: int, version: int) -> Write:
    api = _known(api_key, version)
    return writer_for(structure_of(api, version, response=True), _shape(api, "Response"))


@cache
def _request_pieces_reader(api_key: int, version: int) -> ReadInPieces | None:
    api = _known(api_key, version)
    return pieces_reader_for(structure_of(api, version, response=False), _shape(api, "Request"), version)


@cache
def _response_pieces_writer(api_key: int, version: int) -> WriteInPieces | None:
    api = _known(api_key, version)
    return pieces_writer_for(structure_of(api, version, response=True), _shape(api, "Response"))


@cache
def _request_writer(api_key: int, version: int) -> Write:
    api = _known(api_key, version)
    return writer_for(structure_of(api, version, response=False), _shape(api, "Request"))


@cache
def _response_reader(api_key: int, version: int) -> Read:
    api = _known(api_key, version)
    return reader_for(structure_of(api, version, response=True), _shape(api, "Response"), version)


def _known(api_key: int, version: int) -> ApiKey:
    if not is_served(api_key, version):
        raise MalformedFrame(f"API {api_key} version {version} is not served")
    api = ApiKey(api_key)
    if api in _OWN_CODEC:
        raise ApplianceDefect(f"{api.title} has a codec of its own")
    return api


def _shape(api: ApiKey, kind: str) -> type:
    module = import_module(f"appliance.protocol.apis.{api.name.lower()}")
    shape: type = getattr(module, f"{api.title}{kind}")
    return shape
