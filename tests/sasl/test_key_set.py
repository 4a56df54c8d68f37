"""Which keys of a key set can be used, and what for."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from jwt.algorithms import RSAAlgorithm

from appliance.sasl.key_set import (
    DOCUMENT_BYTES_MAX,
    KEYS_MAX,
    RSA_BITS_MAX,
    InvalidKeySet,
    read_key_set,
)
from tests.support.identity_provider import SigningKey, key_set, rsa_key

KEY: Final = SigningKey("one")
RSA: Final = KEY.members


def test_each_key_is_pinned_to_the_algorithms_of_its_kind() -> None:
    keys = read_key_set(
        key_set(
            KEY,
            SigningKey("named", KEY.private, alg="PS384"),
            SigningKey("p256", ec.generate_private_key(ec.SECP256R1())),
            SigningKey("p384", ec.generate_private_key(ec.SECP384R1()), use="sig", key_ops=["verify"]),
            SigningKey("p521", ec.generate_private_key(ec.SECP521R1())),
            SigningKey("ed25519", ed25519.Ed25519PrivateKey.generate()),
            SigningKey(None, ed448.Ed448PrivateKey.generate()),
        )
    )
    assert not keys.complaints
    assert {key.key_id: " ".join(sorted(key.algorithms)) for key in keys.keys} == {
        "one": "PS256 PS384 PS512 RS256 RS384 RS512",
        "named": "PS384",
        "p256": "ES256",
        "p384": "ES384",
        "p521": "ES512",
        "ed25519": "EdDSA",
        None: "EdDSA",
    }
    assert [key.key_id for key in keys.candidates(None, "EdDSA")] == ["ed25519", None]
    assert [key.key_id for key in keys.candidates("one", "RS256")] == ["one"]
    assert keys.candidates("one", "ES256") == ()
    assert keys.knows("p256")
    assert not keys.knows("other")


def test_the_usable_keys_are_written_as_they_were_read() -> None:
    keys = read_key_set(
        key_set(KEY, {**RSA, "kid": "two", "x5c": ["MIIB"], "private_note": "x"}, {"kty": "?"})
    )
    again = read_key_set(keys.document())
    assert not again.complaints
    assert [key.members for key in again.keys] == [key.members for key in keys.keys]
    assert b"private_note" not in keys.document()
    assert b"x5c" not in keys.document()


def _private() -> dict[str, Any]:
    assert isinstance(KEY.private, RSAPrivateKey)
    return dict(RSAAlgorithm.to_jwk(KEY.private, as_dict=True), kid="two")


def _without_operations() -> dict[str, Any]:
    members = _private()
    del members["key_ops"]
    return members


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ({"kty": "oct", "k": "c2VjcmV0", "kid": "two"}, "symmetric"),
        (_without_operations(), "private part"),
        (_private(), "private part"),
        ({**RSA, "use": "enc"}, "`use`"),
        ({**RSA, "use": None}, "`use`"),
        ({**RSA, "key_ops": ["sign"]}, "`key_ops`"),
        ({**RSA, "key_ops": "verify"}, "`key_ops`"),
        ({**RSA, "alg": "RSA-OAEP"}, "`alg`"),
        ({**RSA, "alg": "HS256"}, "`alg`"),
        ({**RSA, "alg": "none"}, "`alg`"),
        ({**RSA, "alg": ["RS256"]}, "`alg`"),
        ({**RSA, "kid": 5}, "`kid`"),
        ({**RSA, "kid": "x" * 1001}, "`kid`"),
        ({**RSA, "n": 5}, "needs n, e"),
        ({**RSA, "n": None}, "needs n, e"),
        ({**RSA, "n": "A" * 3000}, "needs n, e"),
        ({**RSA, "e": "AA"}, "no key"),
        ({**RSA, "n": ""}, "no key"),
        ({"kty": "RSA"}, "needs n, e"),
        ({"kty": "EC", "crv": "P-256", "x": "AQ", "y": "AQ"}, "no key"),
        ({"kty": "EC", "crv": "P-256", "x": "A" * 43, "y": "A" * 43}, "no key"),
        ({"kty": "EC", "crv": "secp256k1", "x": "AQ", "y": "AQ"}, "`crv`"),
        ({"kty": "OKP", "crv": "X25519", "x": "AQ"}, "`crv`"),
        ({"kty": "OKP", "crv": "Ed25519", "x": "AQ"}, "no key"),
        ({"kty": "unknown"}, "`kty`"),
        ({"kty": ["RSA"]}, "`kty`"),
        ({}, "`kty`"),
        (SigningKey("two", rsa_key(1024)).members, "1024 bits"),
    ],
)
def test_a_key_that_cannot_be_used_is_left_out_with_a_reason(members: dict[str, Any], why: str) -> None:
    keys = read_key_set(key_set(members, KEY))
    assert [key.key_id for key in keys.keys] == ["one"]
    assert len(keys.complaints) == 1
    assert why in keys.complaints[0]
    with pytest.raises(InvalidKeySet, match="no usable key"):
        read_key_set(key_set(members))


@pytest.mark.parametrize("members", [None, [], "text", 5, True])
def test_what_is_no_key_at_all_is_left_out(members: Any) -> None:
    document = json.dumps({"keys": [members, RSA]}).encode()
    assert read_key_set(document).complaints == ("key number 1: it is no JSON object",)


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'{"keys":null}',
        b'{"keys":{}}',
        b'{"keys":[]}',
        b"<html>Bad gateway</html>",
        b"\xff\xfe",
        key_set(KEY)[:-1],
        key_set(KEY) + b"x",
        b'{"keys":' + b"[" * 100_000,
        key_set(*[KEY] * (KEYS_MAX + 1)),
        b" " * DOCUMENT_BYTES_MAX + key_set(KEY),
        b'{"keys":[],"keys":[]}',
    ],
)
def test_a_document_that_is_no_key_set_is_refused(document: bytes) -> None:
    with pytest.raises(InvalidKeySet):
        read_key_set(document)


def test_a_key_that_takes_long_to_use_is_refused() -> None:
    """A number of 16,384 bits needs no key pair to be written down."""
    number = "x" + "A" * 2000
    keys = read_key_set(key_set({"kty": "RSA", "kid": "huge", "n": number, "e": "AQAB"}, KEY))
    assert len(keys.complaints) == 1
    bits = RSA_BITS_MAX + 6
    odd = "_" + "A" * (bits // 6 - 1) + "B"
    assert f"must have 2048 to {RSA_BITS_MAX}" in read_key_set(key_set({**RSA, "n": odd}, KEY)).complaints[0]
