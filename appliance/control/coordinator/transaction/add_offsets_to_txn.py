"""AddOffsetsToTxn 0-4: the answer. Before version 2 PRODUCER_FENCED is INVALID_PRODUCER_EPOCH.

The partition of `__consumer_offsets` that keeps the group is added as AddPartitionsToTxn adds any other.
"""

from __future__ import annotations

from typing import Final

from appliance.control.coordinator.transaction.told import told
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnResponse

FENCED_SINCE: Final = 2


def response_of(error: int, version: int) -> AddOffsetsToTxnResponse:
    """Return the answer in the words of the version."""
    return AddOffsetsToTxnResponse(told(error, fenced=version >= FENCED_SINCE))
