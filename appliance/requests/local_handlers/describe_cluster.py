"""DescribeCluster 0-2: cluster id, controller, broker slots; stopped and lost ones where they are asked for."""

from __future__ import annotations

from appliance.cluster import BrokerSlot
from appliance.protocol.apis.describe_cluster import (
    ENDPOINT_BROKERS,
    ENDPOINT_CONTROLLERS,
    ClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from appliance.protocol.apis.metadata import UNKNOWN_OPERATIONS
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView


def describe_cluster(request: DescribeClusterRequest, view: LocalView) -> DescribeClusterResponse:
    """KIP-919: a question for controllers is for a controller's listener, which we do not have."""
    image = view.image
    if request.endpoint_type != ENDPOINT_BROKERS:
        known = request.endpoint_type == ENDPOINT_CONTROLLERS
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        return DescribeClusterResponse(
            cluster_id=image.cluster_id,
            brokers=(),
            error_code=error,
            error_message=error.message,
        )
    brokers = [ClusterBroker(s.node_id, s.host, s.port, s.rack) for s in view.brokers()]
    if request.include_fenced_brokers:
        brokers += _fenced(view)
    wanted = request.include_cluster_authorized_operations
    return DescribeClusterResponse(
        cluster_id=image.cluster_id,
        brokers=tuple(brokers),
        controller_id=image.controller_id,
        cluster_authorized_operations=view.cluster_operations() if wanted else UNKNOWN_OPERATIONS,
    )


def _fenced(view: LocalView) -> list[ClusterBroker]:
    settings, live = view.settings, {slot.node_id for slot in view.image.slots}
    fenced = (
        BrokerSlot(
            slot, settings.client_host, settings.main_listener.client_port + slot, settings.broker.rack
        )
        for slot in range(settings.slots)
        if slot not in live
    )
    return [
        ClusterBroker(s.node_id, s.host, s.port, s.rack, is_fenced=True)
        for s in map(view.session.told_of, fenced)
    ]
