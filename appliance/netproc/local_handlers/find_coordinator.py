"""FindCoordinator 0-6: no coordinator is there yet, and that is what it says.

Served before groups are (decision 0006) because librdkafka takes the presence of this API for the broker's ability to
store lz4: without it, every lz4 producer of that family would silently send its records uncompressed.
"""

from __future__ import annotations

from appliance.netproc.local_handlers.view import LocalView
from appliance.protocol.apis.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)
from appliance.protocol.errors import ErrorCode

_MESSAGE = "Consumer groups and transactions are not served yet."


def find_coordinator(request: FindCoordinatorRequest, _view: LocalView) -> FindCoordinatorResponse:
    """COORDINATOR_NOT_AVAILABLE for every key, in the shape of every version."""
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    return FindCoordinatorResponse(
        error_code=error,
        error_message=_MESSAGE,
        coordinators=tuple(
            Coordinator(key, error_code=error, error_message=_MESSAGE) for key in request.coordinator_keys
        ),
    )
