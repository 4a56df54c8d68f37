"""DescribeTransactions 0: the answer about one transactional id.

An empty id is INVALID_REQUEST, one that nobody has used TRANSACTIONAL_ID_NOT_FOUND. The start is that of the last
transaction, -1 before the first one.
"""

from __future__ import annotations

from appliance.control.coordinator.transaction.transaction import Transaction
from appliance.control.coordinator.transaction.transaction_state import STATES
from appliance.protocol.apis.describe_transactions import DescribedTransaction, DescribedTransactionTopic
from appliance.protocol.errors import ErrorCode


def described(transactional_id: str, current: Transaction | None) -> DescribedTransaction:
    """Return what is said of an id that this coordinator serves."""
    if current is None:
        return DescribedTransaction(transactional_id, int(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND))
    by_topic: dict[str, list[int]] = {}
    for partition in sorted(current.partitions):
        by_topic.setdefault(partition.topic, []).append(partition.partition)
    return DescribedTransaction(
        transactional_id,
        0,
        STATES[current.state].name,
        current.timeout_ms,
        current.started_ms,
        current.producer_id,
        current.producer_epoch,
        tuple(DescribedTransactionTopic(topic, tuple(numbers)) for topic, numbers in by_topic.items()),
    )
