"""SaslHandshake 0-1 on a connection that needs no authentication, or has no lifetime: ILLEGAL_SASL_STATE, as in Kafka.

The authentication itself is in `requests/authentication.py`.
"""

from __future__ import annotations

from appliance.protocol.apis.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView


def sasl_handshake(request: SaslHandshakeRequest, _view: LocalView) -> SaslHandshakeResponse:
    """Refuse."""
    del request
    return SaslHandshakeResponse(int(ErrorCode.ILLEGAL_SASL_STATE))
