"""Whether an access token is good: a JSON Web Token with the signature of the identity provider (RFC 7515, RFC 7519).

    eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ . eyJzdWIiOiJhbGljZSIsImV4cCI6MTc2…  . kq3Jx…
    header: algorithm, key id            claims: who, until when, for whom    signature over both

In this order, so that nothing of the claims is read before the signature is checked:

1. three parts of base64url, at most TOKEN_LENGTH_MAX characters; the header is an object without extensions (`crit`)
2. the algorithm is one of `key_set.ALGORITHMS`. `none` and the symmetric ones (HS256) are not among them
3. the key is looked up in the key set by its id only; keys and addresses in the header (`jwk`, `jku`) are not read
4. the key made the signature, with an algorithm to which the key is pinned
5. the claims: times, audience, issuer, scopes, subject

PyJWT verifies the signatures. Its `decode` is not used: it reads the clock itself, takes times that are texts, and
needs up to 6 ms for the base64 of a long token, in which a network process serves nobody.

Source of the rules for claims: Kafka's `BrokerJwtValidator`, and jose4j's `NumericDateValidator` and `AudValidator`.
"""

from __future__ import annotations

import binascii
import math
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from appliance.clock import Clock
from appliance.config.declaration import INT64_MAX
from appliance.config.sections.oauthbearer import OAuthBearerSettings
from appliance.errors import ClientFault
from appliance.sasl.key_set import ALGORITHMS, KEY_ID_LENGTH_MAX, KeySet
from appliance.sasl.mechanism import CannotDecide
from appliance.sasl.strict_json import InvalidJson, read_object

TOKEN_LENGTH_MAX: Final = 65_536
SUBJECT_LENGTH_MAX: Final = 1000
LIFETIME_S_MAX: Final = 100 * 365 * 86_400
"""A token may end later; the session of its client does not. Clients in Java count in nanoseconds of 63 bits."""
KEYS_TRIED_MAX: Final = 4
"""Signatures that one token may cost. More keys than one fit where the token names no key id."""

_MOMENT_S_MAX: Final = INT64_MAX // 1000
_URL_SAFE: Final = bytes.maketrans(b"-_", b"+/")
_BLANKS: Final = "".join(map(chr, range(33)))
"""What Java's `String.trim` takes off."""


class KeySource(Protocol):
    """Where the keys of the identity provider come from. No method waits."""

    def current(self) -> KeySet | None:
        """Return the last good keys; None before the first."""

    def ask_for_newer(self) -> None:
        """Have the keys fetched soon, because a token has an unknown key. The source bounds how often."""


class TokenRejected(ClientFault):
    """A token that does not count. The text is for the log: it says more than its sender may know."""


class KeysMissing(CannotDecide):
    """No keys have been fetched yet, so whether a token is good is not known."""


@dataclass(frozen=True, slots=True)
class GoodToken:
    """What a token says. `expires_at_ms`: milliseconds since 1970, at most LIFETIME_S_MAX from now."""

    subject: str
    expires_at_ms: int


class TokenValidator:
    """Validates the tokens of one identity provider.

    Args:
        settings: which tokens count.
        keys: the keys of the identity provider.
        clock: the wall clock counts, because tokens name moments.
    """

    __slots__ = ("_audiences", "_clock", "_keys", "_settings")

    def __init__(self, settings: OAuthBearerSettings, keys: KeySource, clock: Clock) -> None:
        self._settings = settings
        self._audiences = frozenset(settings.expected_audience)
        self._keys = keys
        self._clock = clock

    def validate(self, token: str) -> GoodToken:
        """Return what the token says.

        Raises:
            TokenRejected: it does not count.
            KeysMissing: no keys have been fetched yet.
        """
        if len(token) > TOKEN_LENGTH_MAX:
            raise TokenRejected(f"it has more than {TOKEN_LENGTH_MAX} characters")
        parts = token.split(".")
        if len(parts) != 3 or not token.isascii():
            raise TokenRejected("it is no JSON Web Token of three parts")
        algorithm, key_id = _header(_object(parts[0], "header"))
        payload, signature = _decoded(parts[1], "claims"), _decoded(parts[2], "signature")
        self._verify(algorithm, key_id, token[: token.rindex(".")].encode(), signature)
        try:
            claims = read_object(payload)
        except InvalidJson as fault:
            raise TokenRejected(f"its claims are {fault}") from None
        return self._judge({name: value for name, value in claims.items() if value is not None})

    def _verify(self, algorithm: str, key_id: str | None, signed: bytes, signature: bytes) -> None:
        keys = self._keys.current()
        if keys is None:
            raise KeysMissing("no keys of the identity provider have been fetched yet")
        if key_id is not None and not keys.knows(key_id):
            self._keys.ask_for_newer()
            raise TokenRejected(f"its key {key_id[:50]!r} is unknown")
        candidates = keys.candidates(key_id, algorithm)
        if not candidates:
            raise TokenRejected(f"no key for it may be used with {algorithm}")
        if not any(key.verifies(algorithm, signed, signature) for key in candidates[:KEYS_TRIED_MAX]):
            if key_id is None:
                self._keys.ask_for_newer()
            raise TokenRejected("its signature is wrong")

    # Claims. Those that are null count as absent.

    def _judge(self, claims: Mapping[str, Any]) -> GoodToken:
        settings = self._settings
        expires_s = self._check_times(claims)
        self._check_audience(claims)
        issuer = claims.get("iss")
        if settings.expected_issuer is not None and issuer != settings.expected_issuer:
            raise TokenRejected(f"its issuer {str(issuer)[:100]!r} is not the expected one")
        for name in ("sub", "jti"):
            if not isinstance(claims.get(name, ""), str):
                raise TokenRejected(f"its claim {name!r} is no text")
        _check_scopes(settings.scope_claim_name, claims.get(settings.scope_claim_name))
        ends_s = min(expires_s, self._clock.now_ms() // 1000 + LIFETIME_S_MAX)
        return GoodToken(_subject(settings.sub_claim_name, claims), ends_s * 1000)

    def _check_times(self, claims: Mapping[str, Any]) -> int:
        expires_s, issued_s, begins_s = (_moment_s(claims, name) for name in ("exp", "iat", "nbf"))
        if expires_s is None or issued_s is None:
            raise TokenRejected(f"it has no claim {'exp' if expires_s is None else 'iat'!r}")
        if expires_s < 0 or issued_s < 0:
            raise TokenRejected("a time in it is before 1970")
        if expires_s < issued_s or (begins_s is not None and expires_s < begins_s):
            raise TokenRejected("it ends before it begins")
        now_s, skew_s = self._clock.now_ms() // 1000, self._settings.clock_skew_s
        if now_s - skew_s >= expires_s:
            raise TokenRejected(f"it expired {now_s - expires_s} s ago")
        if begins_s is not None and now_s + skew_s < begins_s:
            raise TokenRejected(f"it begins in {begins_s - now_s} s")
        return expires_s

    def _check_audience(self, claims: Mapping[str, Any]) -> None:
        named = claims.get("aud")
        if named is None:
            if self._audiences:
                raise TokenRejected("it names no audience")
            return
        audiences = [named] if isinstance(named, str) else named
        if not isinstance(audiences, list) or not all(isinstance(each, str) for each in audiences):
            raise TokenRejected("its claim 'aud' is neither a text nor a list of texts")
        if self._audiences.isdisjoint(audiences):
            # RFC 7519, section 4.1.3: a token for named audiences is for nobody else.
            why = "" if self._audiences else "; set sasl.oauthbearer.expected.audience"
            raise TokenRejected(f"its audience {','.join(audiences)[:100]!r} is not an expected one{why}")


def _header(header: Mapping[str, Any]) -> tuple[str, str | None]:
    """Return the algorithm and the key id."""
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise TokenRejected(
            f"its algorithm {str(algorithm)[:20]!r} is none of {', '.join(sorted(ALGORITHMS))}"
        )
    if "crit" in header or header.get("b64", True) is not True:
        raise TokenRejected("its header has an extension that must be understood (`crit`)")
    if key_id is not None and not (isinstance(key_id, str) and len(key_id) <= KEY_ID_LENGTH_MAX):
        raise TokenRejected(f"its key id is no text of at most {KEY_ID_LENGTH_MAX} characters")
    return algorithm, key_id


def _object(part: str, what: str) -> dict[str, Any]:
    try:
        return read_object(_decoded(part, what))
    except InvalidJson as fault:
        raise TokenRejected(f"its {what} is {fault}") from None


def _decoded(part: str, what: str) -> bytes:
    """Decode base64url without padding (RFC 7515, section 2); only the one text that encodes the bytes."""
    encoded = part.encode()
    try:
        found = binascii.a2b_base64(
            encoded.translate(_URL_SAFE) + b"=" * (-len(encoded) % 4), strict_mode=True
        )
    except binascii.Error:
        found = b""
    if not found or urlsafe_b64encode(found).rstrip(b"=") != encoded:
        raise TokenRejected(f"its {what} is no base64url")
    return found


def _moment_s(claims: Mapping[str, Any], name: str) -> int | None:
    """Return a NumericDate (RFC 7519, section 2) in whole seconds; None if it is absent."""
    value = claims.get(name)
    if value is None:
        return None
    # `True` is a number for Python, and for nobody else.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRejected(f"its claim {name!r} is no number")
    if not math.isfinite(value) or abs(value) > _MOMENT_S_MAX:
        raise TokenRejected(f"its claim {name!r} is out of range")
    return int(value)


def _check_scopes(name: str, scopes: object) -> None:
    if isinstance(scopes, str):
        scopes = [scopes]
    if not isinstance(scopes, list):
        return
    trimmed = [scope.strip(_BLANKS) if isinstance(scope, str) else "" for scope in scopes]
    if not all(trimmed) or len(set(trimmed)) != len(trimmed):
        raise TokenRejected(f"its claim {name!r} has a scope that is blank, no text, or there twice")


def _subject(name: str, claims: Mapping[str, Any]) -> str:
    value = claims.get(name)
    subject = value.strip(_BLANKS) if isinstance(value, str) else ""
    if not subject or len(subject) > SUBJECT_LENGTH_MAX:
        raise TokenRejected(f"its claim {name!r} is no text of 1 to {SUBJECT_LENGTH_MAX} characters")
    if not subject.isprintable():
        raise TokenRejected(f"its claim {name!r} contains a control character")
    return subject
