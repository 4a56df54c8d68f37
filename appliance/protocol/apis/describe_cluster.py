"""DescribeCluster (60), versions 0-2. v1 tells brokers from controllers (KIP-919), v2 shows fenced
brokers."""

from __future__ import annotations

import msgspec

from appliance.protocol.apis.metadata import UNKNOWN_OPERATIONS

ENDPOINT_BROKERS = 1
ENDPOINT_CONTROLLERS = 2


class DescribeClusterRequest(msgspec.Struct, frozen=True):
    include_cluster_authorized_operations: bool
    endpoint_type: int = ENDPOINT_BROKERS
    include_fenced_brokers: bool = False


class ClusterBroker(msgspec.Struct, frozen=True):
    broker_id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


class DescribeClusterResponse(msgspec.Struct, frozen=True):
    cluster_id: str
    brokers: tuple[ClusterBroker, ...]
    controller_id: int = -1
    error_code: int = 0
    error_message: str | None = None
    endpoint_type: int = ENDPOINT_BROKERS
    throttle_time_ms: int = 0
    cluster_authorized_operations: int = UNKNOWN_OPERATIONS
