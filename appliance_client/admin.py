"""A few administrative calls: topics, their settings, the cluster. Enough to set up and look at what one works with.

Left out on purpose: ACLs, quotas, groups, reassignments; `appliance` and Kafka's own tools have them.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.create_partitions import CreatePartitionsRequest, PartitionsTopic
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest, TopicConfig
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource, ResourceType
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance_client.core import Core, NotCopied
from appliance_client.errors import AuthenticationError, TransportError, error_of
from appliance_client.options import ConnectionOptions, options_of
from appliance_client.thread import IoThread

_JOIN_S: Final = 5.0


class ClusterDescription(NamedTuple):
    """The brokers by node id, as host and port, and which of them is the controller."""

    cluster_id: str
    controller_id: int
    brokers: Mapping[int, tuple[str, int]]


class Admin(NotCopied):
    """Asks and changes the cluster. Every call waits for the answer, at most `request.timeout.ms` for each attempt."""

    def __init__(self, config: Mapping[str, Any] | None = None, /, **options: Any) -> None:
        self._options = options_of(ConnectionOptions, config, options)
        self._core = Core(self._options, now_s=time.monotonic(), auto_create=False)
        self._core.lock = lock = threading.RLock()
        self._controller = -1
        self._closed = False
        self._core.start()
        self._io = IoThread(self._core, "appliance-admin")
        self._io.after_fork = lock._at_fork_reinit  # type: ignore[attr-defined]

    def create_topic(
        self,
        name: str,
        partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; -1 is the broker's default."""
        settings = tuple(TopicConfig(key, value) for key, value in (configs or {}).items())
        topic = CreatableTopic(name, partitions, replication_factor, configs=settings)
        self._change(ApiKey.CREATE_TOPICS, CreateTopicsRequest((topic,), self._timeout_ms), "topics")

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        request = DeleteTopicsRequest((TopicSelector(name=name),), self._timeout_ms)
        self._change(ApiKey.DELETE_TOPICS, request, "responses")

    def create_partitions(self, topic: str, total: int) -> None:
        """Raise the number of a topic's partitions to `total`."""
        wanted = (PartitionsTopic(topic, total),)
        self._change(
            ApiKey.CREATE_PARTITIONS, CreatePartitionsRequest(wanted, self._timeout_ms, False), "results"
        )

    def topic_configs(self, topic: str) -> dict[str, str | None]:
        """All settings of a topic."""
        resource = DescribedResource(ResourceType.TOPIC, topic)
        answer = self._ask(ApiKey.DESCRIBE_CONFIGS, DescribeConfigsRequest((resource,)))
        (told,) = answer.results
        if told.error_code:
            raise error_of(told.error_code, told.error_message)
        return {each.name: each.value for each in told.configs}

    def topics(self) -> dict[str, int]:
        """Every topic with its number of partitions."""
        answer = self._ask(ApiKey.METADATA, MetadataRequest(None, allow_auto_topic_creation=False))
        return {each.name: len(each.partitions) for each in answer.topics if not each.error_code}

    def cluster(self) -> ClusterDescription:
        """The brokers and the controller."""
        answer = self._ask(ApiKey.METADATA, MetadataRequest((), allow_auto_topic_creation=False))
        brokers = {each.node_id: (each.host, each.port) for each in answer.brokers}
        for node_id, (host, port) in brokers.items():
            self._core.network.learn_endpoint(node_id, host, port)
        return ClusterDescription(answer.cluster_id or "", answer.controller_id, brokers)

    @property
    def _timeout_ms(self) -> int:
        return self._options.request_timeout_ms

    def _change(self, api: ApiKey, request: Any, results: str) -> None:
        """Ask the controller; another one where it is not that any more."""
        for last in (False, True):
            if self._controller < 0:
                self._controller = self.cluster().controller_id
            answer = self._ask(api, request, self._controller)
            (told,) = getattr(answer, results)
            if told.error_code == ErrorCode.NOT_CONTROLLER and not last:
                self._controller = -1
                continue
            if told.error_code:
                raise error_of(told.error_code, getattr(told, "error_message", None))
            return

    def _ask(self, api: ApiKey, request: Any, node_id: int | None = None) -> Any:
        limit_s = 2 * self._timeout_ms / 1000
        return self._io.call(
            self._asked(api, request, node_id, time.monotonic() + limit_s), limit_s, api.title
        )

    async def _asked(self, api: ApiKey, request: Any, node_id: int | None, deadline_s: float) -> Any:
        network = self._core.network
        attempt = 0
        while True:
            try:
                return await network.call(network.any_node() if node_id is None else node_id, api, request)
            except AuthenticationError:
                raise
            except TransportError:
                wait_s = network.backoff_s(attempt)
                attempt += 1
                if self._core.scheduler.now_s + wait_s > deadline_s:
                    raise
                await self._core.scheduler.sleep(wait_s)

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._io.stop(_JOIN_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        io = getattr(self, "_io", None)
        if io is not None and not self._closed and not io.forked:
            warnings.warn("an admin client was not closed", ResourceWarning, stacklevel=2)
            io.stop(0)


__all__ = ["Admin", "ClusterDescription"]
