"""SCRAM against the examples of the RFCs, a real client's side, and clients that lie."""

from __future__ import annotations

import base64
import secrets

import pytest
from kafka.net.sasl.scram import ScramClient

from appliance.clock import ManualClock
from appliance.cluster import DelegationToken, ScramCredential
from appliance.config.sections.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from appliance.errors import CorruptFile
from appliance.sasl.delegation_tokens import TokenCredentials, password_of
from appliance.sasl.mechanism import AuthenticationFailed
from appliance.sasl.scram import ScramExchange, ScramUsers
from appliance.sasl.scram_credential import (
    credential_from_salted,
    credential_text,
    new_credential,
    parse_credential,
    salted_password,
)
from tests.support.sasl_wire import CLIENT_NONCE, ScramTokens

BOTH = (SCRAM_SHA_256, SCRAM_SHA_512)


def users(*credentials: ScramCredential, secret: bytes = b"secret") -> ScramUsers:
    return ScramUsers(secret, lambda: credentials)


def talk(exchange: ScramExchange, mechanism: str, user: str, password: str) -> None:
    """Play kafka-python's side to the end."""
    client = ScramClient(user, password, mechanism)
    client.process_server_first_message(exchange.evaluate(client.first_message()))
    client.process_server_final_message(exchange.evaluate(client.final_message()))


def test_the_example_of_rfc_7677(monkeypatch: pytest.MonkeyPatch) -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password(SCRAM_SHA_256, "pencil", salt, 4096)
    credential = credential_from_salted("user", SCRAM_SHA_256, salted=salted, salt=salt, iterations=4096)
    monkeypatch.setattr(secrets, "token_urlsafe", lambda _: "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    exchange = ScramExchange(SCRAM_SHA_256, users(credential).find(SCRAM_SHA_256))
    assert exchange.evaluate(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    assert not exchange.is_complete
    assert (
        exchange.evaluate(
            b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
            b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
        )
        == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )
    assert (exchange.is_complete, exchange.principal, exchange.expires_at_ms) == (True, "User:user", None)


@pytest.mark.parametrize("mechanism", BOTH)
@pytest.mark.parametrize("user", ["alice", "a,b=c", "Ünïcode"])
def test_a_clients_side_and_ours_agree(mechanism: str, user: str) -> None:
    credential = new_credential(user, mechanism, "pässword", iterations=8192)
    written = user.replace("=", "=3D").replace(",", "=2C")
    exchange = ScramExchange(mechanism, users(credential).find(mechanism))
    talk(exchange, mechanism, written, "pässword")
    assert exchange.is_complete
    assert exchange.principal == f"User:{user}"


@pytest.mark.parametrize("mechanism", BOTH)
def test_a_wrong_password_and_an_unknown_user_fail_alike_with_the_last_message(mechanism: str) -> None:
    found = users(new_credential("alice", mechanism, "right", iterations=8192))
    failures = []
    for user in ("alice", "nobody"):
        exchange = ScramExchange(mechanism, found.find(mechanism))
        with pytest.raises(AuthenticationFailed) as failed:
            talk(exchange, mechanism, user, "wrong")
        failures.append((failed.value.message, exchange.is_complete))
    assert failures == [(None, False)] * 2


def test_an_unknown_user_gets_the_same_salt_each_time_and_it_looks_like_the_others() -> None:
    real = new_credential("alice", SCRAM_SHA_256, "x", iterations=8192)

    def first(found: ScramUsers, user: str) -> tuple[str, str]:
        exchange = ScramExchange(SCRAM_SHA_256, found.find(SCRAM_SHA_256))
        _, salt, iterations = exchange.evaluate(f"n,,n={user},r=abc".encode()).decode().split(",")
        return salt, iterations

    shown = first(users(real), "nobody")
    assert shown == first(users(real), "nobody")
    assert shown != first(users(real), "nobody2")
    assert shown != first(users(real, secret=b"another"), "nobody")
    assert shown[1] == "i=8192"
    assert len(shown[0]) == len(first(users(real), "alice")[0])


def test_a_change_counts_for_the_next_authentication() -> None:
    now = [(new_credential("alice", SCRAM_SHA_256, "old"),)]
    found = ScramUsers(b"secret", lambda: now[0])
    talk(ScramExchange(SCRAM_SHA_256, found.find(SCRAM_SHA_256)), SCRAM_SHA_256, "alice", "old")
    now[0] = (new_credential("alice", SCRAM_SHA_256, "new"),)
    talk(ScramExchange(SCRAM_SHA_256, found.find(SCRAM_SHA_256)), SCRAM_SHA_256, "alice", "new")
    with pytest.raises(AuthenticationFailed):
        talk(ScramExchange(SCRAM_SHA_256, found.find(SCRAM_SHA_256)), SCRAM_SHA_256, "alice", "old")


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\xff\xfe",
        b"n,,",
        b"n,,n=alice",
        b"n,,r=abc,n=alice",
        b"n,,n=,r=abc",
        b"n,,n=alice,r=",
        b"n,,n=al=ice,r=abc",
        b"n,,n=alice,r=a b",
        b"n,,n=alice,r=" + b"x" * 5000,
        b"n,,n=" + b"x" * 5000 + b",r=abc",
        b"n,,m=ext,n=alice,r=abc",
        b"n,,n=alice,r=abc,extension",
        b"p=tls-unique,,n=alice,r=abc",
        b"n,a=bob,n=alice,r=abc",
        b"n,bob,n=alice,r=abc",
        b"n,,n=ali\0ce,r=abc",
        b"c=biws,r=abc,p=AAAA",
    ],
)
def test_a_first_message_that_is_none_fails(first: bytes) -> None:
    found = users(new_credential("alice", SCRAM_SHA_256, "x"))
    with pytest.raises(AuthenticationFailed):
        ScramExchange(SCRAM_SHA_256, found.find(SCRAM_SHA_256)).evaluate(first)


@pytest.mark.parametrize(
    "change", ["nonce", "short nonce", "proof", "short proof", "no proof", "not base64", "empty"]
)
def test_a_final_message_that_was_changed_fails(change: str) -> None:
    """The server must check its own nonce (CVE-2024-56128)."""
    found = users(new_credential("alice", SCRAM_SHA_256, "x"))
    exchange = ScramExchange(SCRAM_SHA_256, found.find(SCRAM_SHA_256))
    client = ScramClient("alice", "x", SCRAM_SHA_256)
    client.process_server_first_message(exchange.evaluate(client.first_message()))
    right = client.final_message().decode()
    without_proof, _, proof = right.rpartition(",p=")
    channel, nonce = without_proof.split(",")
    final = {
        "nonce": f"{channel},{nonce[:-1]}!,p={proof}",
        "short nonce": f"{channel},{nonce[:12]},p={proof}",
        "proof": f"{without_proof},p={base64.b64encode(bytes(32)).decode()}",
        "short proof": f"{without_proof},p=AAAA",
        "no proof": without_proof,
        "not base64": f"{without_proof},p=!!!",
        "empty": "",
    }[change]
    with pytest.raises(AuthenticationFailed):
        exchange.evaluate(final.encode())
    assert not exchange.is_complete


def test_the_doubled_nonce_of_an_old_librdkafka_is_accepted_if_the_servers_is_in_it() -> None:
    credential = new_credential("alice", SCRAM_SHA_256, "x")
    for is_ours in (True, False):
        exchange = ScramExchange(SCRAM_SHA_256, users(credential).find(SCRAM_SHA_256))
        tokens = ScramTokens(SCRAM_SHA_256, "alice", "x")
        first = exchange.evaluate(tokens.first)
        nonce = first.decode().split(",")[0].removeprefix("r=")
        if is_ours:
            exchange.evaluate(tokens.final(first, nonce=CLIENT_NONCE + nonce))
            assert exchange.is_complete
        else:
            with pytest.raises(AuthenticationFailed):
                exchange.evaluate(tokens.final(first, nonce=CLIENT_NONCE + CLIENT_NONCE))


def test_an_authorization_id_must_be_the_name() -> None:
    """CVE-2017-12610."""
    found = users(new_credential("alice", SCRAM_SHA_256, "x"))
    exchange = ScramExchange(SCRAM_SHA_256, found.find(SCRAM_SHA_256))
    assert exchange.evaluate(b"n,a=alice,n=alice,r=abc").startswith(b"r=abc")
    other = ScramExchange(SCRAM_SHA_256, found.find(SCRAM_SHA_256))
    with pytest.raises(AuthenticationFailed, match="different from username"):
        other.evaluate(b"n,a=bob,n=alice,r=abc")


def test_a_credential_is_read_back_from_kafkas_text_and_shows_no_key() -> None:
    credential = new_credential("alice", SCRAM_SHA_512, "x")
    text = credential_text(credential)
    assert parse_credential("alice", SCRAM_SHA_512, text) == credential
    for shown in (repr(credential), f"{credential}"):
        assert shown == "ScramCredential('alice', 'SCRAM-SHA-512')"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "salt=,stored_key=,server_key=,iterations=4096",
        "salt=AA==,stored_key=AA==,server_key=AA==,iterations=1",
    ],
)
def test_a_text_that_is_no_credential_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(CorruptFile) as refused:
        parse_credential("alice", SCRAM_SHA_256, text)
    assert "stored_key" not in str(refused.value)


# Delegation tokens

SECRET = "of the cluster"
TOKEN = DelegationToken("id", "User:alice", "User:carol", (), 0, 5_000, 2_000)


def token_exchange(mechanism: str, *tokens: DelegationToken, now_ms: int = 1_000) -> ScramExchange:
    credentials = TokenCredentials(SECRET, lambda: tokens, ManualClock(now_ms))
    return ScramExchange(
        mechanism, users().find(mechanism), lambda token_id: credentials.find(mechanism, token_id)
    )


def log_in(
    exchange: ScramExchange, mechanism: str, *, password: str, extensions: str = "tokenauth=true"
) -> None:
    client = ScramTokens(mechanism, TOKEN.token_id, password, extensions=extensions)
    exchange.evaluate(client.final(exchange.evaluate(client.first)))


@pytest.mark.parametrize("mechanism", BOTH)
def test_the_holder_of_a_token_is_its_owner_until_the_token_ends(mechanism: str) -> None:
    exchange = token_exchange(mechanism, TOKEN)
    log_in(exchange, mechanism, password=password_of(SECRET, "id"))
    assert (exchange.is_complete, exchange.principal) == (True, "User:alice")
    assert (exchange.expires_at_ms, exchange.by_token) == (2_000, True)


@pytest.mark.parametrize("mechanism", BOTH)
def test_a_token_that_is_gone_or_has_expired_and_a_wrong_password_fail_with_the_last_message(
    mechanism: str,
) -> None:
    right = password_of(SECRET, "id")
    for exchange, password, extensions in (
        (token_exchange(mechanism, TOKEN), "wrong", "tokenauth=true"),
        (token_exchange(mechanism, TOKEN), password_of("another secret", "id"), "tokenauth=true"),
        (token_exchange(mechanism, TOKEN), right, ""),
        (token_exchange(mechanism), right, "tokenauth=true"),
        (token_exchange(mechanism, TOKEN, now_ms=2_001), right, "tokenauth=true"),
        (ScramExchange(mechanism, users().find(mechanism)), right, "tokenauth=true"),
    ):
        client = ScramTokens(mechanism, "id", password, extensions=extensions)
        first = exchange.evaluate(client.first)
        with pytest.raises(AuthenticationFailed) as failed:
            exchange.evaluate(client.final(first))
        assert (failed.value.message, exchange.is_complete) == (None, False)


def test_a_user_does_not_log_in_by_the_name_of_a_token() -> None:
    named = new_credential("id", SCRAM_SHA_256, "x")
    exchange = ScramExchange(SCRAM_SHA_256, users(named).find(SCRAM_SHA_256), lambda _: None)
    with pytest.raises(AuthenticationFailed):
        log_in(exchange, SCRAM_SHA_256, password="x")


def test_a_credential_is_derived_once_and_forgotten_with_its_token() -> None:
    tokens: list[tuple[DelegationToken, ...]] = [(TOKEN,)]
    credentials = TokenCredentials(SECRET, lambda: tokens[0], ManualClock(1_000))
    first = credentials.find(SCRAM_SHA_256, "id")
    assert first == credentials.find(SCRAM_SHA_256, "id")
    tokens[0] = ()
    assert credentials.find(SCRAM_SHA_256, "id") is None
    tokens[0] = (TOKEN,)
    assert first != credentials.find(SCRAM_SHA_256, "id")
