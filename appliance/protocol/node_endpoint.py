"""Where a leader is and where it listens: tagged fields of Produce v10+ and Fetch v12+ answers (KIP-951).

A client that is told both beside NOT_LEADER_OR_FOLLOWER goes to the new leader without asking for metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from appliance.protocol.primitives import INT32, compact_string_bytes, uvarint_bytes

_LEADER = Struct(">bbiib")
"""Tag, size, leader id, leader epoch, no tagged fields of its own."""

_LEADER_BYTES = _LEADER.size - 2


class CurrentLeader(NamedTuple):
    """The leader of a partition as far as this broker knows; -1 for not known."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """Where a broker listens."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


def current_leader_field(tag: int, leader: CurrentLeader) -> bytes:
    """One tagged field that holds `leader`."""
    return _LEADER.pack(tag, _LEADER_BYTES, leader.leader_id, leader.leader_epoch, 0)


def node_endpoints_field(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """The tagged fields of a response body: none, or tag 0 with the endpoints."""
    if not endpoints:
        return b"\x00"
    body = uvarint_bytes(len(endpoints) + 1) + b"".join(
        INT32.pack(one.node_id)
        + compact_string_bytes(one.host)
        + INT32.pack(one.port)
        + compact_string_bytes(one.rack)
        + b"\x00"
        for one in endpoints
    )
    return b"\x01\x00" + uvarint_bytes(len(body)) + body
