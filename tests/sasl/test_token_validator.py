"""Which tokens count: an identity provider signs them here, and attackers change them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any, Final

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from appliance.clock import ManualClock
from appliance.config.sections.oauthbearer import OAuthBearerSettings
from appliance.sasl.key_set import KeySet, read_key_set
from appliance.sasl.token_validator import (
    LIFETIME_S_MAX,
    TOKEN_LENGTH_MAX,
    GoodToken,
    KeysMissing,
    TokenRejected,
    TokenValidator,
)
from tests.support.identity_provider import ISSUER, SigningKey, good_claims, key_set

NOW_S: Final = 1_700_000_000
KEY: Final = SigningKey("one")


class Keys:
    """A source that holds what the test gives it."""

    def __init__(self, keys: KeySet | None) -> None:
        self.keys = keys
        self.asked = 0

    def current(self) -> KeySet | None:
        return self.keys

    def ask_for_newer(self) -> None:
        self.asked += 1


class Scene:
    """A validator with its keys, its settings and a clock."""

    def __init__(self, *keys: SigningKey, **settings: Any) -> None:
        self.source = Keys(read_key_set(key_set(*(keys or (KEY,)))))
        self.clock = ManualClock(NOW_S * 1000)
        self._validator = TokenValidator(OAuthBearerSettings(**settings), self.source, self.clock)

    def accept(self, token: str) -> GoodToken:
        return self._validator.validate(token)

    def refuse(self, token: str, why: str | None = None) -> None:
        with pytest.raises(TokenRejected, match=why):
            self._validator.validate(token)


def good(key: SigningKey = KEY, **changed: Any) -> str:
    algorithm = changed.pop("algorithm", "RS256")
    header = changed.pop("header", None)
    return key.token(good_claims(NOW_S, **changed), algorithm=algorithm, header=header)


def test_a_good_token_says_who_and_until_when() -> None:
    assert Scene().accept(good()) == GoodToken("alice", (NOW_S + 3600) * 1000)


@pytest.mark.parametrize(
    ("algorithm", "private"),
    [
        *((name, None) for name in ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")),
        ("ES256", ec.generate_private_key(ec.SECP256R1())),
        ("ES384", ec.generate_private_key(ec.SECP384R1())),
        ("ES512", ec.generate_private_key(ec.SECP521R1())),
        ("EdDSA", ed25519.Ed25519PrivateKey.generate()),
        ("EdDSA", ed448.Ed448PrivateKey.generate()),
    ],
)
def test_every_kind_of_key_verifies(algorithm: str, private: Any) -> None:
    key = SigningKey("k", private)
    token = good(key, algorithm=algorithm)
    assert Scene(key).accept(token).subject == "alice"
    head, claims, signature = token.split(".")
    broken = ("B" if signature[0] != "B" else "C") + signature[1:]
    Scene(key).refuse(f"{head}.{claims}.{broken}", "signature")


# Who signed it


def _unsigned(header: dict[str, Any], claims: dict[str, Any]) -> str:
    parts = (base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=") for each in (header, claims))
    return b".".join(parts).decode()


def test_a_token_without_a_signature_is_refused() -> None:
    for name in ("none", "None", "NONE", "", None):
        head = _unsigned({"alg": name, "kid": "one"}, good_claims(NOW_S))
        Scene().refuse(f"{head}.", "algorithm")
        Scene().refuse(f"{head}.AAAA", "algorithm")


def test_a_public_key_is_no_secret_of_a_symmetric_algorithm() -> None:
    public = KEY.private.public_key()
    secrets = [
        public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
        KEY.members["n"].encode(),
        json.dumps(KEY.members).encode(),
    ]
    for name, digest in (("HS256", hashlib.sha256), ("HS384", hashlib.sha384), ("HS512", hashlib.sha512)):
        for secret in secrets:
            head = _unsigned({"alg": name, "kid": "one"}, good_claims(NOW_S))
            mac = base64.urlsafe_b64encode(hmac.new(secret, head.encode(), digest).digest()).rstrip(b"=")
            Scene().refuse(f"{head}.{mac.decode()}", "algorithm")


def test_keys_that_the_token_brings_along_do_not_count() -> None:
    attacker = SigningKey("one")
    for header in (
        {"jwk": attacker.members},
        {"jku": "http://attacker.example/keys"},
        {"x5u": "http://attacker.example/certificate"},
        {"x5c": ["MIIB"]},
    ):
        Scene().refuse(good(attacker, header=header), "signature")
        Scene().refuse(good(attacker, header={**header, "kid": None}), "signature")
    # With the right key they are not read.
    assert Scene().accept(good(header={"jku": "http://attacker.example/keys"})).subject == "alice"


@pytest.mark.parametrize(
    "key_id",
    [
        "../../../../dev/null",
        "/etc/passwd",
        "file:///dev/null",
        "one' OR '1'='1",
        "",
        "x" * 1000,
        "ONE",
        "one\0",
    ],
)
def test_a_key_id_is_only_compared(key_id: str) -> None:
    scene = Scene()
    scene.refuse(good(header={"kid": key_id}), "is unknown")
    assert scene.source.asked == 1


@pytest.mark.parametrize("key_id", [1, True, ["one"], {"one": 1}, "x" * 1001, 1.5])
def test_a_key_id_that_is_none_is_refused_and_makes_nobody_fetch_keys(key_id: Any) -> None:
    scene = Scene()
    header = json.dumps({"alg": "RS256", "kid": key_id}).encode()
    scene.refuse(KEY.sign(header, json.dumps(good_claims(NOW_S)).encode()), "key id")
    assert scene.source.asked == 0


def test_an_unknown_key_makes_the_source_fetch_and_then_counts() -> None:
    two = SigningKey("two")
    scene = Scene()
    scene.refuse(good(two), "unknown")
    assert scene.source.asked == 1
    scene.source.keys = read_key_set(key_set(KEY, two))
    assert scene.accept(good(two)).subject == "alice"
    # Rotated out: the old key counts no more.
    scene.source.keys = read_key_set(key_set(two))
    scene.refuse(good(), "unknown")


def test_a_wrong_signature_with_a_known_key_makes_nobody_fetch_keys() -> None:
    scene = Scene()
    scene.refuse(good(SigningKey("one")), "signature")
    assert scene.source.asked == 0


def test_without_a_key_id_each_fitting_key_is_tried_up_to_a_bound() -> None:
    keys = [SigningKey(f"k{number}") for number in range(5)]
    scene = Scene(*keys)
    for key in keys[:4]:
        assert scene.accept(good(key, header={"kid": None})).subject == "alice"
    scene.refuse(good(keys[4], header={"kid": None}), "signature")
    assert scene.source.asked == 1


def test_a_key_is_used_with_its_own_algorithm_only() -> None:
    scene = Scene(SigningKey("one", KEY.private, alg="RS512"))
    assert scene.accept(good(algorithm="RS512")).subject == "alice"
    for name in ("RS256", "PS512"):
        scene.refuse(good(algorithm=name), f"no key for it may be used with {name}")
    curve = SigningKey("one", ec.generate_private_key(ec.SECP256R1()))
    scene.refuse(good(curve, algorithm="ES256"), "no key for it")


def test_extensions_that_must_be_understood_are_refused() -> None:
    claims = json.dumps(good_claims(NOW_S)).encode()
    headers: tuple[dict[str, Any], ...] = (
        {"crit": ["exp"]},
        {"crit": []},
        {"b64": False, "crit": ["b64"]},
        {"b64": False},
    )
    for header in headers:
        Scene().refuse(
            KEY.sign(json.dumps({"alg": "RS256", "kid": "one", **header}).encode(), claims), "crit"
        )


def test_before_the_first_keys_nothing_is_decided() -> None:
    scene = Scene()
    scene.source.keys = None
    with pytest.raises(KeysMissing):
        scene.accept(good())
    scene.refuse("garbage")
    scene.refuse(_unsigned({"alg": "none"}, good_claims(NOW_S)) + ".", "algorithm")


# Form


@pytest.mark.parametrize(
    "token",
    [
        "",
        ".",
        "..",
        "...",
        "a.b.c",
        "e30.e30.e30",
        "garbage",
        good() + ".",
        good() + ".x",
        good() + "=",
        " " + good(),
        good().replace(".", "..", 1),
        good()[:-1],
        good()[: good().rindex(".")],
        good().replace("e", "é"),
        "x" * TOKEN_LENGTH_MAX,
    ],
)
def test_garbage_is_refused(token: str) -> None:
    Scene().refuse(token)


def test_no_character_of_a_token_can_be_changed() -> None:
    token = good()
    scene = Scene()
    for place in range(0, len(token), 7):
        other = "A" if token[place] != "A" else "B"
        scene.refuse(token[:place] + other + token[place + 1 :])


def test_a_signature_has_one_text_only() -> None:
    """The last character of 256 bytes in base64 has four bits that mean nothing."""
    token = good()
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    last = letters.index(token[-1])
    assert last % 16 == 0
    Scene().refuse(token[:-1] + letters[last + 1], "base64url")


def test_a_huge_token_is_refused_unread() -> None:
    huge = KEY.token(good_claims(NOW_S, groups=["x" * 1000] * 70))
    assert len(huge) > TOKEN_LENGTH_MAX
    Scene().refuse(huge, "characters")
    large = KEY.token(good_claims(NOW_S, groups=["x" * 1000] * 40))
    assert Scene().accept(large).subject == "alice"


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_deep_json_is_refused(opening: bytes) -> None:
    depth = 40_000 // len(opening)
    Scene().refuse(KEY.sign(b'{"alg":"RS256","kid":"one"}', opening * depth), "claims")
    Scene().refuse(KEY.sign(opening * depth, b"{}"), "header")


@pytest.mark.parametrize(
    "claims",
    [
        b"[]",
        b'"alice"',
        b"1",
        b"null",
        b"\xff\xfe{}",
        '{"sub":"alice","iat":1700000000,"exp":1700003600}'.encode("utf-16"),
        b'{"sub":"alice","sub":"root","iat":1700000000,"exp":1700003600}',
        b'{"sub":"alice","iat":1700000000,"exp":Infinity}',
        b'{"sub":"alice","iat":NaN,"exp":1700003600}',
        b'{"sub":"alice","iat":1700000000,"exp":1700003600,"other":NaN}',
        b'{"sub":"alice","iat":1700000000,"exp":1700003600,"other":[-Infinity]}',
        b'{"sub":"alice","iat":1700000000,"exp":1700003600} {}',
        b'{"sub":"alice","iat":1700000000,"exp":' + b"9" * 5000 + b"}",
    ],
)
def test_claims_that_are_no_plain_object_are_refused(claims: bytes) -> None:
    Scene().refuse(KEY.sign(b'{"alg":"RS256","kid":"one"}', claims))


def test_a_name_twice_in_the_header_is_refused() -> None:
    claims = json.dumps(good_claims(NOW_S)).encode()
    Scene().refuse(KEY.sign(b'{"alg":"none","alg":"RS256","kid":"one"}', claims), "twice")


# Times


@pytest.mark.parametrize(
    ("claim", "value", "why"),
    [
        ("exp", None, "no claim 'exp'"),
        ("iat", None, "no claim 'iat'"),
        ("exp", str(NOW_S + 3600), "no number"),
        ("exp", True, "no number"),
        ("exp", [NOW_S + 3600], "no number"),
        ("exp", {}, "no number"),
        ("exp", -1, "before 1970"),
        ("exp", 0, "ends before"),
        ("exp", 10**300, "out of range"),
        ("exp", 1e308, "out of range"),
        ("exp", 2**63, "out of range"),
        ("exp", 2**63 // 1000 + 1, "out of range"),
        ("exp", NOW_S - 30, "ends before"),
        ("iat", "1", "no number"),
        ("iat", -5, "before 1970"),
        ("iat", NOW_S + 3601, "ends before"),
        ("nbf", NOW_S + 3601, "ends before"),
        ("nbf", NOW_S + 31, "begins in 31 s"),
        ("nbf", "1", "no number"),
    ],
)
def test_times_that_make_no_sense_are_refused(claim: str, value: Any, why: str) -> None:
    Scene().refuse(good(**{claim: value}), why)


def test_times_may_be_fractions_and_far_away() -> None:
    assert Scene().accept(good(exp=NOW_S + 10.9)).expires_at_ms == (NOW_S + 10) * 1000
    far_s = (2**63 - 1) // 1000
    assert Scene().accept(good(exp=far_s)).expires_at_ms == (NOW_S + LIFETIME_S_MAX) * 1000
    assert Scene().accept(good(nbf=NOW_S + 30, iat=NOW_S + 3600)).subject == "alice"
    assert Scene().accept(good(iat=0, nbf=-10)).subject == "alice"


def test_a_token_counts_until_its_end_and_the_skew_of_clocks() -> None:
    token = good(iat=NOW_S - 100, exp=NOW_S)
    scene = Scene()
    assert scene.accept(token).expires_at_ms == NOW_S * 1000
    scene.clock.set_wall((NOW_S + 29) * 1000 + 999)
    scene.accept(token)
    scene.clock.set_wall((NOW_S + 30) * 1000)
    scene.refuse(token, "expired 30 s ago")
    exact = Scene(clock_skew_s=0)
    exact.refuse(token, "expired 0 s ago")


def test_a_clock_that_jumps_decides_by_what_it_shows() -> None:
    scene = Scene()
    token = good()
    scene.accept(token)
    scene.clock.set_wall((NOW_S + 7200) * 1000)
    scene.refuse(token, "expired")
    scene.clock.set_wall((NOW_S - 7200) * 1000)
    assert scene.accept(token).subject == "alice"  # `iat` in the future is no fault for Kafka either


# For whom, from whom, about whom


def test_the_audience_is_checked() -> None:
    scene = Scene(expected_audience=("kafka", "logs"))
    for named in ("kafka", ["kafka"], ["other", "logs"]):
        assert scene.accept(good(aud=named)).subject == "alice"
    for wrong in ("other", "Kafka", "kafka ", [], ["other"], [["kafka"]], {"kafka": 1}, 1, True, None):
        scene.refuse(good(aud=wrong), "audience|'aud'")
    any_audience = Scene()
    any_audience.refuse(good(aud="kafka"), "set sasl.oauthbearer.expected.audience")
    any_audience.refuse(good(aud=[]), "audience")


def test_the_issuer_is_checked_where_one_is_expected() -> None:
    scene = Scene(expected_issuer=ISSUER)
    assert scene.accept(good()).subject == "alice"
    for wrong in ("https://other.example", ISSUER + "/", "", None, 1, [ISSUER]):
        scene.refuse(good(iss=wrong), "issuer")
    assert Scene().accept(good(iss=None)).subject == "alice"


@pytest.mark.parametrize(
    "wrong", [None, "", "  ", 1, True, ["alice"], {}, "x" * 1001, "a\nb", "a\0b", "a\u202eb"]
)
def test_a_subject_that_is_no_name_is_refused(wrong: Any) -> None:
    Scene().refuse(good(sub=wrong), "'sub'")


def test_the_subject_is_trimmed_and_may_be_another_claim() -> None:
    assert Scene().accept(good(sub=" alice\t")).subject == "alice"
    assert Scene().accept(good(sub="Ünïcode,=@x")).subject == "Ünïcode,=@x"
    scene = Scene(sub_claim_name="client_id")
    assert scene.accept(good(client_id="job")).subject == "job"
    scene.refuse(good(), "'client_id'")


@pytest.mark.parametrize("scopes", ["", " ", [""], ["a", "a"], ["a", " a "], [1], [None]])
def test_scopes_that_make_no_sense_are_refused(scopes: Any) -> None:
    Scene().refuse(good(scope=scopes), "'scope'")
    Scene(scope_claim_name="scp").refuse(good(scp=scopes), "'scp'")
    assert Scene(scope_claim_name="scp").accept(good(scope=scopes)).subject == "alice"


@pytest.mark.parametrize("scopes", ["a b", ["a", "b"], [], 5, {"a": 1}, None])
def test_scopes_are_not_needed(scopes: Any) -> None:
    assert Scene().accept(good(scope=scopes)).subject == "alice"


def test_a_token_of_pyjwt_itself_counts() -> None:
    """The tokens of these tests are those that the library makes and reads, too."""
    token = good()
    public = KEY.private.public_key()
    assert jwt.decode(token, public, ["RS256"], options={"verify_exp": False})["sub"] == "alice"
