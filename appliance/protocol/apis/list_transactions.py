"""ListTransactions (66), versions 0-2: the transactional ids that this broker coordinates (KIP-664).

v1 filters by how long a transaction is open (KIP-994), v2 by a regular expression of the transactional id (KIP-1152).
"""

from __future__ import annotations

import msgspec


class ListTransactionsRequest(msgspec.Struct, frozen=True):
    """No filter lets everything through; `duration_filter` is in ms, below 0 it filters nothing."""

    state_filters: tuple[str, ...] = ()
    producer_id_filters: tuple[int, ...] = ()
    duration_filter: int = -1
    transactional_id_pattern: str | None = None


class ListedTransaction(msgspec.Struct, frozen=True):
    transactional_id: str
    producer_id: int
    transaction_state: str


class ListTransactionsResponse(msgspec.Struct, frozen=True):
    error_code: int = 0
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListedTransaction, ...] = ()
    throttle_time_ms: int = 0
