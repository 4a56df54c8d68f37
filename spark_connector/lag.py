"""Tells a consumer group how far a stream has come, so that its lag shows where the lag of consumers does.

The query never depends on it: where it resumes stands in its checkpoint. What cannot be committed is logged once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from spark_connector.batch_query import LOG
from spark_connector.offsets import Name

if TYPE_CHECKING:
    from confluent_kafka import Consumer


class LagReport:
    """Commits offsets to a group that has no members.

    Args:
        group: its name.
        client: `bootstrap.servers` and whatever else a consumer needs to reach the broker.
    """

    def __init__(self, group: str, client: Mapping[str, str]) -> None:
        self._group = group
        self._client = dict(client)
        self._consumer: Consumer | None = None
        self._failed = False

    def commit(self, offsets: Mapping[Name, int]) -> None:
        """Commits without waiting for the answer."""
        from confluent_kafka import KafkaException, TopicPartition

        try:
            if self._consumer is None:
                self._consumer = self._connected()
            wanted = [
                TopicPartition(topic, partition, offset) for (topic, partition), offset in offsets.items()
            ]
            self._consumer.commit(offsets=wanted, asynchronous=True)
            self._consumer.poll(0)
        except (KafkaException, RuntimeError) as fault:
            self._say(fault)

    def close(self) -> None:
        """Sends what is on its way, and lets go."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _connected(self) -> Consumer:
        from confluent_kafka import Consumer

        return Consumer(
            {
                **self._client,
                "group.id": self._group,
                "enable.auto.commit": False,
                "on_commit": self._answered,
            }
        )

    def _answered(self, error: Any, _partitions: Any) -> None:
        if error is not None:
            self._say(error)

    def _say(self, fault: object) -> None:
        if not self._failed:
            self._failed = True
            LOG.warning("cannot commit offsets to group %s: %s", self._group, fault)
