"""ListTransactions 0-2: which transactional ids the filters let through.

Several filters must all fit. An unknown state is named in the answer. A duration filters by the time since the start of
the last transaction; below 0 it filters nothing. A pattern must match the whole id; a bad one is
INVALID_REGULAR_EXPRESSION.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.control.coordinator.transaction.transaction import Transaction
from appliance.control.coordinator.transaction.transaction_state import STATES
from appliance.protocol.apis.list_transactions import ListedTransaction, ListTransactionsRequest

_STATES_IN_MEMORY: Final = frozenset({"Dead", "PrepareEpochFence"})
"""Names of states that Kafka never writes down. No id is in one of them here, but a filter may name them."""
_STATE_NAMES: Final = {row.name: state for state, row in STATES.items()}


def unknown_states(request: ListTransactionsRequest) -> tuple[str, ...]:
    """Return the filters that name no state."""
    return tuple(
        name
        for name in dict.fromkeys(request.state_filters)
        if name not in _STATE_NAMES and name not in _STATES_IN_MEMORY
    )


class Filter:
    """The filters of one request. `matches` tells whether an id fits its pattern."""

    __slots__ = ("_matches", "_now_ms", "_producer_ids", "_request", "_states")

    def __init__(
        self, request: ListTransactionsRequest, matches: Callable[[str], bool] | None, now_ms: int
    ) -> None:
        self._request = request
        self._matches = matches
        self._now_ms = now_ms
        self._producer_ids = frozenset(request.producer_id_filters)
        self._states = {_STATE_NAMES[name] for name in request.state_filters if name in _STATE_NAMES}

    def listed(self, transactional_id: str, current: Transaction) -> ListedTransaction | None:
        """Return what is listed of the id; None where a filter keeps it out."""
        request = self._request
        if (
            (self._producer_ids and current.producer_id not in self._producer_ids)
            or (request.state_filters and current.state not in self._states)
            or 0 <= request.duration_filter >= self._now_ms - current.started_ms
            or (self._matches is not None and not self._matches(transactional_id))
        ):
            return None
        return ListedTransaction(transactional_id, current.producer_id, STATES[current.state].name)
