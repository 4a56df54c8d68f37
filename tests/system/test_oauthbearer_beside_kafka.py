"""The same tokens, the same key set: the appliance accepts and rejects what Apache Kafka accepts and rejects.

Each case goes to both. The answers are compared whole: error code, text, JSON error, and the life of the session. Where
the appliance is stricter on purpose, the case says so, and both answers are checked.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import appliance_client
from appliance_client.errors import AuthenticationError
from tests.support.apache_kafka import ApacheKafka
from tests.support.bearer import Answer, answer, bearer
from tests.support.broker import Appliance
from tests.support.identity_provider import ISSUER, SigningKey, good_claims, key_set
from tests.support.native_play import play
from tests.support.wire import free_ports

INVALID: Final = '{"status":"invalid_token"}'
REJECTED: Final = Answer(58, INVALID, INVALID.encode())
LIFETIME_TOLERANCE_MS: Final = 60_000

ONE: Final = SigningKey("one", use="sig", alg="RS256")
TWO: Final = SigningKey("two", use="sig")
CURVE: Final = SigningKey("curve", ec.generate_private_key(ec.SECP256R1()), use="sig")
STRANGER: Final = SigningKey("one")
UNKNOWN: Final = SigningKey("unknown")

CALLBACKS: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
LOGIN: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"


class KafkaWithTokens(ApacheKafka):
    """Apache Kafka with two listeners: LAX checks neither audience nor issuer, STRICT checks both."""

    def __init__(self, data_dir: Path, keys: Path) -> None:
        super().__init__(data_dir)
        self._url = f"file://{keys}"
        self.lax_port, self.strict_port = free_ports(), free_ports()

    def _prepared(self) -> list[str]:
        command = super()._prepared()
        return [command[0], f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self._url}", *command[1:]]

    def _own_settings(self) -> dict[str, object]:
        own = super()._own_settings()
        ports = {"LAX": self.lax_port, "STRICT": self.strict_port}
        tokens = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        own["listeners"] = f"{own['listeners']},{tokens}"
        own["advertised.listeners"] = f"{own['advertised.listeners']},{tokens}"
        own["listener.security.protocol.map"] = (
            f"{own['listener.security.protocol.map']},LAX:SASL_PLAINTEXT,STRICT:SASL_PLAINTEXT"
        )
        own["sasl.enabled.mechanisms"] = "OAUTHBEARER"
        for name in ports:
            prefix = f"listener.name.{name.lower()}.oauthbearer."
            own[f"{prefix}sasl.server.callback.handler.class"] = CALLBACKS
            own[f"{prefix}sasl.jaas.config"] = LOGIN
            own[f"{prefix}sasl.oauthbearer.jwks.endpoint.url"] = self._url
        own["listener.name.strict.oauthbearer.sasl.oauthbearer.expected.audience"] = "kafka,logs"
        own["listener.name.strict.oauthbearer.sasl.oauthbearer.expected.issuer"] = ISSUER
        return own


def appliance(directory: Path, keys: Path, **more: object) -> tuple[Appliance, int]:
    port = free_ports(2)
    broker = Appliance(
        directory,
        port=port,
        settings={
            "listeners": [f"PLAINTEXT://127.0.0.1:{port}", f"SASL_PLAINTEXT://127.0.0.1:{port + 1}"],
            "sasl.enabled.mechanisms": "OAUTHBEARER",
            "connection.failed.authentication.delay.ms": 0,
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
            **more,
        },
    )
    return broker, port + 1


class Brokers:
    """Apache Kafka and two appliances, with one key set."""

    def __init__(self, directory: Path) -> None:
        keys = directory / "keys.json"
        keys.write_bytes(key_set(ONE, TWO, CURVE))
        self.kafka = KafkaWithTokens(directory / "kafka", keys)
        self.lax, self._lax_port = appliance(directory / "lax", keys)
        self.strict, self._strict_port = appliance(
            directory / "strict",
            keys,
            **{
                "sasl.oauthbearer.expected.audience": "kafka,logs",
                "sasl.oauthbearer.expected.issuer": ISSUER,
            },
        )

    def start(self) -> None:
        for each in (self.lax, self.strict, self.kafka):
            each.start()

    def stop(self) -> None:
        for each in (self.lax, self.strict, self.kafka):
            each.stop()

    def answers(self, first: bytes, *, strict: bool = False) -> tuple[Answer, Answer]:
        """That of Apache Kafka, and that of the appliance."""
        return (
            answer(self.kafka.strict_port if strict else self.kafka.lax_port, first),
            answer(self._strict_port if strict else self._lax_port, first),
        )


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    made = Brokers(tmp_path_factory.mktemp("tokens"))
    try:
        made.start()
        yield made
    finally:
        made.stop()


def now_s() -> int:
    return int(time.time())


def _joined(header: dict[str, Any], claims: dict[str, Any], signature: bytes = b"") -> str:
    parts = (json.dumps(header).encode(), json.dumps(claims).encode(), signature)
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def _confused(secret: bytes) -> str:
    head = _joined({"alg": "HS256", "kid": "two"}, good_claims())[:-1]
    mac = hmac.new(secret, head.encode(), hashlib.sha256).digest()
    return f"{head}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"


def _pem(key: SigningKey) -> bytes:
    return key.private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _changed(token: str, place: int) -> str:
    return token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]


LAX_ACCEPTED: Final[dict[str, Callable[[], str]]] = {
    "good": ONE.token,
    "good, of another key": TWO.token,
    "good, of an elliptic curve": lambda: CURVE.token(algorithm="ES256"),
    "good, with RS512": lambda: TWO.token(algorithm="RS512"),
    "good, with PS256": lambda: TWO.token(algorithm="PS256"),
    "without a key id, of the first key": lambda: ONE.token(header={"kid": None}),
    "within the skew": lambda: ONE.token(exp=now_s() - 20, iat=now_s() - 100),
    "issued in the future": lambda: ONE.token(iat=now_s() + 1000),
    "begins within the skew": lambda: ONE.token(nbf=now_s() + 20),
    "times with fractions": lambda: ONE.token(exp=now_s() + 3600.7, iat=now_s() + 0.5),
    "no issuer": lambda: ONE.token(iss=None),
    "another issuer": lambda: ONE.token(iss="https://other.example"),
    "scope as a text": lambda: ONE.token(scope="a b c"),
    "scope as a list": lambda: ONE.token(scope=["a", "b"]),
    "scope as a number": lambda: ONE.token(scope=5),
    "subject with spaces around": lambda: ONE.token(sub="  alice "),
    "subject with umlauts": lambda: ONE.token(sub="Ünïcode"),
    "null claims": lambda: ONE.token({**good_claims(), "aud": None, "nbf": None, "scope": None}),
    "unknown headers": lambda: ONE.token(
        header={"jku": "http://attacker.example", "x5u": "http://x", "cty": "y"}
    ),
}

REJECTED_BY_BOTH: Final[dict[str, Callable[[], str]]] = {
    "expired": lambda: ONE.token(exp=now_s() - 31, iat=now_s() - 100),
    "long expired": lambda: ONE.token(exp=1, iat=0),
    "not yet begun": lambda: ONE.token(nbf=now_s() + 40),
    "no exp": lambda: ONE.token(exp=None),
    "no iat": lambda: ONE.token(iat=None),
    "no sub": lambda: ONE.token(sub=None),
    "blank sub": lambda: ONE.token(sub="  "),
    "sub a number": lambda: ONE.token(sub=5),
    "jti a number": lambda: ONE.token(jti=5),
    "exp a text": lambda: ONE.token(exp=str(now_s() + 3600)),
    "exp true": lambda: ONE.token(exp=True),
    "exp a list": lambda: ONE.token(exp=[now_s() + 3600]),
    "exp negative": lambda: ONE.token(exp=-5, iat=-10),
    "exp before iat": lambda: ONE.token(iat=now_s() + 4000),
    "exp before nbf": lambda: ONE.token(exp=now_s() + 10, nbf=now_s() + 20),
    "iat a text": lambda: ONE.token(iat="1"),
    "iat negative": lambda: ONE.token(iat=-1),
    "nbf a text": lambda: ONE.token(nbf="1"),
    "an audience where none is expected": lambda: ONE.token(aud="kafka"),
    "an empty list of audiences": lambda: ONE.token(aud=[]),
    "blank scope": lambda: ONE.token(scope=" "),
    "a scope twice": lambda: ONE.token(scope=["a", "a"]),
    "a claim twice": lambda: ONE.sign(
        b'{"alg":"RS256","kid":"one"}',
        b'{"sub":"alice","sub":"root","iat":%d,"exp":%d}' % (now_s(), now_s() + 3600),
    ),
    "claims a list": lambda: ONE.sign(b'{"alg":"RS256","kid":"one"}', b"[]"),
    "claims no JSON": lambda: ONE.sign(b'{"alg":"RS256","kid":"one"}', b"alice"),
    "alg none": lambda: _joined({"alg": "none", "kid": "one"}, good_claims()),
    "alg none without a key id": lambda: _joined({"alg": "none"}, good_claims()),
    "alg none with a signature": lambda: _joined({"alg": "none", "kid": "one"}, good_claims(), b"x"),
    "no alg": lambda: _joined({"kid": "one"}, good_claims(), b"x"),
    "an unknown alg": lambda: _joined({"alg": "XX256", "kid": "one"}, good_claims(), b"x"),
    "HS256 with the public key": lambda: _confused(_pem(TWO)),
    "HS256 with the modulus": lambda: _confused(TWO.members["n"].encode()),
    "another key with the same id": STRANGER.token,
    "an unknown key": UNKNOWN.token,
    "the id of another key": lambda: ONE.token(header={"kid": "two"}),
    "the key inside the token": lambda: STRANGER.token(header={"jwk": STRANGER.members}),
    "the key inside the token, and no id": lambda: STRANGER.token(
        header={"jwk": STRANGER.members, "kid": None}
    ),
    "a key id that is a path": lambda: ONE.token(header={"kid": "../../../../dev/null"}),
    "crit": lambda: ONE.sign(
        b'{"alg":"RS256","kid":"one","crit":["exp"],"exp":1}', json.dumps(good_claims()).encode()
    ),
    "garbage": lambda: "garbage",
    "two parts": lambda: "a.b",
    "empty parts": lambda: "..",
    "four parts": lambda: ONE.token() + ".x",
    "no signature": lambda: ONE.token().rpartition(".")[0] + ".",
    "half a signature": lambda: ONE.token()[:-100],
    "a changed header": lambda: _changed(ONE.token(), 5),
    "changed claims": lambda: _changed(ONE.token(), 120),
    "a changed signature": lambda: _changed(ONE.token(), -50),
    "deep JSON": lambda: ONE.sign(b'{"alg":"RS256","kid":"one"}', b'{"a":' * 5000),
}


def _check_alike(kafka: Answer, own: Answer) -> None:
    assert (kafka.code, kafka.message, kafka.json) == (own.code, own.message, own.json)
    assert abs(kafka.lifetime_ms - own.lifetime_ms) < LIFETIME_TOLERANCE_MS


@pytest.mark.parametrize("case", LAX_ACCEPTED)
def test_both_accept(brokers: Brokers, case: str) -> None:
    kafka, own = brokers.answers(bearer(LAX_ACCEPTED[case]()))
    assert kafka.code == 0
    _check_alike(kafka, own)


@pytest.mark.parametrize("case", REJECTED_BY_BOTH)
def test_both_reject(brokers: Brokers, case: str) -> None:
    kafka, own = brokers.answers(bearer(REJECTED_BY_BOTH[case]()))
    assert kafka == REJECTED
    assert own == REJECTED


STRICT: Final[dict[str, tuple[bool, dict[str, Any]]]] = {
    "the audience": (True, {"aud": "kafka"}),
    "one of the audiences": (True, {"aud": ["other", "logs"]}),
    "another audience": (False, {"aud": "other"}),
    "an audience in another case": (False, {"aud": "Kafka"}),
    "no audience": (False, {}),
    "an empty list": (False, {"aud": []}),
    "a number": (False, {"aud": 5}),
    "another issuer": (False, {"aud": "kafka", "iss": "https://other.example"}),
    "an issuer with a slash more": (False, {"aud": "kafka", "iss": ISSUER + "/"}),
    "no issuer": (False, {"aud": "kafka", "iss": None}),
    "an issuer that is a number": (False, {"aud": "kafka", "iss": 5}),
}


@pytest.mark.parametrize("case", STRICT)
def test_both_check_audience_and_issuer(brokers: Brokers, case: str) -> None:
    is_good, changed = STRICT[case]
    kafka, own = brokers.answers(bearer(ONE.token(**changed)), strict=True)
    _check_alike(kafka, own)
    assert (own.code == 0) is is_good


MESSAGES: Final[dict[str, Callable[[], bytes]]] = {
    "the right principal": lambda: bearer(ONE.token(), begin="n,a=alice,"),
    "extensions": lambda: bearer(ONE.token(), pairs="traceId=1\x01logicalCluster=lkc\x01"),
    "extensions first": lambda: b"n,,\x01traceId=1" + bearer(ONE.token())[3:],
    "another case of the scheme": lambda: bearer(ONE.token()).replace(b"Bearer", b"bEaReR"),
    "empty": lambda: b"",
    "only a separator": lambda: b"\x01",
    "no token": lambda: b"n,,\x01auth=Bearer \x01\x01",
    "no auth": lambda: b"n,,\x01traceId=1\x01\x01",
    "a bad name of an extension": lambda: bearer(ONE.token(), pairs="trace-id=1\x01"),
    "a bad value of an extension": lambda: bearer(ONE.token(), pairs="traceId=é\x01"),
    "channel binding": lambda: bearer(ONE.token(), begin="y,,"),
    "something behind": lambda: bearer(ONE.token()) + b"x",
    "PLAIN": lambda: b"\0alice\0secret",
    "SCRAM": lambda: b"n,,n=alice,r=nonce",
}


@pytest.mark.parametrize("case", MESSAGES)
def test_both_read_the_message_alike(brokers: Brokers, case: str) -> None:
    _check_alike(*brokers.answers(MESSAGES[case]()))


def test_nobody_becomes_another_principal(brokers: Brokers) -> None:
    """The texts differ: the appliance does not copy Kafka's."""
    kafka, own = brokers.answers(bearer(ONE.token(), begin="n,a=root,"))
    assert (kafka.code, own.code) == (58, 58)
    assert "root" in (kafka.message or "")
    assert "root" in (own.message or "")


# Where the appliance is stricter or more lenient on purpose. (token, accepted by Kafka, accepted here)
DIFFERENT: Final[dict[str, tuple[Callable[[], str], bool, bool]]] = {
    "without a key id, of the second key": (lambda: TWO.token(header={"kid": None}), False, True),
    "an algorithm that the key does not name": (lambda: ONE.token(algorithm="RS512"), True, False),
    "a subject with a line break": (lambda: ONE.token(sub="alice\nroot"), True, False),
    "a subject of 2,000 characters": (lambda: ONE.token(sub="x" * 2000), True, False),
    "a token of 100,000 characters": (lambda: ONE.token(groups=["x" * 1000] * 75), True, False),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_on_purpose(brokers: Brokers, case: str) -> None:
    made, kafka_accepts, own_accepts = DIFFERENT[case]
    kafka, own = brokers.answers(bearer(made()))
    assert (kafka.code == 0, own.code == 0) == (kafka_accepts, own_accepts)


def test_another_scheme_is_a_failure(brokers: Brokers) -> None:
    """Kafka has an internal error and closes the connection without an answer."""
    kafka, own = brokers.answers(b"n,,\x01auth=Basic x\x01\x01")
    assert kafka == Answer(None)
    assert own.code == 58


def test_a_life_beyond_what_clients_can_count_is_cut(brokers: Brokers) -> None:
    """Kafka's own arithmetic overflows."""
    kafka, own = brokers.answers(bearer(ONE.token(exp=10**15)))
    assert kafka.code != 0
    assert own.code == 0
    assert 0 < own.lifetime_ms < 2**63 // 1_000_000


@pytest.mark.parametrize("side", ["ours", "kafka"])
def test_the_native_client_logs_in_with_a_token(brokers: Brokers, side: str) -> None:
    port = brokers._strict_port if side == "ours" else brokers.kafka.strict_port
    values = [b"%d" % number for number in range(100)]
    options = {
        "bootstrap_servers": f"127.0.0.1:{port}",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": lambda: ONE.token(good_claims(aud="logs")),
    }
    assert play(options, f"native-{side}", values) == values
    options["sasl_oauth_token_provider"] = lambda: ONE.token(good_claims(aud="others"))
    with (
        appliance_client.Producer(**options) as producer,
        pytest.raises(AuthenticationError, match=r"invalid_token|invalid credentials"),
    ):
        producer.send(f"native-{side}", b"x")
