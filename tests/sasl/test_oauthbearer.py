"""The exchange of OAUTHBEARER: what a client may send, and what it gets."""

from __future__ import annotations

from typing import Final

import pytest

from appliance.clock import ManualClock
from appliance.config.sections.oauthbearer import OAuthBearerSettings
from appliance.sasl.key_set import KeySet, read_key_set
from appliance.sasl.mechanism import AuthenticationFailed
from appliance.sasl.oauthbearer import OAuthBearerExchange
from appliance.sasl.token_validator import KeysMissing, TokenValidator
from tests.support.identity_provider import SigningKey, good_claims, key_set

NOW_S: Final = 1_700_000_000
KEY: Final = SigningKey("one")
INVALID: Final = '{"status":"invalid_token"}'


class Keys:
    def __init__(self) -> None:
        self.keys: KeySet | None = read_key_set(key_set(KEY))

    def current(self) -> KeySet | None:
        return self.keys

    def ask_for_newer(self) -> None:
        pass


def exchange(keys: Keys | None = None) -> OAuthBearerExchange:
    clock = ManualClock(NOW_S * 1000)
    return OAuthBearerExchange(TokenValidator(OAuthBearerSettings(), keys or Keys(), clock))


def token(**changed: object) -> bytes:
    return KEY.token(good_claims(NOW_S, **changed)).encode()


def message(access_token: bytes, *, begin: bytes = b"n,,", pairs: bytes = b"") -> bytes:
    return begin + b"\x01auth=Bearer " + access_token + b"\x01" + pairs + b"\x01"


@pytest.mark.parametrize(
    "first",
    [
        message(token()),
        message(token(), begin=b"n,a=alice,"),
        message(token(), pairs=b"traceId=1 2\t3\x01logical=x=y,z\x01"),
        b"n,,\x01traceId=1\x01" + message(token())[4:],
        message(token()).replace(b"Bearer ", b"bEARER   "),
        message(token(sub="a=b,c"), begin=b"n,a=a=3Db=2Cc,"),
    ],
)
def test_a_good_token_completes_the_exchange(first: bytes) -> None:
    done = exchange()
    assert done.evaluate(first) == b""
    assert done.is_complete
    assert done.principal in ("User:alice", "User:a=b,c")
    assert done.expires_at_ms == (NOW_S + 3600) * 1000


@pytest.mark.parametrize("then", [b"\x01", b"", b"\x01\x01", message(token())])
def test_a_bad_token_gets_the_json_text_and_then_fails_whatever_the_client_sends(then: bytes) -> None:
    failing = exchange()
    assert failing.evaluate(message(token(exp=NOW_S - 100, iat=1))) == INVALID.encode()
    assert not failing.is_complete
    with pytest.raises(AuthenticationFailed) as failure:
        failing.evaluate(then)
    assert failure.value.message == INVALID
    assert not failing.is_complete


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\x01",
        b"\x01\x01",
        b"n,,",
        b"n,,\x01",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer x",
        b"n,,\x01auth=Bearer x\x01",
        b"n,,\x01auth=Bearer abcdef",
        b"n,,\x01auth=Bearer abcdef\x01x",
        b"n,,\x01auth=Basic x\x01\x01",
        b"n,,\x01auth=Bearer x y\x01\x01",
        b"n,,\x01auth=Bearer x\x01auth=Bearer y\x01\x01",
        b"n,,\x01AUTH=Bearer x\x01\x01",
        b"n,,\x01traceId=1\x01\x01",
        message(b"x", pairs=b"trace-id=1\x01"),
        message(b"x", pairs=b"traceId=\x01"),
        message(b"x", pairs=b"traceId\x01"),
        message(b"x", pairs=b"traceId=\xc3\xa9\x01"),
        message(b"x", pairs=b"\x01"),
        message(b"x") + b"\x01",
        message(b"x") + b"garbage",
        message(b"x", begin=b"y,,"),
        message(b"x", begin=b"p=tls-unique,,"),
        message(b"x", begin=b"n,a=,"),
        message(b"x", begin=b"n,a=b=c,"),
        message(b"x", begin=b"n,a=\xff,"),
        message(b"x", begin=b"n,"),
        message(b"x", begin=b"N,,"),
        message(b"x\xff"),
        b"\x00alice\x00secret",
        b"n,,n=alice,r=nonce",
        b"\x16\x03\x01" + b"x" * 500_000,
        b"n,," + b"\x01a=b" * 100_000 + b"\x01\x01",
    ],
)
def test_what_is_no_first_message_fails_without_a_reason(first: bytes) -> None:
    failing = exchange()
    with pytest.raises(AuthenticationFailed) as failure:
        failing.evaluate(first)
    assert failure.value.message is None
    assert not failing.is_complete


@pytest.mark.parametrize("wanted", [b"root", b"Alice", b"alic", b"User:alice", b"alice=2C"])
def test_nobody_becomes_another_principal(wanted: bytes) -> None:
    failing = exchange()
    with pytest.raises(AuthenticationFailed, match="authorization id"):
        failing.evaluate(message(token(), begin=b"n,a=" + wanted + b","))
    assert not failing.is_complete
    assert failing.principal == ""


def test_before_the_first_keys_the_client_is_not_refused_for_good() -> None:
    keys = Keys()
    keys.keys = None
    waiting = exchange(keys)
    with pytest.raises(KeysMissing):
        waiting.evaluate(message(token()))
    keys.keys = read_key_set(key_set(KEY))
    assert waiting.evaluate(message(token())) == b""
