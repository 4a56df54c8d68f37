"""GetTelemetrySubscriptions 0 (KIP-714): which metrics the client is to push. See `requests.client_telemetry`.

Left out: an answer without the option metrics.client.telemetry. Without this option the broker does not advertise
the API, and answers requests with UNKNOWN_SERVER_ERROR. Kafka without a receiver answers, and drops the metrics.
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
        return GetTelemetrySubscriptionsResponse(int(ErrorCode.UNKNOWN_SERVER_ERROR))
    return view.telemetry.subscribe(view.session, request)
