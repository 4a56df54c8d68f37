"""EndTxn 0-5: the answer. Before version 2 PRODUCER_FENCED is INVALID_PRODUCER_EPOCH.

From 5 on it is of `transaction.version` 2: the answer has the producer id and epoch of the next transaction.
"""

from __future__ import annotations

from typing import Final

from appliance.protocol.apis.end_txn import EndTxnResponse
from appliance.protocol.coordinator_errors import told_to_producer

FENCED_SINCE: Final = 2
EPOCH_BUMP_SINCE: Final = 5


def response_of(error: int, producer_id: int, producer_epoch: int, version: int) -> EndTxnResponse:
    """Return the answer in the words of the version."""
    return EndTxnResponse(
        told_to_producer(error, knows_fenced=version >= FENCED_SINCE), producer_id, producer_epoch
    )


def client_version(version: int) -> int:
    """Return the `transaction.version` that the client speaks."""
    return 2 if version >= EPOCH_BUMP_SINCE else 0
