"""What the four APIs of delegation tokens share: who may ask, which token is meant, how principals are written.

A connection that is not encrypted and not authenticated, or that itself logged in with a token, may not ask for tokens.
Source: Kafka's `KafkaApis.scala` (`allowTokenRequests`), release 4.3.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.control_channel import CreateToken, ExpireToken, RenewToken, TokenOutcome
from appliance.config.sections.listeners import PLAINTEXT
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.session import ANONYMOUS
from appliance.requests.steps import Ask, Steps
from appliance.sasl.delegation_tokens import hmac_of

TIMEOUT_MS: Final = 60_000
NO_TIME: Final = -1
"""What stands for each time in the answer to a request that is not allowed."""
_PIECE: Final = 200


def may_ask(view: LocalView) -> bool:
    """Return whether the connection may ask about tokens at all."""
    session = view.session
    if session.by_token or (session.principal == ANONYMOUS and not _proves_users(view)):
        return False
    return not any(
        each.name == session.listener and each.protocol == PLAINTEXT for each in view.settings.listeners
    )


def _proves_users(view: LocalView) -> bool:
    """Whether the principal ANONYMOUS is one that its client has proved: a user of SASL may have this name."""
    return any(each.name == view.session.listener and each.is_sasl for each in view.settings.listeners)


def secret_of(view: LocalView) -> str | None:
    """Return `delegation.token.secret.key`; None where there are no tokens."""
    return view.settings.delegation_tokens.secret_key


def meant_by(wanted: bytes, secret: str, view: LocalView) -> Steps[str]:
    """Return the id of the token with this HMAC; "" where there is none."""
    import hmac

    found = ""
    for number, token in enumerate(view.image.tokens):
        if not number % _PIECE:
            yield None
        if hmac.compare_digest(hmac_of(secret, token.token_id), wanted):
            found = token.token_id
    return found


def decided(question: CreateToken | RenewToken | ExpireToken) -> Steps[TokenOutcome]:
    """Return what the controller says. One that does not answer may have made the change."""
    answer = yield Ask(question, TIMEOUT_MS)
    return answer if isinstance(answer, TokenOutcome) else TokenOutcome(int(ErrorCode.REQUEST_TIMED_OUT))


def changed(wanted: bytes, view: LocalView, *, period_ms: int, is_renewal: bool) -> Steps[tuple[int, int]]:
    """Renew the token with this HMAC, or let it end; return the error code and the end of the token."""
    if not may_ask(view):
        return int(ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED), NO_TIME
    secret = secret_of(view)
    if secret is None:
        return int(ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED), 0
    token_id = yield from meant_by(wanted, secret, view)
    if not token_id:
        return int(ErrorCode.DELEGATION_TOKEN_NOT_FOUND), 0
    question = (RenewToken if is_renewal else ExpireToken)(token_id, view.session.principal, period_ms)
    outcome = yield from decided(question)
    return outcome.error, outcome.expires_ms


def parts(principal: str) -> tuple[str, str]:
    """Return type and name of a principal such as `User:alice`."""
    kind, _, name = principal.partition(":")
    return kind, name
