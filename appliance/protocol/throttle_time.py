"""Where a response says how long its client is throttled: written into a frame that is encoded already.

Most answers are not throttled, some are encoded by another process, and some are kept and sent again; so nobody knows
the time when an answer is encoded. `throttle_time_ms` is an int32 in a fixed place:

    ┌──────┬────────────────┬───────────┬──────────┬─ ─ ─          all APIs but these
    │ size │ correlation id │ (no tags) │ throttle │ …
    └──────┴────────────────┴───────────┴──────────┴─ ─ ─
    OffsetDelete  behind the error
    Produce       the last field, before tagged fields from v9 on; so in the four APIs of delegation tokens
    ApiVersions   behind the list of APIs

Versions without the field stay as they are. Fetch is not among these: its encoder takes the time.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from appliance.protocol.api_versions import ApiKey, is_served
from appliance.protocol.primitives import INT32, uvarint_at
from appliance.protocol.produce import FIRST_FLEXIBLE
from appliance.protocol.schema import structure_of

_PRODUCE: Final = int(ApiKey.PRODUCE)
_API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
_HEAD_BYTES: Final = 8  # size, correlation id
_VERSION_BYTES: Final = 6
_FLEXIBLE_VERSIONS_FROM: Final = 3
_FIELD: Final = "throttle_time_ms"


def with_throttle_time(
    frame: bytes, api_key: int, version: int, throttle_ms: int, *, is_whole: bool = True
) -> bytes:
    """Return the frame of a response with this throttle time.

    Args:
        frame: size prefix, header and body; of a Produce response that is not `is_whole`, what is before its tagged
            fields.
    """
    position = _position(frame, api_key, version, is_whole=is_whole)
    if position < 0:
        return frame
    return frame[:position] + INT32.pack(throttle_ms) + frame[position + INT32.size :]


def _position(frame: bytes, api_key: int, version: int, *, is_whole: bool) -> int:
    """Return where the field is, -1 where the version has none."""
    if not is_served(api_key, version):
        return -1  # ApiVersions is answered in the body of version 0 (KIP-511)
    if api_key == _PRODUCE:
        behind = 1 if version >= FIRST_FLEXIBLE and is_whole else 0  # no tagged fields
        return len(frame) - INT32.size - behind
    if api_key == _API_VERSIONS:
        return _behind_versions(frame, version)
    from_start, from_end = _place(api_key, version)
    return len(frame) - from_end if from_end else from_start


def _behind_versions(frame: bytes, version: int) -> int:
    start = _HEAD_BYTES + 2  # error
    if version >= _FLEXIBLE_VERSIONS_FROM:
        count, start = uvarint_at(memoryview(frame), start, len(frame))
        return start + (count - 1) * (_VERSION_BYTES + 1)
    (count,) = INT32.unpack_from(frame, start)
    return -1 if not version else start + INT32.size + int(count) * _VERSION_BYTES


@cache
def _place(api_key: int, version: int) -> tuple[int, int]:
    """Return where the field is, counted from the start, else from the end of a frame: -1 and 0 if there is none."""
    api = ApiKey(api_key)
    structure = structure_of(api, version, response=True)
    position = _HEAD_BYTES + api.response_header_version(version)
    for field in structure.fields:
        if field.name == _FIELD:
            return position, 0
        if field.primitive != "int16":
            break
        position += field.bytes_min(structure.flexible)
    if structure.fields and structure.fields[-1].name == _FIELD:
        return -1, INT32.size + (1 if structure.flexible else 0)  # no tagged fields
    return -1, 0
