"""ExpireDelegationToken 1-2: a token ends earlier, or now; the controller decides.

The owner of the token and its renewers may ask. Refusals: `control/controller/token_commands.py`.
Source: Kafka's `DelegationTokenControlManager.java`, release 4.3.
"""

from __future__ import annotations

from appliance.protocol.apis.expire_delegation_token import (
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
)
from appliance.requests.local_handlers.delegation_tokens import changed
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps


def expire_delegation_token(
    request: ExpireDelegationTokenRequest, view: LocalView
) -> Steps[ExpireDelegationTokenResponse]:
    """Answer when the metadata image has the change."""
    code, expires_ms = yield from changed(
        request.hmac, view, period_ms=request.expiry_time_period_ms, is_renewal=False
    )
    return ExpireDelegationTokenResponse(code, expires_ms)
