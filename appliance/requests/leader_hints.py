"""Where the leader is, beside NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH: clients go there without asking for
metadata (KIP-951).

As far as the metadata image says, which may be a moment old; nothing is told of a partition that it says nobody leads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, TypeVar
from uuid import UUID

from appliance.cluster import NO_LEADER
from appliance.protocol.errors import ErrorCode
from appliance.protocol.fetch_response import FetchedPartition
from appliance.protocol.node_endpoint import CurrentLeader, NodeEndpoint
from appliance.protocol.produce import ProduceResult
from appliance.requests.session import Session
from appliance.requests.topic_routes import TopicRoutes

MOVED: Final = frozenset({int(ErrorCode.NOT_LEADER_OR_FOLLOWER), int(ErrorCode.FENCED_LEADER_EPOCH)})
"""Errors of who takes somebody for the leader, or an epoch for the leader's, that is not so any more."""

_Told = TypeVar("_Told", ProduceResult, FetchedPartition)


def with_hints(
    routes: TopicRoutes, told: Sequence[_Told], session: Session
) -> tuple[list[_Told], list[NodeEndpoint]]:
    """Return what is told of partitions, those that have moved with their leader now; and where the leaders listen.

    Args:
        session: of the client, which is told the addresses of the listener that it came by.
    """
    hinted = [
        one._replace(current_leader=leader_hint(routes, one.topic, one.partition))
        if one.error_code in MOVED
        else one
        for one in told
    ]
    return hinted, endpoints_of(routes, [one.current_leader for one in hinted], session)


def leader_hint(routes: TopicRoutes, topic: str | UUID, partition: int) -> CurrentLeader | None:
    """Who leads the partition, None where that is not known."""
    found = routes.of(topic)
    route = None if found is None else found.partition(partition)
    if route is None or route.leader == NO_LEADER:
        return None
    return CurrentLeader(route.leader, route.leader_epoch)


def endpoints_of(
    routes: TopicRoutes, hints: Iterable[CurrentLeader | None], session: Session
) -> list[NodeEndpoint]:
    """Where the leaders listen, each once."""
    image = routes.image
    wanted = {hint.leader_id for hint in hints if hint is not None}
    if image is None or not wanted:
        return []
    return [
        NodeEndpoint(s.node_id, s.host, s.port, s.rack)
        for s in map(session.told_of, image.slots)
        if s.node_id in wanted
    ]
