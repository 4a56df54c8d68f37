"""GetTelemetrySubscriptions 0 (KIP-714): which metrics the client is to push. See `requests.client_telemetry`.

Left out: an answer without the option metrics.client.telemetry. Neither API is advertised then. A client that asks all
the same gets UNSUPPORTED_VERSION, and stops asking. Kafka 4.3 without a receiver does not advertise them either, but
answers with a subscription to nothing, and drops what is pushed.
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
