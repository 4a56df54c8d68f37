"""KIP-320: what a client is told that believes in another leader epoch."""

from __future__ import annotations

import pytest

from appliance.protocol.errors import ErrorCode
from appliance.protocol.leader_epoch import leader_epoch_fault


@pytest.mark.parametrize(
    ("believed", "fault"),
    [
        (-1, ErrorCode.NONE),
        (5, ErrorCode.NONE),
        (4, ErrorCode.FENCED_LEADER_EPOCH),
        (6, ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
)
def test_an_older_epoch_is_fenced_and_a_newer_one_is_unknown(believed: int, fault: ErrorCode) -> None:
    assert leader_epoch_fault(believed, 5) == fault
