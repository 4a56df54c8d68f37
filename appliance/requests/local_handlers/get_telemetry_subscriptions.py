"""GetTelemetrySubscriptions 0 (KIP-714): which metrics the client is to push. See `requests.client_telemetry`.

Left out: an answer without the option metrics.client.telemetry. Without this option, the
broker does not advertise the two APIs of KIP-714. A client that still sends such a request gets UNSUPPORTED_VERSION,
and stops. Kafka 4.3 without a receiver does not advertise the two APIs either, but answers such a request with an empty
subscription, and drops pushed metrics.
"""

from __future__ import annotations

from appliance.protocol.apis.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView


def get_telemetry_subscriptions(
    request: GetTelemetrySubscriptionsRequest, view: LocalView
) -> GetTelemetrySubscriptionsResponse:
    """Answer from this process's memory and the subscriptions of the image."""
    if view.telemetry is None:
        return GetTelemetrySubscriptionsResponse(int(ErrorCode.UNSUPPORTED_VERSION))
    return view.telemetry.subscribe(view.session, request)
