"""CreateDelegationToken 1-3: the controller decides; answers when the metadata image has the token.

| refused with | when |
|---|---|
| DELEGATION_TOKEN_REQUEST_NOT_ALLOWED | the connection may not ask about tokens (`delegation_tokens.may_ask`) |
| DELEGATION_TOKEN_AUTHORIZATION_FAILED | another owner than the requester, without CREATE_TOKENS on that user |
| INVALID_PRINCIPAL_TYPE | a renewer that is no user |
| DELEGATION_TOKEN_AUTH_DISABLED | `delegation.token.secret.key` is not set |
| INVALID_REQUEST | more than RENEWERS_MAX renewers, or a name that is too long |
| POLICY_VIOLATION | too many tokens (the controller says so) |

Source: Kafka's `KafkaApis.scala` and `DelegationTokenControlManager.java`, release 4.3. Kafka has no bounds.
"""

from __future__ import annotations

import base64
from typing import Final
from uuid import uuid4

from appliance.channels.control_channel import CreateToken
from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.apis.create_delegation_token import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.delegation_tokens import NO_TIME, decided, may_ask, parts, secret_of
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps, in_pieces
from appliance.sasl.delegation_tokens import hmac_of

RENEWERS_MAX: Final = 100
NAME_CHARACTERS_MAX: Final = 1024
_USER: Final = "User"


def create_delegation_token(
    request: CreateDelegationTokenRequest, view: LocalView
) -> Steps[CreateDelegationTokenResponse]:
    """Make a token whose owner is the requester, or another user if a rule allows that."""
    requester = view.session.principal
    owner = requester
    if request.owner_principal_name:
        owner = f"{request.owner_principal_type or ''}:{request.owner_principal_name}"
    refusal = _refusal(request, view, owner)
    if refusal is not None:
        return _response(refusal, owner, requester, time_ms=NO_TIME)
    secret = secret_of(view)
    if secret is None:
        return _response(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED, owner, requester)
    renewers = dict.fromkeys(
        (yield from in_pieces(lambda each: f"{each.principal_type}:{each.principal_name}", request.renewers))
    )
    if len(renewers) > RENEWERS_MAX or any(len(name) > NAME_CHARACTERS_MAX for name in (owner, *renewers)):
        return _response(ErrorCode.INVALID_REQUEST, owner, requester)
    outcome = yield from decided(
        CreateToken(_new_id(), owner, requester, tuple(renewers), request.max_lifetime_ms)
    )
    token = outcome.token
    if token is None:
        return _response(outcome.error, owner, requester)
    return CreateDelegationTokenResponse(
        0,
        *parts(owner),
        *parts(requester),
        issue_timestamp_ms=token.issued_ms,
        expiry_timestamp_ms=token.expires_ms,
        max_timestamp_ms=token.max_ms,
        token_id=token.token_id,
        hmac=hmac_of(secret, token.token_id),
    )


def _refusal(request: CreateDelegationTokenRequest, view: LocalView, owner: str) -> ErrorCode | None:
    if not may_ask(view):
        return ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
    if owner != view.session.principal and not view.may(AclOperation.CREATE_TOKENS, ResourceType.USER, owner):
        if view.audited is not None:
            view.audited.denied(AclOperation.CREATE_TOKENS, ResourceType.USER, owner)
        return ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
    if any(each.principal_type != _USER for each in request.renewers):
        return ErrorCode.INVALID_PRINCIPAL_TYPE
    return None


def _response(code: int, owner: str, requester: str, *, time_ms: int = 0) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        int(code),
        *parts(owner),
        *parts(requester),
        issue_timestamp_ms=time_ms,
        expiry_timestamp_ms=time_ms,
        max_timestamp_ms=time_ms,
    )


def _new_id() -> str:
    """Return an id as Kafka's tokens have it: 22 characters of URL-safe base64, the first of them no hyphen."""
    while True:
        identity = base64.urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        if not identity.startswith("-"):
            return identity
