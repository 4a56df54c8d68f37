"""Heartbeat (12), versions 0-4: a member says that it lives, and hears whether its group rebalances.

v3 adds the group instance id (KIP-345).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeartbeatResponse:
    error_code: int = 0
    throttle_time_ms: int = 0
