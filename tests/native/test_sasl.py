"""SASL in the native client, without a socket: the conversation, the calls that wait for it, and brokers that lie."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from appliance.protocol.apis.sasl_handshake import SaslHandshakeResponse
from appliance.protocol.errors import ErrorCode
from appliance.protocol.sasl_client import OAuthBearerClient, SaslFault, ScramClient
from appliance.sasl.mechanism import AuthenticationFailed, Exchange
from appliance.sasl.plain import PlainExchange
from appliance.sasl.scram import ScramExchange, ScramUsers
from appliance.sasl.scram_credential import new_credential
from appliance_client.connection import Connection
from appliance_client.errors import AuthenticationError, OptionError, TimedOutError, TransportError
from appliance_client.options import ProducerOptions, options_of
from tests.native.scripted import ScriptedCluster

LOGIN: dict[str, Any] = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "SCRAM-SHA-256",
    "sasl.username": "alice",
    "sasl.password": "right",
}


def scram_server(mechanism: str = "SCRAM-SHA-256", user: str = "alice", password: str = "right") -> Exchange:
    credential = new_credential(user, mechanism, password)
    return ScramExchange(mechanism, ScramUsers(b"secret", lambda: (credential,)).find(mechanism))


class SecuredCluster(ScriptedCluster):
    """Its brokers want SASL first, each connection by an exchange of the appliance's."""

    def __init__(
        self,
        make: Callable[[], Exchange] = scram_server,
        *,
        lifetime_ms: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(options_of(ProducerOptions, LOGIN, options))
        self.make = make
        self.lifetime_ms = lifetime_ms
        self.exchanges: list[Exchange] = []

    def _sasl_handshake(self, _version: int, _request: Any) -> SaslHandshakeResponse:
        self.exchanges.append(self.make())
        return SaslHandshakeResponse(0, ("SCRAM-SHA-256",))

    def _sasl_authenticate(self, _version: int, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        exchange = self.exchanges[-1]
        try:
            token = exchange.evaluate(request.auth_bytes)
        except AuthenticationFailed:
            return SaslAuthenticateResponse(int(ErrorCode.SASL_AUTHENTICATION_FAILED), "invalid credentials")
        return SaslAuthenticateResponse(0, None, token, self.lifetime_ms if exchange.is_complete else 0)

    def metadata(self, seconds: float = 10.0) -> Any:
        return self.run(self.core.network.call(-1, ApiKey.METADATA, MetadataRequest(())), seconds)

    def names(self) -> list[str]:
        return [api.title for api, _, _ in self.asked]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("user", ["alice", "a,b=c", "Ünïcode"])
def test_a_client_authenticates_before_its_first_request(mechanism: str, user: str) -> None:
    cluster = SecuredCluster(
        lambda: scram_server(mechanism, user), sasl_mechanism=mechanism, sasl_username=user
    )
    assert cluster.metadata().brokers
    assert cluster.names()[:5] == [
        "ApiVersions",
        "SaslHandshake",
        "SaslAuthenticate",
        "SaslAuthenticate",
        "Metadata",
    ]
    assert cluster.exchanges[0].principal == f"User:{user}"


def test_plain_sends_user_and_password() -> None:
    cluster = SecuredCluster(
        lambda: PlainExchange(lambda: {"alice": "right"}), sasl_mechanism="plain", sasl_plain_password="right"
    )
    assert cluster.metadata().brokers
    assert cluster.exchanges[0].is_complete


def test_a_refused_login_is_an_error_at_once_and_is_tried_again_later() -> None:
    cluster = SecuredCluster(sasl_password="wrong")
    with pytest.raises(AuthenticationError, match="invalid credentials") as caught:
        cluster.metadata(seconds=0.01)
    assert (caught.value.retriable, caught.value.code) == (False, ErrorCode.SASL_AUTHENTICATION_FAILED)
    with pytest.raises(AuthenticationError, match="invalid credentials"):
        cluster.run(cluster.core.metadata.topic("topic", cluster.now_s + 60), seconds=5)
    cluster.make = lambda: scram_server(password="wrong")
    cluster.pass_s(1.5)
    assert cluster.run(cluster.core.metadata.topic("topic", cluster.now_s + 60), seconds=5).partitions


def test_a_record_is_not_acknowledged_by_a_broker_that_refuses() -> None:
    cluster = SecuredCluster(sasl_password="wrong", delivery_timeout_ms=3_000, linger_ms=0)
    future = cluster.send(b"x")
    cluster.pass_s(5)
    assert future.done()
    with pytest.raises((AuthenticationError, TimedOutError)):
        future.get(0)
    assert cluster.produced == []


def test_a_mechanism_that_the_broker_does_not_take_is_named_with_those_that_it_takes() -> None:
    cluster = SecuredCluster()
    cluster.scripts[ApiKey.SASL_HANDSHAKE] = deque(
        [SaslHandshakeResponse(int(ErrorCode.UNSUPPORTED_SASL_MECHANISM), ("PLAIN", "GSSAPI"))]
    )
    with pytest.raises(AuthenticationError, match="SCRAM-SHA-256; it takes PLAIN, GSSAPI"):
        cluster.metadata(seconds=0.01)


def test_a_broker_that_does_not_know_the_password_is_not_trusted() -> None:
    class Impostor(ScramExchange):
        def evaluate(self, token: bytes) -> bytes:
            reply = super().evaluate(token)
            return b"v=" + base64.b64encode(bytes(32)) if reply.startswith(b"v=") else reply

    credential = new_credential("alice", "SCRAM-SHA-256", "right")
    cluster = SecuredCluster(lambda: Impostor("SCRAM-SHA-256", lambda _: credential))
    with pytest.raises(AuthenticationError, match="does not know the password"):
        cluster.metadata(seconds=0.01)
    assert "Metadata" not in cluster.names()


SALT = base64.b64encode(b"salt").decode()


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ("r={nonce}x,s=" + SALT + ",i=4095", "4095 SCRAM iterations"),
        ("r={nonce}x,s=" + SALT + ",i=2000000000", "2000000000 SCRAM iterations"),
        ("r={nonce}x,s=" + SALT + ",i=many", "no salt or no number"),
        ("r={nonce}x,s=,i=4096", "SCRAM iterations"),
        ("r={nonce}x,s=%,i=4096", "no salt"),
        ("r={nonce},s=" + SALT + ",i=4096", "another nonce"),
        ("r=other,s=" + SALT + ",i=4096", "another nonce"),
        ("e=unknown-user", "another nonce"),
        ("", "another nonce"),
    ],
)
def test_a_first_message_that_no_honest_broker_sends_is_refused(message: str, why: str) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "right")
    nonce = client.first().decode().partition("r=")[2]
    with pytest.raises(SaslFault, match=why):
        client.answer(message.format(nonce=nonce).encode())


@pytest.mark.parametrize("last", [b"", b"v=", b"v=AAAA", b"e=other-error", b"\xff", b"v=%%%"])
def test_a_last_message_without_the_brokers_proof_is_refused(last: bytes) -> None:
    client = ScramClient("SCRAM-SHA-256", "alice", "right")
    client.answer(scram_server().evaluate(client.first()))
    with pytest.raises(SaslFault):
        client.answer(last)


def test_the_token_of_a_provider_is_sent_and_a_refusal_is_told() -> None:
    client = OAuthBearerClient("abc")
    assert client.first() == b"n,,\x01auth=Bearer abc\x01\x01"
    assert client.answer(b"") is None
    client = OAuthBearerClient("abc")
    assert client.answer(b'{"status":"invalid_token"}') == b"\x01"
    with pytest.raises(SaslFault, match="invalid_token"):
        client.answer(b"")


class Bearer(Exchange):
    """Takes one token."""

    def evaluate(self, token: bytes) -> bytes:
        if token == b"n,,\x01auth=Bearer good\x01\x01":
            self.is_complete = True
            return b""
        raise AuthenticationFailed


def with_tokens(provider: Any) -> SecuredCluster:
    options = {"security_protocol": "sasl_ssl", "sasl_mechanism": "OAUTHBEARER"}
    cluster = SecuredCluster.__new__(SecuredCluster)
    ScriptedCluster.__init__(
        cluster, options_of(ProducerOptions, None, {**options, "sasl_oauth_token_provider": provider})
    )
    cluster.make, cluster.lifetime_ms, cluster.exchanges = Bearer, 0, []
    return cluster


class Provider:
    def token(self) -> str:
        return "good"


@pytest.mark.parametrize("provider", [lambda: "good", lambda: ("good", 12.0), Provider()])
def test_a_provider_is_a_callable_or_has_one(provider: Any) -> None:
    assert with_tokens(provider).metadata().brokers


def failing() -> str:
    raise OSError("no identity provider")


@pytest.mark.parametrize(
    ("provider", "why"),
    [
        (lambda: "bad", "invalid credentials"),
        (lambda: None, "did not return a token"),
        (lambda: "", "did not return a token"),
        (lambda: "a\x01b", "did not return a token"),
        (failing, "no identity provider"),
    ],
)
def test_a_provider_that_fails_is_an_error_of_the_authentication(provider: Any, why: str) -> None:
    with pytest.raises(AuthenticationError, match=why):
        with_tokens(provider).metadata(seconds=0.01)


def test_a_client_authenticates_again_before_its_session_ends_and_calls_wait_meanwhile() -> None:
    cluster = SecuredCluster(lifetime_ms=10_000)
    cluster.metadata(seconds=1)
    cluster.pass_s(7.4)
    assert cluster.names().count("SaslHandshake") == 1
    cluster.pass_s(2.2)
    assert cluster.names().count("SaslHandshake") == 2
    assert cluster.exchanges[1].is_complete
    assert cluster.metadata(seconds=1).brokers
    # The same connection goes on.
    assert cluster.names().count("ApiVersions") == 1


def test_calls_behind_a_new_authentication_wait_for_its_end() -> None:
    cluster = SecuredCluster(lifetime_ms=10_000)
    cluster.metadata(seconds=1)
    held = connection = cluster.core.network.connection(-1)
    serve = cluster._serve
    cluster._serve = (  # type: ignore[method-assign]
        lambda connection: None if connection is held else serve(connection)
    )
    cluster.pass_s(9.6)
    assert connection.state == Connection.AUTHENTICATING
    waiting = cluster.core.network.call(-1, ApiKey.METADATA, MetadataRequest(()))
    task = cluster.core.scheduler.spawn(waiting)
    cluster.pass_s(0.1)
    assert sum(map(len, connection.outgoing)) < 100, "a request went out beside the authentication"
    cluster._serve = serve  # type: ignore[method-assign]
    cluster.core.network.dirty[connection] = None
    cluster.pass_s(0.1)
    assert task.result().brokers


def test_a_refused_second_authentication_closes_the_connection() -> None:
    cluster = SecuredCluster(lifetime_ms=10_000)
    cluster.metadata(seconds=1)
    cluster.make = lambda: scram_server(password="another")
    cluster.pass_s(9.6)
    with pytest.raises(AuthenticationError):
        cluster.metadata(seconds=0.5)


def test_an_authentication_that_does_not_end_is_given_up() -> None:
    cluster = with_tokens(lambda: "good")
    cluster.core.network.run_aside = lambda _work, _outcome: None
    with pytest.raises(TransportError, match="not finished in time"):
        cluster.metadata(seconds=31)


def test_a_broker_without_sasl_is_refused() -> None:
    cluster = SecuredCluster()
    cluster.core.network.connection(-1).open()
    answer = cluster._api_versions(4, None)
    rows = tuple(row for row in answer.api_keys if row.api_key not in {17, 36})
    cluster.scripts[ApiKey.API_VERSIONS] = deque([type(answer)(api_keys=rows)])
    with pytest.raises(AuthenticationError, match="SaslHandshake"):
        cluster.metadata(seconds=0.01)


@pytest.mark.parametrize(
    "options",
    [
        {"security.protocol": "SASL_PLAINTEXT"},
        {**LOGIN, "sasl.mechanism": "GSSAPI"},
        {**LOGIN, "sasl.username": ""},
        {**LOGIN, "sasl.password": "a\0b"},
        {**LOGIN, "security.protocol": "PLAINTEXT"},
        {**LOGIN, "security.protocol": "SSL"},
        {**LOGIN, "sasl.mechanism": "PLAIN", "sasl.token.auth": True},
        {**LOGIN, "sasl.mechanism": "OAUTHBEARER"},
        {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"},
        {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauth.token.provider": 5,
        },
        {**LOGIN, "sasl.oauth.token.provider": lambda: "x"},
        {**LOGIN, "bootstrap.servers": "zmq+tcp://localhost:5"},
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        options_of(ProducerOptions, options, {})


def test_no_text_of_the_options_shows_the_password() -> None:
    options = options_of(ProducerOptions, LOGIN, {})
    assert "right" not in repr(options) + repr(options.login) + str(options.login)
