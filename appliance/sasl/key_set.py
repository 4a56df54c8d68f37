"""The public keys of an identity provider: a JSON Web Key Set (RFC 7517, RFC 7518, RFC 8037).

    {"keys": [{"kty": "RSA", "kid": "2026-11", "use": "sig", "alg": "RS256", "n": "…", "e": "AQAB"}, …]}

Each key is pinned to the algorithms of its kind when it is read, so a token cannot choose what its key is used for:

| kty | crv | algorithms |
|---|---|---|
| RSA, 2048 to 8192 bits | | RS256, RS384, RS512, PS256, PS384, PS512 |
| EC | P-256, P-384, P-521 | ES256, ES384, ES512: the one of the curve |
| OKP | Ed25519, Ed448 | EdDSA |

If the key names an `alg`, only that one counts. A key that cannot be used is left out, and a line says why: a symmetric
key (everybody who can read the set could make tokens), a key with a private part, one for encryption.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from appliance.errors import HostFault
from appliance.sasl.strict_json import InvalidJson, read_object

DOCUMENT_BYTES_MAX: Final = 1 << 20
KEYS_MAX: Final = 100
KEY_ID_LENGTH_MAX: Final = 1000
RSA_BITS_MIN: Final = 2048
RSA_BITS_MAX: Final = 8192

_MEMBER_LENGTH_MAX: Final = 2000
"""Characters of one number of a key; 8192 bits are 1366."""
_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {
    ("EC", "P-256"): "ES256",
    ("EC", "P-384"): "ES384",
    ("EC", "P-521"): "ES512",
    ("OKP", "Ed25519"): "EdDSA",
    ("OKP", "Ed448"): "EdDSA",
}
_NUMBERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y"), "OKP": ("crv", "x")}
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})
ALGORITHMS: Final = frozenset({*_RSA, *_CURVES.values()})
"""Every algorithm that a token may have."""


class InvalidKeySet(HostFault):
    """A document that is no key set, or has no key that can be used."""


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key, and what it may be used for.

    `members` is the key as a JSON Web Key, without members that mean nothing here.
    """

    key_id: str | None
    algorithms: frozenset[str]
    public: Any
    members: Mapping[str, str]

    def verifies(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Return whether this key made the signature; False for an algorithm to which it is not pinned."""
        if algorithm not in self.algorithms:
            return False
        from jwt import get_algorithm_by_name

        return get_algorithm_by_name(algorithm).verify(signed, self.public, signature)


@dataclass(frozen=True, slots=True)
class KeySet:
    """The keys of one document, in its order. `complaints` says of the others why they are left out."""

    keys: tuple[VerificationKey, ...]
    complaints: tuple[str, ...] = ()

    def knows(self, key_id: str) -> bool:
        """Return whether a key has this id."""
        return any(key.key_id == key_id for key in self.keys)

    def candidates(self, key_id: str | None, algorithm: str) -> tuple[VerificationKey, ...]:
        """Return the keys that may have signed a token with this key id (None: it names none) and algorithm."""
        return tuple(key for key in self.keys if algorithm in key.algorithms and key_id in (None, key.key_id))

    def document(self) -> bytes:
        """Return the usable keys as a document that `read_key_set` reads."""
        return json.dumps({"keys": [dict(key.members) for key in self.keys]}).encode()


class _Unusable(Exception):
    """Why one key is left out."""


def read_key_set(document: bytes) -> KeySet:
    """Read a JSON Web Key Set.

    Raises:
        InvalidKeySet: the document is none, is too large, or has no usable key.
    """
    if len(document) > DOCUMENT_BYTES_MAX:
        raise InvalidKeySet(f"it has more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        found = read_object(document).get("keys")
    except InvalidJson as fault:
        raise InvalidKeySet(f"it is no JSON Web Key Set: {fault}") from None
    if not isinstance(found, list):
        raise InvalidKeySet("it is no JSON Web Key Set: it has no list `keys`")
    if len(found) > KEYS_MAX:
        raise InvalidKeySet(f"it has {len(found)} keys; the maximum is {KEYS_MAX}")
    keys: list[VerificationKey] = []
    complaints: list[str] = []
    for place, members in enumerate(found):
        try:
            keys.append(_key(members))
        except _Unusable as why:
            complaints.append(f"key {_name(members, place)}: {why}")
    if not keys:
        raise InvalidKeySet(f"it has no usable key{': ' if complaints else ''}{'; '.join(complaints[:3])}")
    return KeySet(tuple(keys), tuple(complaints))


def _name(members: object, place: int) -> str:
    key_id = members.get("kid") if isinstance(members, dict) else None
    return f"{str(key_id)[:50]!r}" if key_id is not None else f"number {place + 1}"


def _key(members: object) -> VerificationKey:
    if not isinstance(members, dict):
        raise _Unusable("it is no JSON object")
    kind, key_id = members.get("kty"), members.get("kid")
    if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= KEY_ID_LENGTH_MAX):
        raise _Unusable(f"`kid` must be a text of at most {KEY_ID_LENGTH_MAX} characters")
    if kind == "oct":
        raise _Unusable("a symmetric key, with which everybody who reads the set could make tokens")
    if not isinstance(kind, str) or kind not in _NUMBERS:
        raise _Unusable(f"unknown `kty` {str(kind)[:20]!r}")
    if _PRIVATE & members.keys():
        raise _Unusable("it has a private part, with which everybody who reads the set could make tokens")
    if members.get("use", "sig") != "sig":
        raise _Unusable("it is not for signatures (`use`)")
    uses = members.get("key_ops", ["verify"])
    if not isinstance(uses, list) or "verify" not in uses:
        raise _Unusable("it is not for verifying signatures (`key_ops`)")
    needed = {name: members.get(name) for name in _NUMBERS[kind]}
    if not all(isinstance(value, str) and len(value) <= _MEMBER_LENGTH_MAX for value in needed.values()):
        raise _Unusable(f"it needs {', '.join(needed)} as texts of at most {_MEMBER_LENGTH_MAX} characters")
    algorithms = _algorithms(kind, needed.get("crv"), members.get("alg"))
    kept: dict[str, Any] = {"kty": kind, **needed}
    if key_id is not None:
        kept["kid"] = key_id
    if "alg" in members:
        kept["alg"] = members["alg"]
    return VerificationKey(key_id, algorithms, _public(algorithms, kept), kept)


def _algorithms(kind: str, curve: object, named: object) -> frozenset[str]:
    fitting: tuple[str, ...] = _RSA
    if kind != "RSA":
        if (kind, curve) not in _CURVES:
            raise _Unusable(f"unknown `crv` {str(curve)[:20]!r}")
        fitting = (_CURVES[kind, str(curve)],)
    if named is None:
        return frozenset(fitting)
    if named not in fitting:
        raise _Unusable(f"`alg` {str(named)[:20]!r} is no algorithm for signatures with a key of this kind")
    return frozenset({str(named)})


def _public(algorithms: frozenset[str], members: dict[str, Any]) -> Any:
    # Loaded where it is used: without OAUTHBEARER nobody needs it.
    from jwt import get_algorithm_by_name
    from jwt.exceptions import InvalidKeyError

    try:
        public = get_algorithm_by_name(min(algorithms)).from_jwk(members)
    except (InvalidKeyError, ValueError, TypeError) as error:
        raise _Unusable(f"its numbers are no key: {str(error)[:100]}") from None
    bits = public.key_size if members["kty"] == "RSA" else RSA_BITS_MIN
    if not RSA_BITS_MIN <= bits <= RSA_BITS_MAX:
        raise _Unusable(f"an RSA key of {bits} bits; it must have {RSA_BITS_MIN} to {RSA_BITS_MAX}")
    return public
