"""The same users, the same bytes: the appliance answers a SASL handshake as Apache Kafka does, good or bad.

One known difference, which `docs/access.md` names: the appliance does not show at the first message of SCRAM that a
user does not exist.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

import appliance_client
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from appliance.protocol.apis.api_versions import ApiVersionsRequest
from appliance.protocol.apis.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.sasl_authenticate import SaslAuthenticateRequest
from appliance.protocol.apis.sasl_handshake import SaslHandshakeRequest
from appliance.sasl.scram_credential import salted_password
from appliance_client.errors import AuthenticationError
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import Appliance
from tests.support.native_play import counted, play, play_async
from tests.support.sasl_wire import (
    CLOSED,
    ScramTokens,
    answer,
    asked,
    authenticate,
    handshake,
    log_in,
    raw_answer,
)
from tests.support.wire import WireSocket, free_ports

MECHANISMS: Final = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
SCRAMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
LIFETIME_MS: Final = 2000
_LOGIN: Final = "org.apache.kafka.common.security"

Conversation = Callable[[WireSocket], list[Any]]


class Judge(ApacheKafka):
    """Apache Kafka with a listener for SASL besides."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self.sasl_port = free_ports()

    def _own_settings(self) -> dict[str, object]:
        own = super()._own_settings()
        listener = f"SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}"
        prefix = "listener.name.sasl_plaintext"
        plain = (
            f'{_LOGIN}.plain.PlainLoginModule required username="admin" password="admin-secret" '
            'user_alice="alice-secret" user_bob="pässword";'
        )
        scram = f"{_LOGIN}.scram.ScramLoginModule required;"
        return own | {
            "listeners": f"{own['listeners']},{listener}",
            "advertised.listeners": f"{own['advertised.listeners']},{listener}",
            "listener.security.protocol.map": f"{own['listener.security.protocol.map']},SASL_PLAINTEXT:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": MECHANISMS,
            f"{prefix}.plain.sasl.jaas.config": plain.replace("ä", "\\u00e4"),
            f"{prefix}.scram-sha-256.sasl.jaas.config": scram,
            f"{prefix}.scram-sha-512.sasl.jaas.config": scram,
            "connections.max.reauth.ms": LIFETIME_MS,
        }


class Pair:
    """Both brokers, with the same users."""

    def __init__(self, directory: Path) -> None:
        users = directory / "users.toml"
        users.write_text('"alice" = "alice-secret"\n"bob" = "pässword"\n')
        users.chmod(0o600)
        port = free_ports(2)
        self.ours_port = port + 1
        self.ours = Appliance(
            directory / "ours",
            port=port,
            settings={
                "listeners": [
                    f"PLAINTEXT://127.0.0.1:{port}",
                    f"SASL_PLAINTEXT://127.0.0.1:{self.ours_port}",
                ],
                "sasl.enabled.mechanisms": MECHANISMS,
                "sasl.plain.users.file": str(users),
                "connections.max.reauth.ms": LIFETIME_MS,
            },
        )
        self.judge = Judge(directory / "kafka")
        self._sources = count(1)

    def start(self) -> None:
        self.ours.start()
        self.judge.start()
        for number, mechanism in SCRAMS.items():
            salt = b"a salt of some length"
            upserted = ScramCredentialUpsertion(
                "carol", number, 4096, salt, salted_password(mechanism, "carol-secret", salt, 4096)
            )
            for told in self.both(upserting(upserted), plain=True):
                assert told == [[("carol", 0, None)]]

    def both(self, conversation: Conversation, *, plain: bool = False) -> tuple[list[Any], list[Any]]:
        """What ours and the judge do in a conversation, which both have at the same time.

        Each conversation comes from an address of its own, because failures from one address make it wait.
        """
        ports = (self.ours.port, self.judge.port) if plain else (self.ours_port, self.judge.sasl_port)
        source = f"127.0.1.{next(self._sources)}"

        def talk(port: int) -> list[Any]:
            with WireSocket(port, source=source) as connection:
                return conversation(connection)

        with ThreadPoolExecutor(len(ports)) as pool:
            ours, judge = pool.map(talk, ports)
        return ours, judge

    def stop(self) -> None:
        self.ours.stop()
        self.judge.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("sasl-judge"))
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()


def alter(
    connection: WireSocket,
    *,
    deleted: list[ScramCredentialDeletion] | None = None,
    upserted: list[ScramCredentialUpsertion] | None = None,
) -> list[tuple[str, int, str | None]]:
    body = AlterUserScramCredentialsRequest(tuple(deleted or ()), tuple(upserted or ()))
    response = asked(connection, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, body)
    return sorted((each.user, each.error_code, each.error_message) for each in response.results)


def upserting(*upserted: ScramCredentialUpsertion) -> Conversation:
    return lambda connection: [alter(connection, upserted=list(upserted))]


def describe(connection: WireSocket, *names: str) -> list[Any]:
    users = tuple(map(UserName, names)) or None
    body = DescribeUserScramCredentialsRequest(users)
    response = asked(connection, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, body)
    told = sorted(
        (
            each.user,
            each.error_code,
            each.error_message,
            sorted((info.mechanism, info.iterations) for info in each.credential_infos),
        )
        for each in response.results
    )
    return [response.error_code, response.error_message, told]


def versions(connection: WireSocket, version: int = 0, software: str = "wire") -> Any:
    """Ask for versions; the error, or CLOSED."""
    body = ApiVersionsRequest(client_software_name=software, client_software_version="1")
    told = asked(connection, ApiKey.API_VERSIONS, version, body)
    return told if told == CLOSED else told.error_code


def works(connection: WireSocket) -> Any:
    """Whether a request behind the authentication is answered."""
    told = asked(connection, ApiKey.METADATA, 1, MetadataRequest(topics=()))
    return told if told == CLOSED else "answered"


def shown(response: Any) -> Any:
    """A response without what each broker chooses freely: nonces, and the signatures over them."""
    if response == CLOSED:
        return CLOSED
    token: bytes = response.auth_bytes
    if token.startswith(b"r="):
        nonce, salt, iterations = token.split(b",")
        assert len(nonce) > 40
        return replace(response, auth_bytes=b"r=*," + salt + b"," + iterations)
    if token.startswith(b"v="):
        return replace(response, auth_bytes=b"v=*")
    return response


def plain(token: bytes, *, version: int = 2) -> Conversation:
    def talk(connection: WireSocket) -> list[Any]:
        told = [handshake(connection, "PLAIN"), shown(authenticate(connection, token, version))]
        return [*told, works(connection)]

    return talk


def scram(mechanism: str, user: str, password: str, *, nonce: str | None = None) -> Conversation:
    def talk(connection: WireSocket) -> list[Any]:
        tokens = ScramTokens(mechanism, user, password)
        told = [handshake(connection, mechanism)]
        first = authenticate(connection, tokens.first, 1)
        told.append(shown(first))
        if not first.error_code:
            told.append(shown(authenticate(connection, tokens.final(first.auth_bytes, nonce=nonce), 1)))
        return [*told, works(connection)]

    return talk


def scram_first(token: bytes) -> Conversation:
    def talk(connection: WireSocket) -> list[Any]:
        told = [handshake(connection, "SCRAM-SHA-256"), shown(authenticate(connection, token, 1))]
        return [*told, works(connection)]

    return talk


def bare_plain(connection: WireSocket) -> list[Any]:
    """Tokens without headers, as before KIP-152."""
    told: list[Any] = [handshake(connection, "PLAIN", 0)]
    connection.send_frame(b"\0alice\0alice-secret")
    return [*told, raw_answer(connection), works(connection)]


def bare_plain_wrong(connection: WireSocket) -> list[Any]:
    told: list[Any] = [handshake(connection, "PLAIN", 0)]
    connection.send_frame(b"\0alice\0wrong")
    return [*told, raw_answer(connection)]


def bare_scram(connection: WireSocket) -> list[Any]:
    tokens = ScramTokens("SCRAM-SHA-512", "carol", "carol-secret")
    told: list[Any] = [handshake(connection, "SCRAM-SHA-512", 0)]
    connection.send_frame(tokens.first)
    first = raw_answer(connection)
    assert isinstance(first, bytes)
    connection.send_frame(tokens.final(first))
    final = raw_answer(connection)
    assert isinstance(final, bytes)
    return [*told, final[:2], works(connection)]


def versions_then_log_in(connection: WireSocket) -> list[Any]:
    told: list[Any] = [versions(connection, version) for version in (4,)]
    return [*told, shown(log_in(connection, "PLAIN", "alice", "alice-secret")), works(connection)]


def raw(data: bytes) -> Conversation:
    def talk(connection: WireSocket) -> list[Any]:
        connection.send(data)
        return [raw_answer(connection)]

    return talk


def request_in(state: str, api: ApiKey, version: int, body: Any) -> Conversation:
    """A request where it does not belong."""

    def talk(connection: WireSocket) -> list[Any]:
        if state != "first":
            assert not versions(connection)
        if state in {"authenticate", "tokens"}:
            assert not handshake(connection, "PLAIN", int(state == "authenticate")).error_code
        told = asked(connection, api, version, body)
        return [told if told == CLOSED else told.error_code, raw_answer(connection)]

    return talk


CONVERSATIONS: Final[dict[str, Conversation]] = {
    "PLAIN": plain(b"\0alice\0alice-secret"),
    "PLAIN v0": plain(b"\0alice\0alice-secret", version=0),
    "PLAIN v1": plain(b"\0alice\0alice-secret", version=1),
    "PLAIN with an authorization id": plain(b"alice\0alice\0alice-secret"),
    "PLAIN in UTF-8": plain("\0bob\0pässword".encode()),
    "PLAIN, wrong password": plain(b"\0alice\0wrong"),
    "PLAIN, unknown user": plain(b"\0nobody\0wrong"),
    "PLAIN, other authorization id": plain(b"bob\0alice\0alice-secret"),
    "PLAIN, other authorization id and wrong password": plain(b"bob\0alice\0wrong"),
    "PLAIN, no name": plain(b"\0\0alice-secret"),
    "PLAIN, no password": plain(b"\0alice\0"),
    "PLAIN, empty token": plain(b""),
    "PLAIN, one part": plain(b"alice"),
    "PLAIN, two parts": plain(b"alice\0alice-secret"),
    "PLAIN, four parts": plain(b"\0alice\0alice-secret\0"),
    "PLAIN, many parts": plain(b"\0" * 100),
    "PLAIN, no UTF-8": plain(b"\0\xff\xfe\0\xff"),
    "PLAIN, bare tokens": bare_plain,
    "PLAIN, bare tokens, wrong password": bare_plain_wrong,
    "SCRAM, bare tokens": bare_scram,
    "SCRAM-SHA-256": scram("SCRAM-SHA-256", "carol", "carol-secret"),
    "SCRAM-SHA-512": scram("SCRAM-SHA-512", "carol", "carol-secret"),
    "SCRAM-SHA-256, wrong password": scram("SCRAM-SHA-256", "carol", "wrong"),
    "SCRAM-SHA-512, wrong password": scram("SCRAM-SHA-512", "carol", "wrong"),
    "SCRAM, other nonce": scram("SCRAM-SHA-256", "carol", "carol-secret", nonce="abc"),
    "SCRAM, a final message first": scram_first(b"c=biws,r=abc,p=AAAA"),
    "SCRAM, an empty first message": scram_first(b""),
    "SCRAM, channel binding": scram_first(b"p=tls-unique,,n=carol,r=abc"),
    "SCRAM, a wrong escape": scram_first(b"n,,n=car=ol,r=abc"),
    "SCRAM, no nonce": scram_first(b"n,,n=carol,r="),
    "SCRAM, other authorization id": scram_first(b"n,a=alice,n=carol,r=abc"),
    "ApiVersions before it": versions_then_log_in,
    "ApiVersions of an unknown version, then a known one": lambda connection: [
        versions_of_unknown(connection),
        versions(connection),
        shown(log_in(connection, "PLAIN", "alice", "alice-secret")),
    ],
    "ApiVersions with a bad name, then a good one": lambda connection: [
        versions(connection, 3, "-"),
        versions(connection, 3),
        works(connection),
    ],
    "ApiVersions twice": lambda connection: [versions(connection), versions(connection)],
    "ApiVersions after the handshake": request_in(
        "authenticate", ApiKey.API_VERSIONS, 2, ApiVersionsRequest()
    ),
    "SaslHandshake after the handshake": request_in(
        "authenticate", ApiKey.SASL_HANDSHAKE, 1, SaslHandshakeRequest("PLAIN")
    ),
    "Metadata first": request_in("first", ApiKey.METADATA, 1, MetadataRequest(topics=())),
    "Metadata after ApiVersions": request_in("versions", ApiKey.METADATA, 1, MetadataRequest(topics=())),
    "SaslAuthenticate first": request_in(
        "first", ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(b"\0alice\0alice-secret")
    ),
    "SaslAuthenticate where a bare token belongs": request_in(
        "tokens", ApiKey.SASL_AUTHENTICATE, 1, SaslAuthenticateRequest(b"\0alice\0alice-secret")
    ),
    "an unknown mechanism": lambda connection: [handshake(connection, "GSSAPI"), raw_answer(connection)],
    "an unknown mechanism, v0": lambda connection: [
        handshake(connection, "GSSAPI", 0),
        raw_answer(connection),
    ],
    "an empty mechanism": lambda connection: [handshake(connection, ""), raw_answer(connection)],
    "a mechanism in lower case": lambda connection: [handshake(connection, "plain"), raw_answer(connection)],
    "handshake after the authentication": lambda connection: [
        shown(log_in(connection, "PLAIN", "alice", "alice-secret")),
        authenticate(connection, b"\0alice\0alice-secret"),
        works(connection),
    ],
    "zeros": raw(bytes(64)),
    "a frame of one byte": raw(b"\0\0\0\1x"),
    "a negative size": raw(b"\xff\xff\xff\xff"),
    "a huge size": raw(b"\x7f\xff\xff\xff"),
    "a size above the limit": raw((524_289).to_bytes(4, "big")),
    "HTTP": raw(b"GET / HTTP/1.1\r\n\r\n"),
    "TLS": raw(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    "an unknown API": raw(b"\0\0\0\x0a\x7f\xff\0\0\0\0\0\x07\xff\xff"),
}


def versions_of_unknown(connection: WireSocket) -> Any:
    connection.send(b"\0\0\0\x0b\0\x12\x00\x63\0\0\0\x07\xff\xff\0")
    told = answer(connection, ApiKey.API_VERSIONS, 0)
    return told if told == CLOSED else told.error_code


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS.keys())
def test_a_conversation_goes_as_with_kafka(pair: Pair, conversation: Conversation) -> None:
    ours, judge = pair.both(conversation)
    assert ours == judge


def test_an_unknown_user_of_scram_fails_one_message_later_with_the_same_words(pair: Pair) -> None:
    """Kafka's answer to the first message shows that the user does not exist."""
    ours, judge = pair.both(scram("SCRAM-SHA-256", "nobody", "wrong"))
    assert ours[0] == judge[0]
    assert ours[1].error_code == 0
    assert ours[2:] == judge[1:]


def again(mechanism: str, user: str, password: str, *, pause_s: float = 0) -> Conversation:
    """Authenticate, and again on the open connection."""

    def talk(connection: WireSocket) -> list[Any]:
        told = [shown(log_in(connection, "PLAIN", "alice", "alice-secret")), works(connection)]
        time.sleep(pause_s)
        shaken = handshake(connection, mechanism)
        told.append(shaken)
        if shaken != CLOSED and not shaken.error_code:
            if mechanism == "PLAIN":
                told.append(shown(authenticate(connection, f"\0{user}\0{password}".encode())))
            else:
                told.append(shown(authenticate(connection, ScramTokens(mechanism, user, password).first)))
        return [*told, works(connection)]

    return talk


def twice_within_a_second(connection: WireSocket) -> list[Any]:
    told = [shown(log_in(connection, "PLAIN", "alice", "alice-secret"))]
    for _ in range(2):
        shaken = handshake(connection, "PLAIN")
        told.append(shaken)
        if not shaken.error_code:
            told.append(shown(authenticate(connection, b"\0alice\0alice-secret")))
    return [*told, works(connection)]


def other_request_in_between(connection: WireSocket) -> list[Any]:
    log_in(connection, "PLAIN", "alice", "alice-secret")
    return [handshake(connection, "PLAIN"), versions(connection)]


def after_the_end(version: int) -> Conversation:
    """A request when the session is over."""

    def talk(connection: WireSocket) -> list[Any]:
        told = shown(log_in(connection, "PLAIN", "alice", "alice-secret", version=version))
        time.sleep(LIFETIME_MS / 1000 + 0.3)
        return [told, works(connection)]

    return talk


AGAIN: Final[dict[str, Conversation]] = {
    "the same": again("PLAIN", "alice", "alice-secret"),
    "the same, after the end": again("PLAIN", "alice", "alice-secret", pause_s=LIFETIME_MS / 1000 + 0.3),
    "wrong password": again("PLAIN", "alice", "wrong"),
    "another user": again("PLAIN", "bob", "pässword"),
    "another mechanism": again("SCRAM-SHA-256", "carol", "carol-secret"),
    "unknown mechanism": again("GSSAPI", "", ""),
    "twice within a second": twice_within_a_second,
    "another request in between": other_request_in_between,
    "a request after the end": after_the_end(2),
    "a request after the end, of an old client": after_the_end(0),
}


@pytest.mark.parametrize("conversation", AGAIN.values(), ids=AGAIN.keys())
def test_an_authentication_on_an_open_connection_goes_as_with_kafka(
    pair: Pair, conversation: Conversation
) -> None:
    ours, judge = pair.both(conversation)
    assert ours == judge


@pytest.mark.parametrize("side", ["ours", "kafka"])
def test_the_native_client_stays_connected_by_authenticating_again(pair: Pair, side: str) -> None:
    port = pair.ours_port if side == "ours" else pair.judge.sasl_port
    values = [b"%d" % number for number in range(200)]
    options = {
        "bootstrap_servers": f"127.0.0.1:{port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "carol",
        "sasl_password": "carol-secret",
    }
    with counted() as counts:
        assert play(options, f"native-{side}", values, pause_s=LIFETIME_MS / 1000 + 0.5) == values
    assert counts.authenticated > counts.opened
    assert counts.lost == 0
    options |= {"sasl_mechanism": "PLAIN", "sasl_username": "bob", "sasl_password": "pässword"}
    assert play_async(options, f"native-{side}-plain", values) == values
    options["sasl_password"] = "wrong"
    with (
        appliance_client.Producer(**options) as producer,
        pytest.raises(AuthenticationError, match="Invalid username or password"),
    ):
        producer.send(f"native-{side}", b"x")


def test_a_listener_without_sasl_answers_as_kafkas(pair: Pair) -> None:
    for conversation in (
        lambda connection: [handshake(connection, "PLAIN"), works(connection)],
        lambda connection: [authenticate(connection, b"x"), works(connection)],
    ):
        ours, judge = pair.both(conversation, plain=True)
        assert ours == judge


ODD: Final = ("a b", "ü/ö", ".", "<default>", "%41")


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(name, mechanism, iterations, b"salt", bytes(range(32)))


def deletion(name: str, mechanism: int = 1) -> ScramCredentialDeletion:
    return ScramCredentialDeletion(name, mechanism)


def test_credentials_are_changed_and_described_as_with_kafka(pair: Pair) -> None:
    steps: dict[str, Conversation] = {
        "made": lambda c: [alter(c, upserted=[upsertion("u1"), upsertion("u2", 2, 16_384)])],
        "made again": lambda c: [alter(c, upserted=[upsertion("u1", 1, 8192), upsertion("u2")])],
        "all": describe,
        "some": lambda c: describe(c, "u1", "u2"),
        "nobody": lambda c: describe(c, "nobody", "u1"),
        "one twice": lambda c: describe(c, "u1", "u1", "u2"),
        "an empty name": lambda c: describe(c, ""),
        "too few": lambda c: [alter(c, upserted=[upsertion("u3", 1, 4095), upsertion("u4", 2, 4095)])],
        "too many": lambda c: [alter(c, upserted=[upsertion("u3", 1, 16_385)])],
        "no mechanism": lambda c: [alter(c, upserted=[upsertion("u3", 0), upsertion("u4", 3)])],
        "no name": lambda c: [alter(c, upserted=[upsertion("")])],
        "no such credential": lambda c: [alter(c, deleted=[deletion("nobody"), deletion("u1", 2)])],
        "delete no mechanism": lambda c: [alter(c, deleted=[deletion("u1", 9)])],
        "delete no name": lambda c: [alter(c, deleted=[deletion("")])],
        "twice": lambda c: [alter(c, upserted=[upsertion("u5"), upsertion("u5", 2), upsertion("u6")])],
        "deleted and made": lambda c: [alter(c, deleted=[deletion("u1")], upserted=[upsertion("u1")])],
        "deleted twice": lambda c: [alter(c, deleted=[deletion("u2"), deletion("u2", 2)])],
        "good and bad": lambda c: [alter(c, deleted=[deletion("nobody")], upserted=[upsertion("u7")])],
        "nothing": lambda c: [alter(c)],
        "then": describe,
        "deleted": lambda c: [alter(c, deleted=[deletion("u1"), deletion("u2", 2)])],
        "at last": describe,
        "odd names": lambda c: [alter(c, upserted=[upsertion(name) for name in ODD])],
        "odd names described": describe,
    }
    told = {name: pair.both(step, plain=True) for name, step in steps.items()}
    assert {name: ours for name, (ours, _) in told.items()} == {
        name: judge for name, (_, judge) in told.items()
    }
