"""FindCoordinator (10), versions 0-6: which broker coordinates a group or a transaction.

v1 adds the kind of the key, v4 asks for many keys at once (KIP-699), v6 knows share groups (KIP-932).
"""

from __future__ import annotations

import msgspec

GROUP = 0
TRANSACTION = 1
SHARE = 2


class FindCoordinatorRequest(msgspec.Struct, frozen=True):
    """`key` up to v3, `coordinator_keys` from v4 on."""

    key: str = ""
    key_type: int = GROUP
    coordinator_keys: tuple[str, ...] = ()


class Coordinator(msgspec.Struct, frozen=True):
    key: str
    node_id: int = -1
    host: str = ""
    port: int = -1
    error_code: int = 0
    error_message: str | None = None


class FindCoordinatorResponse(msgspec.Struct, frozen=True):
    """The single fields up to v3, `coordinators` from v4 on."""

    error_code: int = 0
    error_message: str | None = None
    node_id: int = -1
    host: str = ""
    port: int = -1
    coordinators: tuple[Coordinator, ...] = ()
    throttle_time_ms: int = 0
