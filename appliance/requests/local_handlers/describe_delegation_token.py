"""DescribeDelegationToken 1-3: tokens of the metadata image, with their passwords.

A client sees the tokens that it owns, requested or may renew, and those that a rule shows it: DESCRIBE on the token, or
DESCRIBE_TOKENS on the user who owns it. What it may not see is left out. A token that has expired is there until the
controller removes it, as in Kafka.

Source: Kafka's `KafkaApis.scala` and `DelegationTokenManager.java` (`filterToken`), release 4.3.
"""

from __future__ import annotations

from typing import Final

from appliance.cluster import DelegationToken
from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.apis.describe_delegation_token import (
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.delegation_tokens import may_ask, parts, secret_of
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps
from appliance.sasl.delegation_tokens import hmac_of

_PIECE: Final = 50


def describe_delegation_token(
    request: DescribeDelegationTokenRequest, view: LocalView
) -> Steps[DescribeDelegationTokenResponse]:
    """The tokens of the owners that the request names, or of all."""
    if not may_ask(view):
        return DescribeDelegationTokenResponse(int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED))
    secret = secret_of(view)
    if secret is None:
        return DescribeDelegationTokenResponse(int(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED))
    owners: set[str] | None = None
    if request.owners is not None:
        owners = {f"{each.principal_type}:{each.principal_name}" for each in request.owners}
    described: list[DescribedDelegationToken] = []
    for number, token in enumerate(view.image.tokens):
        if not number % _PIECE:
            yield None
        concerned = {token.owner, token.requester, *token.renewers}
        if owners is not None and not owners & concerned:
            continue
        if view.session.principal in concerned or _is_shown(token, view):
            described.append(_described(token, secret))
    return DescribeDelegationTokenResponse(0, tuple(described))


def _is_shown(token: DelegationToken, view: LocalView) -> bool:
    return view.may(AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id) or view.may(
        AclOperation.DESCRIBE_TOKENS, ResourceType.USER, token.owner
    )


def _described(token: DelegationToken, secret: str) -> DescribedDelegationToken:
    kind, name = parts(token.owner)
    requester_kind, requester_name = parts(token.requester)
    return DescribedDelegationToken(
        kind,
        name,
        token.issued_ms,
        token.expires_ms,
        token.max_ms,
        token.token_id,
        hmac_of(secret, token.token_id),
        tuple(DescribedDelegationTokenRenewer(*parts(each)) for each in token.renewers),
        requester_kind,
        requester_name,
    )
