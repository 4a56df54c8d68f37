"""Topics of a broker under test, by the requests of Kafka's protocol: no client is needed to prepare a test."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from appliance.cli.cluster_view import METADATA_VERSION, first_that_answers, refusal_of
from appliance.cli.connecting import BrokerError
from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_topics import (
    BROKER_DEFAULT,
    CreatableTopic,
    CreateTopicsRequest,
    TopicConfig,
)
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.metadata import MetadataRequest, MetadataTopic
from appliance.protocol.apis.topic_selector import TopicSelector

CREATE_VERSION: Final = 7
DELETE_VERSION: Final = 6
TIMEOUT_S: Final = 10.0
_LOOK_S: Final = 0.005


class Topics:
    """Args:
    bootstrap_servers: addresses, separated by commas.
    """

    def __init__(self, bootstrap_servers: str) -> None:
        self._addresses = bootstrap_servers.split(",")

    def create(
        self,
        *names: str,
        partitions: int | None = None,
        replicas: int | None = None,
        configs: Mapping[str, object] | None = None,
    ) -> None:
        """Create topics and return when each partition has a leader that every slot knows.

        Args:
            names: one or more.
            partitions: of each; None: what the option `num.partitions` says, which is 1.
            replicas: of each partition; None: as many as there are slots, 3 at the most.
            configs: topic settings, such as `{"cleanup.policy": "compact"}`.

        Raises:
            BrokerError: the broker refuses one; the text says why.
        """
        settings = tuple(TopicConfig(name, _text(value)) for name, value in (configs or {}).items())
        factor = BROKER_DEFAULT if replicas is None else replicas
        count = BROKER_DEFAULT if partitions is None else partitions
        wanted = tuple(CreatableTopic(name, count, factor, configs=settings) for name in names)
        answer = request(self._any(), ApiKey.CREATE_TOPICS, CREATE_VERSION, CreateTopicsRequest(wanted))
        for result in answer.topics:
            if result.error_code:
                raise BrokerError(
                    f"topic {result.name}: {refusal_of(result.error_code, result.error_message)}"
                )
        self._wait({result.name: result.num_partitions for result in answer.topics})

    def delete(self, *names: str) -> None:
        """Delete topics.

        Raises:
            BrokerError: the broker refuses one; the text says why.
        """
        body = DeleteTopicsRequest(tuple(TopicSelector(name=name) for name in names), 30_000)
        for result in request(self._any(), ApiKey.DELETE_TOPICS, DELETE_VERSION, body).responses:
            if result.error_code:
                raise BrokerError(
                    f"topic {result.name}: {refusal_of(result.error_code, result.error_message)}"
                )

    def names(self) -> list[str]:
        """Return the names of all topics but internal ones, sorted."""
        return sorted(
            topic.name
            for topic in self._metadata(self._any(), None)
            if topic.name is not None and not topic.is_internal
        )

    def _any(self) -> str:
        return first_that_answers(",".join(self._addresses))

    def _metadata(self, address: str, names: tuple[str, ...] | None) -> tuple[MetadataTopic, ...]:
        wanted = None if names is None else tuple(TopicSelector(name=name) for name in names)
        body = MetadataRequest(wanted, allow_auto_topic_creation=False)
        topics: tuple[MetadataTopic, ...] = request(address, ApiKey.METADATA, METADATA_VERSION, body).topics
        return topics

    def _wait(self, partitions: Mapping[str, int]) -> None:
        names = tuple(partitions)
        deadline = time.monotonic() + TIMEOUT_S
        for address in self._addresses:
            while True:
                try:
                    found = self._metadata(address, names)
                except BrokerError:
                    break  # a stopped slot
                if all(
                    not topic.error_code
                    and len(topic.partitions) == partitions[topic.name or ""]
                    and all(each.leader_id >= 0 for each in topic.partitions)
                    for topic in found
                ):
                    break
                if time.monotonic() > deadline:
                    raise BrokerError(f"topics {', '.join(names)}: no leader in {TIMEOUT_S:.0f} s")
                time.sleep(_LOOK_S)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
