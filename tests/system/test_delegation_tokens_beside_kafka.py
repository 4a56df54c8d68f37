"""Delegation tokens (KIP-48): the appliance and Apache Kafka 4.3.1 give the same answers to the same requests.

Both have the same users, ACLs, secret and times. What each broker chooses freely (ids, times, passwords) is compared
by what follows from it.
"""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialUpsertion,
)
from appliance.protocol.apis.create_acls import AclCreation, CreateAclsRequest
from appliance.protocol.apis.create_delegation_token import CreatableRenewers, CreateDelegationTokenRequest
from appliance.protocol.apis.describe_delegation_token import (
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
)
from appliance.protocol.apis.expire_delegation_token import ExpireDelegationTokenRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.renew_delegation_token import RenewDelegationTokenRequest
from appliance.protocol.errors import ErrorCode
from appliance.sasl.scram_credential import salted_password
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import Appliance
from tests.support.native_play import play
from tests.support.sasl_wire import CLOSED, ScramTokens, asked, authenticate, handshake, log_in
from tests.support.wire import WireSocket, free_ports

SECRET: Final = "a secret of the cluster"
MAX_MS: Final = 3_600_000
RENEWAL_MS: Final = 600_000
SWEEP_MS: Final = 500
SHA: Final = "SCRAM-SHA-512"
USERS: Final = ("admin", "alice", "bob", "carol", "dora")
AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SUPER: Final = "User:admin;User:ANONYMOUS"
_LOGIN: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_SLACK_MS: Final = 30_000

TOKENS: Final = {
    "delegation.token.max.lifetime.ms": MAX_MS,
    "delegation.token.expiry.time.ms": RENEWAL_MS,
    "delegation.token.expiry.check.interval.ms": SWEEP_MS,
    "connection.failed.authentication.delay.ms": 1,
    "authorizer.class.name": AUTHORIZER,
    "super.users": SUPER,
}


class Judge(ApacheKafka):
    """Apache Kafka with a listener for SASL besides."""

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir, settings={**TOKENS, "delegation.token.secret.key": SECRET})
        self.sasl_port = free_ports()

    def _own_settings(self) -> dict[str, object]:
        own = super()._own_settings()
        listener = f"SASL_PLAINTEXT://127.0.0.1:{self.sasl_port}"
        return own | {
            "listeners": f"{own['listeners']},{listener}",
            "advertised.listeners": f"{own['advertised.listeners']},{listener}",
            "listener.security.protocol.map": (
                f"{own['listener.security.protocol.map']},SASL_PLAINTEXT:SASL_PLAINTEXT"
            ),
            "sasl.enabled.mechanisms": SHA,
            "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": _LOGIN,
        }


class Side:
    """One of the two brokers, and the tokens that were made there, by a name of the test."""

    def __init__(self, plain_port: int, sasl_port: int, *, is_late: bool) -> None:
        self.is_late = is_late
        self.plain_port = plain_port
        self.sasl_port = sasl_port
        self.tokens: dict[str, Any] = {}

    def ask(self, user: str, api: ApiKey, body: Any, version: int | None = None) -> Any:
        """Ask as a user; `plain` is the listener without authentication, and `token NAME` a login with a token."""
        with WireSocket(self.plain_port if user == "plain" else self.sasl_port) as connection:
            if user.startswith("token "):
                assert not self.log_in_with(connection, user.removeprefix("token ")).error_code
            elif user != "plain":
                assert not log_in(connection, SHA, user, f"{user}-secret").error_code
            return asked(connection, api, api.max_version if version is None else version, body)

    def log_in_with(self, connection: WireSocket, name: str, *, password: bytes | None = None) -> Any:
        """Log in with a token; return the last response."""
        token = self.tokens[name]
        secret = base64.b64encode(token.hmac if password is None else password).decode()
        return log_in(connection, SHA, token.token_id, secret, extensions="tokenauth=true")

    def create(
        self,
        user: str,
        name: str = "",
        *,
        owner: str | None = None,
        renewers: tuple[str, ...] = (),
        lifetime_ms: int = -1,
        version: int = 3,
        kind: str = "User",
        owner_kind: str = "User",
    ) -> list[Any]:
        """Create a token, kept under a name; what both brokers should say alike."""
        before_ms = time.time_ns() // 1_000_000
        body = CreateDelegationTokenRequest(
            tuple(CreatableRenewers(kind, each) for each in renewers),
            lifetime_ms,
            None if owner is None else owner_kind,
            owner,
        )
        told = self.ask(user, ApiKey.CREATE_DELEGATION_TOKEN, body, version)
        if name and not told.error_code:
            self.tokens[name] = told
            self._await_token(told.token_id)
        seen = [ErrorCode(told.error_code).name, told.principal_type, told.principal_name]
        seen += [told.token_requester_principal_type, told.token_requester_principal_name]
        if told.error_code:
            times = (told.issue_timestamp_ms, told.expiry_timestamp_ms, told.max_timestamp_ms)
            return [*seen, *times, told.token_id, told.hmac]
        assert abs(told.issue_timestamp_ms - before_ms) < _SLACK_MS
        expected = hmac.digest(SECRET.encode(), told.token_id.encode(), "sha512")
        assert told.hmac == expected
        assert len(told.token_id) == 22
        issued_ms = told.issue_timestamp_ms
        return [*seen, told.expiry_timestamp_ms - issued_ms, told.max_timestamp_ms - issued_ms]

    def _await_token(self, token_id: str, *, gone: bool = False) -> None:
        """Apache Kafka's brokers know a token, or its end, some time after the answer. The appliance does at once."""
        deadline = time.monotonic() + (10 if self.is_late else 0)
        body = DescribeDelegationTokenRequest(None)
        while True:
            told = self.ask("admin", ApiKey.DESCRIBE_DELEGATION_TOKEN, body)
            if (token_id in {each.token_id for each in told.tokens}) != gone:
                return
            assert time.monotonic() < deadline, "the broker does not know the token that it made or ended"

    def await_login(self, name: str) -> None:
        """Apache Kafka shows a token before it has the credential of the token."""
        deadline = time.monotonic() + (10 if self.is_late else 0)
        token = self.tokens[name]
        first = ScramTokens(SHA, token.token_id, "", extensions="tokenauth=true").first
        while True:
            with WireSocket(self.sasl_port) as connection:
                assert not handshake(connection, SHA).error_code
                if not authenticate(connection, first).error_code:
                    return
            assert time.monotonic() < deadline, "the broker does not let the token's holder in"

    def renew(self, user: str, name: str, period_ms: int = -1, version: int = 2) -> list[Any]:
        """Renew a token; the error, and how long it lives from now."""
        body = RenewDelegationTokenRequest(self.hmac(name), period_ms)
        return self._ends(self.ask(user, ApiKey.RENEW_DELEGATION_TOKEN, body, version))

    def expire(self, user: str, name: str, period_ms: int = -1, version: int = 2) -> list[Any]:
        """Let a token end; the error, and how long it lives from now."""
        body = ExpireDelegationTokenRequest(self.hmac(name), period_ms)
        told = self.ask(user, ApiKey.EXPIRE_DELEGATION_TOKEN, body, version)
        if period_ms < 0 and not told.error_code:
            self._await_token(self.tokens[name].token_id, gone=True)
        return self._ends(told)

    def hmac(self, name: str) -> bytes:
        return self.tokens[name].hmac if name in self.tokens else name.encode()

    @staticmethod
    def _ends(told: Any) -> list[Any]:
        if told.error_code:
            return [ErrorCode(told.error_code).name, told.expiry_timestamp_ms]
        # Both brokers answer within seconds, so the same minute of life is left.
        return ["NONE", round((told.expiry_timestamp_ms - time.time_ns() // 1_000_000) / 60_000)]

    def describe(self, user: str, *owners: str, all_owners: bool = False, version: int = 3) -> list[Any]:
        """The tokens that a user sees, by their names."""
        named = tuple(DescribeDelegationTokenOwner("User", each) for each in owners)
        body = DescribeDelegationTokenRequest(None if all_owners else named)
        told = self.ask(user, ApiKey.DESCRIBE_DELEGATION_TOKEN, body, version)
        names = {token.token_id: name for name, token in self.tokens.items()}
        return [
            ErrorCode(told.error_code).name,
            sorted(
                [
                    names[each.token_id],
                    f"{each.principal_type}:{each.principal_name}",
                    f"{each.token_requester_principal_type}:{each.token_requester_principal_name}",
                    each.max_timestamp - each.issue_timestamp,
                    each.hmac == self.tokens[names[each.token_id]].hmac,
                    sorted(f"{one.principal_type}:{one.principal_name}" for one in each.renewers),
                ]
                for each in told.tokens
            ),
        ]


class Pair:
    """Both brokers."""

    def __init__(self, directory: Path) -> None:
        port = free_ports(2)
        self.ours = Appliance(
            directory / "ours",
            port=port,
            settings={
                **TOKENS,
                "delegation.token.secret.key": SECRET,
                "listeners": [f"PLAINTEXT://127.0.0.1:{port}", f"SASL_PLAINTEXT://127.0.0.1:{port + 1}"],
                "sasl.enabled.mechanisms": SHA,
                "audit.log.events": ["authentications", "refusals", "changes"],
            },
        )
        self.judge = Judge(directory / "kafka")
        self.sides = (
            Side(port, port + 1, is_late=False),
            Side(self.judge.port, self.judge.sasl_port, is_late=True),
        )

    def start(self) -> None:
        self.ours.start()
        self.judge.start()
        salt = b"a salt of some length"
        users = tuple(
            ScramCredentialUpsertion(user, 2, 4096, salt, salted_password(SHA, f"{user}-secret", salt, 4096))
            for user in USERS
        )
        user, token = int(ResourceType.USER), int(ResourceType.DELEGATION_TOKEN)
        rules = (
            (user, "User:bob", "User:carol", AclOperation.CREATE_TOKENS),
            (user, "User:alice", "User:dora", AclOperation.DESCRIBE_TOKENS),
            (token, "no-such-token", "User:bob", AclOperation.DESCRIBE),
        )
        acls = tuple(
            AclCreation(
                kind, name, who, "*", int(operation), int(AclPermission.ALLOW), int(PatternType.LITERAL)
            )
            for kind, name, who, operation in rules
        )
        for side in self.sides:
            made = side.ask(
                "plain", ApiKey.ALTER_USER_SCRAM_CREDENTIALS, AlterUserScramCredentialsRequest((), users)
            )
            assert {each.error_code for each in made.results} == {0}
            created = side.ask("plain", ApiKey.CREATE_ACLS, CreateAclsRequest(acls))
            assert {each.error_code for each in created.results} == {0}

    def both(self, step: Callable[[Side], Any]) -> tuple[Any, Any]:
        ours, judge = map(step, self.sides)
        return ours, judge

    def stop(self) -> None:
        self.ours.stop()
        self.judge.stop()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    pair = Pair(tmp_path_factory.mktemp("tokens-judge"))
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()


def works(connection: WireSocket) -> Any:
    """Whether a request behind the authentication is answered."""
    told = asked(connection, ApiKey.METADATA, 1, MetadataRequest(topics=()))
    return told if told == CLOSED else "answered"


def test_tokens_live_as_in_kafka(pair: Pair) -> None:
    steps: dict[str, Callable[[Side], Any]] = {
        "of herself": lambda s: s.create("alice", "a1"),
        "of an old client": lambda s: s.create("alice", "a2", version=1),
        "with renewers": lambda s: s.create("alice", "a3", renewers=("bob", "carol")),
        "for an hour at most": lambda s: s.create("alice", "a4", lifetime_ms=10 * MAX_MS),
        "for a minute": lambda s: s.create("alice", "a5", lifetime_ms=60_000),
        "a lifetime of none": lambda s: s.create("alice", "a6", lifetime_ms=0),
        "for the requester herself": lambda s: s.create("alice", "a7", owner="alice"),
        "an empty owner": lambda s: s.create("alice", "a8", owner=""),
        "for another, allowed": lambda s: s.create("carol", "b1", owner="bob"),
        "for another, by a super user": lambda s: s.create("admin", "b2", owner="bob", renewers=("dora",)),
        "for another, denied": lambda s: s.create("carol", owner="alice"),
        "for another type, denied": lambda s: s.create("alice", owner="alice", owner_kind="Group"),
        "a renewer of another type": lambda s: s.create("alice", renewers=("bob",), kind="Group"),
        "denied, and a renewer of another type": lambda s: s.create(
            "carol", owner="alice", renewers=("bob",), kind="Group"
        ),
        "without encryption": lambda s: s.create("plain"),
        "all that alice sees": lambda s: s.describe("alice", all_owners=True),
        "all that an old client sees": lambda s: s.describe("alice", all_owners=True, version=1),
        "all that bob sees": lambda s: s.describe("bob", all_owners=True),
        "all that carol sees": lambda s: s.describe("carol", all_owners=True),
        "all that dora sees": lambda s: s.describe("dora", all_owners=True),
        "all that admin sees": lambda s: s.describe("admin", all_owners=True),
        "of bob": lambda s: s.describe("admin", "bob"),
        "of bob and nobody": lambda s: s.describe("carol", "bob", "nobody"),
        "of nobody": lambda s: s.describe("admin", "nobody"),
        "of an empty list": lambda s: s.describe("admin"),
        "seen without encryption": lambda s: s.describe("plain", all_owners=True),
        "renewed": lambda s: s.renew("alice", "a1"),
        "renewed by an old client": lambda s: s.renew("alice", "a1", version=1),
        "renewed for a short time": lambda s: s.renew("alice", "a1", 120_000),
        "renewed for a long time": lambda s: s.renew("alice", "a1", 10 * MAX_MS),
        "renewed for none": lambda s: s.renew("alice", "a1", 0),
        "not beyond the end": lambda s: s.renew("alice", "a5"),
        "renewed by a renewer": lambda s: s.renew("bob", "a3"),
        "renewed by a renewer of another's": lambda s: s.renew("dora", "b2", 120_000),
        "renewed by the requester": lambda s: s.renew("carol", "b1"),
        "renewed by the owner": lambda s: s.renew("bob", "b1"),
        "renewed by a stranger": lambda s: s.renew("dora", "a1"),
        "renewed by a super user": lambda s: s.renew("admin", "a1"),
        "no such token": lambda s: s.renew("alice", "nothing"),
        "no password": lambda s: s.renew("alice", ""),
        "renewed without encryption": lambda s: s.renew("plain", "a1"),
        "ends later": lambda s: s.expire("alice", "a1", 180_000),
        "ends no later than it may": lambda s: s.expire("alice", "a5", 10 * MAX_MS),
        "ended by a stranger": lambda s: s.expire("dora", "a1"),
        "ended by the requester": lambda s: s.expire("carol", "b1"),
        "no such token to end": lambda s: s.expire("alice", "nothing"),
        "ended without encryption": lambda s: s.expire("plain", "a1"),
        "ended by an old client": lambda s: s.expire("alice", "a2", version=1),
        "ended": lambda s: s.expire("alice", "a6"),
        "ended again": lambda s: s.expire("alice", "a6"),
        "ended by a renewer": lambda s: s.expire("carol", "a3"),
        "what is left": lambda s: s.describe("alice", all_owners=True),
    }
    told = {name: pair.both(step) for name, step in steps.items()}
    assert {name: ours for name, (ours, _) in told.items()} == {
        name: judge for name, (_, judge) in told.items()
    }
    assert told["all that dora sees"][0][1], "the rules show dora nothing: the comparison says little"
    assert told["for another, denied"][0][0] == "DELEGATION_TOKEN_AUTHORIZATION_FAILED"


def test_a_client_logs_in_with_a_token_as_its_owner_and_may_not_ask_for_another(pair: Pair) -> None:
    def talk(side: Side) -> list[Any]:
        told: list[Any] = [side.create("carol", "login", owner="bob", lifetime_ms=600_000)]
        side.await_login("login")
        with WireSocket(side.sasl_port) as connection:
            last = side.log_in_with(connection, "login")
            told += [last.error_code, last.auth_bytes[:2], round(last.session_lifetime_ms / 200_000)]
            told.append(works(connection))
        told.append(side.create("token login"))
        told.append(side.renew("token login", "login"))
        told.append(side.expire("token login", "login"))
        told.append(side.describe("token login", all_owners=True))
        return told

    ours, judge = pair.both(talk)
    assert ours == judge
    assert ours[1] == 0


def test_a_wrong_token_does_not_log_in(pair: Pair) -> None:
    """With one extension. With several Kafka compares the proof with their text in any order, so it may fail."""

    def last(side: Side, token_id: str, password: str, extensions: str) -> Any:
        with WireSocket(side.sasl_port) as connection:
            tokens = ScramTokens(SHA, token_id, password, extensions=extensions)
            assert not handshake(connection, SHA).error_code
            told = authenticate(connection, tokens.first)
            if not told.error_code:
                told = authenticate(connection, tokens.final(told.auth_bytes))
            return told.error_code, told.error_message

    def talk(side: Side) -> list[Any]:
        side.create("alice", "wrong")
        side.await_login("wrong")
        token = side.tokens["wrong"]
        password = base64.b64encode(token.hmac).decode()
        yes = "tokenauth=true"
        told = [
            last(side, token.token_id, "wrong", yes),
            last(side, "no-such-token-at-all22", password, yes),
            last(side, "alice", "alice-secret", yes),
            # Without the extension it is the name of a user who does not exist.
            last(side, token.token_id, password, ""),
            last(side, token.token_id, password, "tokenauth=false"),
            last(side, token.token_id, password, "tokenauth=TRUE"),
        ]
        side.expire("alice", "wrong")
        return [*told, last(side, token.token_id, password, yes)]

    ours, judge = pair.both(talk)
    assert ours == judge


def test_a_token_that_has_expired_is_removed(pair: Pair) -> None:
    def talk(side: Side) -> list[Any]:
        side.create("dora", "long")
        side.create("dora", "short", lifetime_ms=1500)
        deadline = time.monotonic() + 20
        told = side.describe("dora", "dora")
        while "short" in {row[0] for row in told[1]}:
            assert time.monotonic() < deadline
            time.sleep(0.1)
            told = side.describe("dora", "dora")
        return [told, side.renew("dora", "short")]

    ours, judge = pair.both(talk)
    assert ours == judge
    assert "long" in {row[0] for row in ours[0][1]}


@pytest.mark.parametrize("side", ["ours", "kafka"])
def test_the_native_client_logs_in_with_a_token(pair: Pair, side: str) -> None:
    broker = pair.sides[side == "kafka"]
    broker.create("admin", "native", lifetime_ms=MAX_MS)
    broker.await_login("native")
    token = broker.tokens["native"]
    values = [b"%d" % number for number in range(100)]
    options = {
        "bootstrap_servers": f"127.0.0.1:{broker.sasl_port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": SHA,
        "sasl_username": token.token_id,
        "sasl_password": base64.b64encode(token.hmac).decode(),
        "sasl_token_auth": True,
    }
    assert play(options, "native", values) == values
