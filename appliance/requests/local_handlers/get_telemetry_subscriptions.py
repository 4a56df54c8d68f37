"""GetTelemetrySubscriptions 0 (KIP-714): which metrics the client is to push. See `requests.client_telemetry`.

Without the option metrics.client.telemetry, the API is not advertised, and is answered UNSUPPORTED_VERSION: clients
that ask all the same then stop asking. A Kafka broker without a manager of client metrics (ZooKeeper mode) does so. One
in KRaft mode without a receiver does not advertise the API either, but answers, and drops what is pushed.
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
