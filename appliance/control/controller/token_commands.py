"""What becomes of a request about a delegation token. The network process has checked who may ask; here is what needs
the books.

| refused with | when |
|---|---|
| DELEGATION_TOKEN_NOT_FOUND | no token has the id |
| DELEGATION_TOKEN_OWNER_MISMATCH | the principal is neither the owner nor a renewer |
| DELEGATION_TOKEN_EXPIRED | a renewal, or a later end, of a token that has expired and is not swept yet |
| POLICY_VIOLATION | more than `TOKENS_MAX` tokens, or `TOKENS_OF_REQUESTER_MAX` of one requester, or longer names |

A token lives at most `delegation.token.max.lifetime.ms`, and `delegation.token.expiry.time.ms` after each renewal. The
requester of a token for another owner may not renew it, as in Kafka.

Source: Kafka's `DelegationTokenControlManager.java`, release 4.3. Kafka has no bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from msgspec.structs import replace

from appliance.channels.control_channel import CreateToken, ExpireToken, RenewToken, TokenOutcome
from appliance.cluster import DelegationToken
from appliance.config.declaration import INT64_MAX
from appliance.config.sections.delegation_tokens import DelegationTokenSettings
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.token_store import token_alteration, token_creation, token_deletion
from appliance.control.store.metadata_store import Operation
from appliance.protocol.errors import ErrorCode

TOKENS_MAX: Final = 20_000
"""In every network process; a change publishes all of them."""
TOKENS_OF_REQUESTER_MAX: Final = 2_000
"""Any principal may make tokens for itself, so one of them must not use up all."""
TOKEN_BYTES_MAX: Final = 32 << 10
"""Of the names in one token, in UTF-8. A node of the metadata store holds them with at most three bytes for each."""
TOKENS_BYTES_MAX: Final = 16 << 20
TOKENS_OF_REQUESTER_BYTES_MAX: Final = 1 << 20
SWEPT_AT_ONCE: Final = 500


class Planned(Protocol):
    """Where the change is noted until the store has it (`deciding.Turn`)."""

    operations: list[Operation]
    access_altered: bool
    undo: list[Callable[[], None]]


def plan_token(
    turn: Planned,
    state: ClusterState,
    settings: DelegationTokenSettings,
    request: CreateToken | RenewToken | ExpireToken,
    *,
    now_ms: int,
) -> TokenOutcome:
    """Take the change into the books; return the answer for the network process."""
    if isinstance(request, CreateToken):
        return _create(turn, state, settings, request, now_ms=now_ms)
    token = state.tokens.get(request.token_id)
    if token is None:
        return _refused(ErrorCode.DELEGATION_TOKEN_NOT_FOUND)
    is_renewal = isinstance(request, RenewToken)
    if is_renewal and token.is_expired(now_ms):
        return _refused(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    if request.principal != token.owner and request.principal not in token.renewers:
        return _refused(ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH)
    if not is_renewal and request.period_ms < 0:
        _take(turn, state, {name: each for name, each in state.tokens.items() if each is not token})
        turn.operations.append(token_deletion(token))
        return TokenOutcome(expires_ms=now_ms)
    if token.is_expired(now_ms):
        return _refused(ErrorCode.DELEGATION_TOKEN_EXPIRED)
    period_ms = request.period_ms
    if is_renewal:
        period_ms = min(period_ms, settings.expiry_time_ms) if period_ms > 0 else settings.expiry_time_ms
    altered = replace(token, expires_ms=min(token.max_ms, _sum(now_ms, period_ms)))
    _take(turn, state, {**state.tokens, token.token_id: altered})
    turn.operations.append(token_alteration(altered))
    return TokenOutcome(expires_ms=altered.expires_ms)


def plan_sweep(turn: Planned, state: ClusterState, *, now_ms: int) -> tuple[DelegationToken, ...]:
    """Take expired tokens out of the books, SWEPT_AT_ONCE at most; return them."""
    expired = [token for token in state.tokens.values() if token.is_expired(now_ms)][:SWEPT_AT_ONCE]
    if expired:
        gone = {token.token_id for token in expired}
        _take(turn, state, {name: token for name, token in state.tokens.items() if name not in gone})
        turn.operations += map(token_deletion, expired)
    return tuple(expired)


def _create(
    turn: Planned,
    state: ClusterState,
    settings: DelegationTokenSettings,
    request: CreateToken,
    *,
    now_ms: int,
) -> TokenOutcome:
    if not _has_room(state, request):
        return _refused(ErrorCode.POLICY_VIOLATION)
    if request.token_id in state.tokens:
        return _refused(ErrorCode.INVALID_REQUEST)
    lifetime_ms = settings.max_lifetime_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    max_ms = _sum(now_ms, lifetime_ms)
    token = DelegationToken(
        request.token_id,
        request.owner,
        request.requester,
        request.renewers,
        now_ms,
        max_ms,
        min(max_ms, _sum(now_ms, settings.expiry_time_ms)),
    )
    had_folder = state.has_token_folder
    turn.operations += token_creation(token, has_folder=had_folder)
    _take(turn, state, {**state.tokens, token.token_id: token})
    state.has_token_folder = True

    def undo() -> None:
        state.has_token_folder = had_folder

    turn.undo.append(undo)
    return TokenOutcome(token=token, expires_ms=token.expires_ms)


def _has_room(state: ClusterState, request: CreateToken) -> bool:
    """Whether one more token of this requester is within all bounds."""
    wanted = _names_bytes(request)
    if wanted > TOKEN_BYTES_MAX or len(state.tokens) >= TOKENS_MAX:
        return False
    in_all = of_requester = tokens_of_requester = 0
    for token in state.tokens.values():
        size = _names_bytes(token)
        in_all += size
        if token.requester == request.requester:
            of_requester += size
            tokens_of_requester += 1
    return (
        in_all + wanted <= TOKENS_BYTES_MAX
        and of_requester + wanted <= TOKENS_OF_REQUESTER_BYTES_MAX
        and tokens_of_requester < TOKENS_OF_REQUESTER_MAX
    )


def _names_bytes(token: CreateToken | DelegationToken) -> int:
    return sum(len(name.encode()) for name in (token.owner, token.requester, *token.renewers))


def _take(turn: Planned, state: ClusterState, tokens: Mapping[str, DelegationToken]) -> None:
    before = state.tokens, state.shown_tokens
    # New mappings: what fails is undone by taking the old ones back.
    state.set_tokens(dict(tokens))
    turn.access_altered = True

    def undo() -> None:
        state.tokens, state.shown_tokens = before

    turn.undo.append(undo)


def _refused(code: ErrorCode) -> TokenOutcome:
    return TokenOutcome(int(code))


def _sum(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, INT64_MAX)
