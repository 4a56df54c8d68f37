"""Which groups a cluster has: each broker is asked for those that it coordinates."""

from __future__ import annotations

from appliance.cli.request import request
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.protocol.apis.list_groups import ListGroupsRequest


def group_names(address: str, *, timeout_s: float) -> list[str]:
    """Return the ids of all groups, in order.

    Raises:
        BrokerError: a broker does not answer in time, or refuses.
    """
    brokers = request(
        address, ApiKey.DESCRIBE_CLUSTER, 1, DescribeClusterRequest(False), oldest=0, timeout_s=timeout_s
    ).brokers
    found: set[str] = set()
    for broker in brokers:
        answer = request(
            f"{broker.host}:{broker.port}",
            ApiKey.LIST_GROUPS,
            4,
            ListGroupsRequest(),
            oldest=0,
            timeout_s=timeout_s,
        )
        found |= {group.group_id for group in answer.groups}
    return sorted(found)
