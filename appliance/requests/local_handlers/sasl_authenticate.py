"""SaslAuthenticate 0-2 on a connection that has authenticated, or need not: ILLEGAL_SASL_STATE, as in Kafka.

The authentication itself is in `requests/authentication.py`.
"""

from __future__ import annotations

from typing import Final

from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView

_WHY: Final = "SaslAuthenticate request received after successful authentication"


def sasl_authenticate(request: SaslAuthenticateRequest, _view: LocalView) -> SaslAuthenticateResponse:
    """Refuse."""
    del request
    return SaslAuthenticateResponse(int(ErrorCode.ILLEGAL_SASL_STATE), _WHY)
