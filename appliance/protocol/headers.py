"""Request and response headers.

    request header v1                                    v2 adds
    ┌──────────┬─────────┬────────────────┬───────────┐  ┌───────────────┐
    │ api key  │ version │ correlation id │ client id │  │ tagged fields │
    │ int16    │ int16   │ int32          │ string    │  │               │
    └──────────┴─────────┴────────────────┴───────────┘  └───────────────┘
    response header v0: correlation id int32             v1 adds tagged fields

The client id keeps its int16 length in v2 as well. Header versions follow from key and version of the request
(`ApiKey.request_header_version`). Source: `RequestHeader.json`, `ResponseHeader.json`, KIP-482.

What is not served is refused as Kafka refuses it: the connection is closed, except for ApiVersions, whose
unknown versions are answered with error 35 (KIP-511), because that is how a client finds out what we speak.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import SERVED_VERSIONS, ApiKey, api_name
from appliance.protocol.primitives import INT16, INT32, skip_tagged_fields

REQUEST_START: Final = Struct(">hhih")
"""Key, version, correlation id, length of the client id."""

RESPONSE_V0: Final = Struct(">ii")
"""Frame size, correlation id."""

RESPONSE_V1: Final = Struct(">iib")
"""Frame size, correlation id, count of tagged fields (0)."""


class RequestHeader:
    """A request header and where the body begins.

    `served` is False only for an ApiVersions request of a version we do not know: its body must not be
    read, and the answer is `messages.encode_unsupported_api_versions`.
    """

    __slots__ = ("api_key", "body_position", "client_id", "correlation_id", "served", "version")

    def __init__(
        self,
        api_key: int,
        version: int,
        correlation_id: int,
        client_id: str | None,
        body_position: int,
        *,
        served: bool = True,
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.body_position = body_position
        self.served = served


def parse_request_header(buffer: memoryview, start: int, end: int) -> RequestHeader:
    """The header at `start`, the first byte after the size prefix; `end` is the end of the frame.

    Raises:
        MalformedFrame: the header does not parse, or names an API or version that is not served.
    """
    if end - start < REQUEST_START.size:
        if end - start >= REQUEST_START.size - INT16.size:
            raise MalformedFrame("the frame ends before the client id")
        raise MalformedFrame(f"a request of {end - start} bytes has no whole header")
    api_key, version, correlation_id, client_id_length = REQUEST_START.unpack_from(buffer, start)
    row = SERVED_VERSIONS.get(api_key)
    if row is None or not row[0] <= version <= row[1]:
        if api_key == ApiKey.API_VERSIONS:
            return RequestHeader(api_key, version, correlation_id, None, end, served=False)
        raise MalformedFrame(_why_not_served(api_key, version))
    position = start + REQUEST_START.size
    client_id: str | None = None
    if client_id_length >= 0:
        client_id_end = position + client_id_length
        if client_id_end > end:
            raise MalformedFrame(f"a client id of {client_id_length} bytes is longer than its frame")
        try:
            client_id = str(buffer[position:client_id_end], "utf-8")
        except UnicodeDecodeError as error:
            raise MalformedFrame("the client id is not UTF-8") from error
        position = client_id_end
    elif client_id_length != -1:
        raise MalformedFrame(f"a client id of {client_id_length} bytes")
    if version >= row[2]:
        if position < end and not buffer[position]:
            position += 1
        else:
            position = skip_tagged_fields(buffer, position, end)
    return RequestHeader(api_key, version, correlation_id, client_id, position)


def response_frame(header_version: int, correlation_id: int, body: bytes | bytearray) -> bytes:
    """A whole response frame: size prefix, header v0 or v1, body."""
    if header_version == 0:
        return RESPONSE_V0.pack(INT32.size + len(body), correlation_id) + body
    return RESPONSE_V1.pack(INT32.size + 1 + len(body), correlation_id, 0) + body


def _why_not_served(api_key: int, version: int) -> str:
    row = SERVED_VERSIONS.get(api_key)
    if row is None:
        return f"{api_name(api_key)} (key {api_key}) is not served"
    return f"{api_name(api_key)} version {version} is not served, only {row[0]} to {row[1]}"
