"""Heartbeat (12), versions 0-4: a member says that it lives, and hears whether its group rebalances.

v3 adds the group instance id (KIP-345).
"""

from __future__ import annotations

import msgspec


class HeartbeatRequest(msgspec.Struct, frozen=True):
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


class HeartbeatResponse(msgspec.Struct, frozen=True):
    error_code: int = 0
    throttle_time_ms: int = 0
