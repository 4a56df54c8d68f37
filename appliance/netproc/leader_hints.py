"""Where the leader is, beside NOT_LEADER_OR_FOLLOWER: clients go there without asking for metadata (KIP-951).

As far as the metadata image says, which may be a moment old; nothing is told of a partition that it says nobody leads.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from appliance.cluster import NO_LEADER
from appliance.netproc.topic_routes import TopicRoutes
from appliance.protocol.node_endpoint import CurrentLeader, NodeEndpoint


def leader_hint(routes: TopicRoutes, topic: str | UUID, partition: int) -> CurrentLeader | None:
    """Who leads the partition, None where that is not known."""
    found = routes.of(topic)
    route = None if found is None else found.partition(partition)
    if route is None or route.leader == NO_LEADER:
        return None
    return CurrentLeader(route.leader, route.leader_epoch)


def endpoints_of(routes: TopicRoutes, hints: Iterable[CurrentLeader | None]) -> list[NodeEndpoint]:
    """Where the leaders listen, each once."""
    image = routes.image
    wanted = {hint.leader_id for hint in hints if hint is not None}
    if image is None or not wanted:
        return []
    return [NodeEndpoint(s.node_id, s.host, s.port, s.rack) for s in image.slots if s.node_id in wanted]
