"""The conversation before a session, with a mechanism whose credentials end. The answers are held against Kafka in
tests/system/test_sasl_beside_kafka.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from appliance.clock import NS_PER_MS, ManualClock
from appliance.errors import MalformedFrame
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.errors import ErrorCode
from appliance.protocol.messages import decode_response
from appliance.requests.authentication import Authenticated, Authentication, State
from appliance.sasl.mechanism import AuthenticationFailed, Exchange
from tests.support.sasl_wire import authenticate_frame, handshake_frame


class Ticket(Exchange):
    """A token is a name and when its credential ends; an empty one fails without a sentence of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = 0

    def evaluate(self, token: bytes) -> bytes:
        if not token:
            raise AuthenticationFailed
        self._seen += 1
        if self._seen == 1:
            return b"go on"
        name, _, ends = token.decode().partition(" ")
        self.principal = f"User:{name}"
        self.expires_at_ms = int(ends) if ends else None
        self.is_complete = True
        return b"welcome"


def conversation(
    clock: ManualClock, *, max_reauth_ms: int = 0, before: Authenticated | None = None
) -> Authentication:
    return Authentication({"TICKET": Ticket}, clock, max_reauth_ms=max_reauth_ms, before=before)


def handshake(one: Authentication, mechanism: str = "TICKET") -> Any:
    return decode_response(ApiKey.SASL_HANDSHAKE, 1, memoryview(one.take(handshake_frame(mechanism)[4:])))[1]


def token(one: Authentication, data: bytes) -> Any:
    answer = one.take(authenticate_frame(data)[4:])
    return decode_response(ApiKey.SASL_AUTHENTICATE, 2, memoryview(answer))[1]


@pytest.mark.parametrize(
    ("max_reauth_ms", "left_ms", "lifetime_ms"),
    [
        (0, None, 0),
        (5000, None, 5000),
        (0, 700, 700),
        (5000, 700, 700),
        (500, 700, 500),
        (500, -9, 0),
        (0, 0, 0),
    ],
)
def test_a_session_ends_with_the_credential_or_before(
    max_reauth_ms: int, left_ms: int | None, lifetime_ms: int
) -> None:
    clock = ManualClock(monotonic_ns=77)
    one = conversation(clock, max_reauth_ms=max_reauth_ms)
    assert not handshake(one).error_code
    told = token(one, b"x")
    assert (told.auth_bytes, told.session_lifetime_ms, one.state) == (b"go on", 0, State.AUTHENTICATE)
    told = token(one, b"ann" if left_ms is None else b"ann %d" % (clock.now_ms() + left_ms))
    assert (told.error_code, told.auth_bytes, told.session_lifetime_ms) == (0, b"welcome", lifetime_ms)
    assert one.state is State.DONE
    assert one.result is not None
    ends_ns = None if not max_reauth_ms and left_ms is None else 77 + lifetime_ms * NS_PER_MS
    assert (one.result.principal, one.result.mechanism, one.result.expires_ns) == (
        "User:ann",
        "TICKET",
        ends_ns,
    )
    with pytest.raises(MalformedFrame):
        one.take(b"")


def test_a_failure_without_words_gets_the_usual_ones_and_ends_the_conversation() -> None:
    one = conversation(ManualClock())
    handshake(one)
    told = token(one, b"")
    assert told.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert told.error_message == (
        "Authentication failed during authentication due to invalid credentials with SASL mechanism TICKET"
    )
    assert (one.state, one.result) == (State.FAILED, None)
    with pytest.raises(MalformedFrame):
        one.take(authenticate_frame(b"x")[4:])


def test_who_authenticates_again_must_be_the_same() -> None:
    before = Authenticated("TICKET", "User:ann", 1)
    for name, code in ((b"ann", 0), (b"bob", ErrorCode.SASL_AUTHENTICATION_FAILED)):
        one = conversation(ManualClock(), before=before)
        handshake(one)
        token(one, b"x")
        told = token(one, name)
        assert told.error_code == code
        assert (one.result is not None) == (not code)
    assert told.error_message == "Cannot change principals during re-authentication from User.ann: User.bob"


def test_another_mechanism_than_before_fails_with_the_next_frame() -> None:
    one = conversation(ManualClock(), before=Authenticated("OTHER", "User:ann", 1))
    assert not handshake(one).error_code
    states = [one.state]
    assert one.take(authenticate_frame(b"x")[4:]) == b""
    assert [*states, one.state] == [State.OTHER_MECHANISM, State.FAILED]


def test_a_bare_token_may_be_short_and_not_too_long() -> None:
    one = conversation(ManualClock())
    one.take(handshake_frame("TICKET", 0)[4:])
    assert one.state is State.TOKENS
    assert one.size_of(bytes(4), size_max=100) == 0
    assert one.take(b"x") == b"\0\0\0\5go on"
    for size in (101, -1):
        with pytest.raises(MalformedFrame, match="the maximum is 100"):
            one.size_of(size.to_bytes(4, "big", signed=True), size_max=100)
