"""How the corpus reads a frame: everything the room knows about it, as text that outlives the parser."""

from __future__ import annotations

from dataclasses import make_dataclass
from pprint import pformat
from typing import Any

import msgspec

from appliance.errors import MalformedFrame, RejectedRequest
from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey, api_name
from appliance.protocol.errors import ErrorCode
from appliance.protocol.fetch_request import parse_fetch
from appliance.protocol.framing import SIZE_BYTES, frame_size
from appliance.protocol.headers import parse_request_header
from appliance.protocol.produce import parse_produce

FRAME_BYTES_MAX = 1 << 20


def parsed(frame: bytes) -> tuple[Any, Any]:
    """(header, request) of a whole frame, its size prefix included; request is None where it is not served."""
    buffer = memoryview(frame)
    end = SIZE_BYTES
    if len(buffer) >= SIZE_BYTES:
        end += frame_size(buffer, 0, size_max=FRAME_BYTES_MAX)
    if len(buffer) < end:
        raise MalformedFrame(f"{end - len(buffer)} bytes are still to come")
    header = parse_request_header(buffer, SIZE_BYTES, end)
    if not header.served:
        return header, None
    if header.api_key == ApiKey.PRODUCE:
        return header, parse_produce(buffer, header.body_position, end, header.version)
    if header.api_key == ApiKey.FETCH:
        return header, parse_fetch(buffer, header.body_position, end, header.version)
    return header, messages.decode_request(header.api_key, header.version, buffer, header.body_position, end)


def reading(frame: bytes) -> str:
    """What a frame says, or why it is refused."""
    try:
        header, request = parsed(frame)
    except MalformedFrame as fault:
        return f"closed: {fault}\n"
    except RejectedRequest as fault:
        return f"refused: {ErrorCode(fault.code).name}: {fault.message}\n"
    title = f"{api_name(header.api_key)} v{header.version}"
    caller = f"correlation id {header.correlation_id}, client id {header.client_id!r}"
    if request is None:
        answer = messages.encode_unsupported_api_versions(header.correlation_id).hex(" ", 4)
        return f"{title}, {caller}\nanswer: {answer}\n"
    return f"{title}, {caller}\n{_lines(request)}\n"


def _lines(request: Any) -> str:
    """One field a line, one element of an array a line."""
    if not hasattr(request, "_fields"):
        return pformat(_broken_into_lines(request), width=100)
    lines = [f"{type(request).__name__}"]
    for name, value in request._asdict().items():
        if isinstance(value, tuple):
            lines.append(f"    {name}: {len(value)}")
            lines += [f"        {one}" for one in value]
        else:
            lines.append(f"    {name}: {value!r}")
    return "\n".join(lines)


def _broken_into_lines(value: Any) -> Any:
    """`pprint` breaks the lines of a dataclass, and of no other value with fields."""
    if isinstance(value, tuple):
        return tuple(_broken_into_lines(one) for one in value)
    if not isinstance(value, msgspec.Struct):
        return value
    names = value.__struct_fields__
    twin = make_dataclass(type(value).__name__, names)
    return twin(*(_broken_into_lines(getattr(value, name)) for name in names))


def hex_text(frame: bytes) -> str:
    """A frame as the corpus keeps it: sixteen bytes a line."""
    return "".join(f"{frame[at : at + 16].hex(' ')}\n" for at in range(0, len(frame), 16))


def from_hex(text: str) -> bytes:
    return bytes.fromhex(text)
