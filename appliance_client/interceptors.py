"""Interceptors of a consumer: objects with some of `on_consume`, `on_commit` and `close`, each of which may be missing.

Source: `ConsumerInterceptor.java`. What one raises is logged, and counts as if it had not been asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from appliance_client.core import logger
from appliance_client.values import ConsumerRecord, OffsetAndMetadata, TopicPartition

Records = dict[TopicPartition, list[ConsumerRecord]]


class ConsumerInterceptors:
    """Calls the interceptors of a consumer, in order.

    | method | gets | when |
    |---|---|---|
    | `on_consume(records)` | records by partition; returns them, others, or None for the same | before `poll` returns |
    | `on_commit(offsets)` | offsets by partition | the broker has taken a commit of whatever kind |
    | `close()` | nothing | the consumer was closed |
    """

    __slots__ = ("_listed",)

    def __init__(self, listed: Sequence[Any]) -> None:
        self._listed = listed

    def __bool__(self) -> bool:
        return bool(self._listed)

    def consumed(self, records: Records) -> Records:
        """What `poll` gives. Positions do not change by it: a record that is left out counts as processed."""
        for each in self._listed:
            on_consume = getattr(each, "on_consume", None)
            if on_consume is None:
                continue
            try:
                found = on_consume(records)
            except Exception:
                logger.exception("on_consume of an interceptor raised; the records go on as they were")
            else:
                records = records if found is None else found
        return records

    def committed(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        """A commit was taken."""
        for each in self._listed:
            on_commit = getattr(each, "on_commit", None)
            if on_commit is not None:
                try:
                    on_commit(dict(offsets))
                except Exception:
                    logger.exception("on_commit of an interceptor raised")

    def close(self) -> None:
        """Nothing more will come."""
        for each in self._listed:
            close = getattr(each, "close", None)
            if close is not None:
                try:
                    close()
                except Exception:
                    logger.exception("close of an interceptor raised")
