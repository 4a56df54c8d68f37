"""RenewDelegationToken 1-2: a token lives longer, up to its maximum; the controller decides.

The owner of the token and its renewers may ask. Refusals: `control/controller/token_commands.py`.
Source: Kafka's `DelegationTokenControlManager.java`, release 4.3.
"""

from __future__ import annotations

from appliance.protocol.apis.renew_delegation_token import (
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from appliance.requests.local_handlers.delegation_tokens import changed
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps


def renew_delegation_token(
    request: RenewDelegationTokenRequest, view: LocalView
) -> Steps[RenewDelegationTokenResponse]:
    """Answer when the metadata image has the change."""
    code, expires_ms = yield from changed(
        request.hmac, view, period_ms=request.renew_period_ms, is_renewal=True
    )
    return RenewDelegationTokenResponse(code, expires_ms)
