"""PushTelemetry 0 (KIP-714): the client's metrics go to the metrics process. See `requests.client_telemetry`.

The metrics are not read here.

Left out: an answer without the option metrics.client.telemetry, as in GetTelemetrySubscriptions.
"""

from __future__ import annotations

from appliance.protocol.apis.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView


def push_telemetry(request: PushTelemetryRequest, view: LocalView) -> PushTelemetryResponse:
    """Hand the push over, or say why not."""
    if view.telemetry is None:
        return PushTelemetryResponse(int(ErrorCode.UNSUPPORTED_VERSION))
    return view.telemetry.push(view.session, request)
