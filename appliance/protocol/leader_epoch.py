"""The leader epoch a client believes in against the one that is (KIP-320). Pure; one rule for every API that has it."""

from __future__ import annotations

from typing import Final

from appliance.protocol.errors import ErrorCode

_FENCED: Final = int(ErrorCode.FENCED_LEADER_EPOCH)
_UNKNOWN: Final = int(ErrorCode.UNKNOWN_LEADER_EPOCH)


def leader_epoch_fault(believed: int, current: int) -> int:
    """0, or the error code for a client that believes in another epoch; a negative one says nothing."""
    if believed < 0 or believed == current:
        return 0
    return _FENCED if believed < current else _UNKNOWN
