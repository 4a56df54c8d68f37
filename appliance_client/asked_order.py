"""Asks the broker whether the group wants the order of a topic: the settings of its retry topic say so (`ordered`)."""

from __future__ import annotations

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource, ResourceType
from appliance.protocol.errors import ErrorCode
from appliance_client.errors import error_of
from appliance_client.handing_back import RetryTopics
from appliance_client.network import Network
from appliance_client.ordered import Ordered, rules_of


class AskedOrder:
    """Fills in the rules of `ordered`."""

    __slots__ = ("_network", "_ordered", "_retry_topics", "known")

    def __init__(self, network: Network, retry_topics: RetryTopics, ordered: Ordered) -> None:
        self._network = network
        self._retry_topics = retry_topics
        self._ordered = ordered
        self.known: set[str] = set()
        """Topics about which the broker has answered."""

    async def ask(self, topics: set[str]) -> None:
        """Ask about each topic. A topic without retries has no order.

        Raises:
            ClientError: the broker has not answered, or the settings may not be read.
        """
        for topic in sorted(topics):
            request = DescribeConfigsRequest(
                (DescribedResource(ResourceType.TOPIC, self._retry_topics.of(topic)),)
            )
            answer = await self._network.call(self._network.any_node(), ApiKey.DESCRIBE_CONFIGS, request)
            (found,) = answer.results
            self._ordered.rules.pop(topic, None)
            is_missing = found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if found.error_code and not is_missing:
                raise error_of(found.error_code, found.error_message)
            rules = None if is_missing else rules_of({each.name: each.value for each in found.configs})
            if rules is not None:
                self._ordered.rules[topic] = rules
            self.known.add(topic)
