"""AddOffsetsToTxn 0-4: the answer. Before version 2 PRODUCER_FENCED is INVALID_PRODUCER_EPOCH.

The partition of `__consumer_offsets` that keeps the group is added as AddPartitionsToTxn adds any other.
"""

from __future__ import annotations

from typing import Final

from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnResponse
from appliance.protocol.coordinator_errors import told_to_producer

FENCED_SINCE: Final = 2


def response_of(error: int, version: int) -> AddOffsetsToTxnResponse:
    """Return the answer in the words of the version."""
    return AddOffsetsToTxnResponse(told_to_producer(error, knows_fenced=version >= FENCED_SINCE))
