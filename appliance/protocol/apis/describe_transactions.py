"""DescribeTransactions (65), version 0: the state of transactional ids that this broker coordinates (KIP-664)."""

from __future__ import annotations

import msgspec


class DescribeTransactionsRequest(msgspec.Struct, frozen=True):
    transactional_ids: tuple[str, ...] = ()


class DescribedTransactionTopic(msgspec.Struct, frozen=True):
    topic: str
    partitions: tuple[int, ...] = ()


class DescribedTransaction(msgspec.Struct, frozen=True):
    """`transaction_start_time_ms` is -1 while no transaction is open."""

    transactional_id: str
    error_code: int = 0
    transaction_state: str = ""
    transaction_timeout_ms: int = 0
    transaction_start_time_ms: int = 0
    producer_id: int = 0
    producer_epoch: int = 0
    topics: tuple[DescribedTransactionTopic, ...] = ()


class DescribeTransactionsResponse(msgspec.Struct, frozen=True):
    transaction_states: tuple[DescribedTransaction, ...] = ()
    throttle_time_ms: int = 0
