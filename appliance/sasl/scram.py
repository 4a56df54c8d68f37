"""SCRAM-SHA-256 and SCRAM-SHA-512: the server's side (RFC 5802, RFC 7677).

    client first   n,,n=alice,r=CNONCE
    server first   r=CNONCE+SNONCE,s=SALT,i=4096
    client final   c=biws,r=CNONCE+SNONCE,p=PROOF
    server final   v=SIGNATURE

Both sides prove that they know the password, and neither sends it. The server's work is two HMACs and a hash.

A user who does not exist gets a salt, too: always the same one for the same name, derived from a secret, so that the
answer does not show who exists. The authentication fails with the last message, as with a wrong password. (Apache Kafka
fails at the first message there.)

librdkafka 2.0 and before (kcat of Debian 12) puts the client's nonce into its final message once more, before the nonce
that it got. That is accepted, too: the server's nonce is in it, and the proof covers it.

With `tokenauth=true` behind the nonce, the name is the id of a delegation token, and the password its HMAC
(`delegation_tokens.py`). The principal is the owner of the token, and the session ends with it.

Differences from Kafka 4.3: Kafka refuses those clients. Here a name may hold any UTF-8, not only ASCII. A token that
has expired and is not swept yet fails here; in Kafka its session ends at once.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from appliance.cluster import ScramCredential
from appliance.sasl.delegation_tokens import TokenLogin
from appliance.sasl.mechanism import AuthenticationFailed, Exchange
from appliance.sasl.scram_credential import DIGESTS, ITERATIONS_MIN, SALT_BYTES, digest_bytes

Find = Callable[[str], ScramCredential]
"""Takes the name of a user; returns the credential, an invented one for a user who does not exist."""
FindToken = Callable[[str], TokenLogin | None]
"""Takes the id of a delegation token; returns None for a token that does not exist or has expired."""

FIELD_CHARACTERS_MAX: Final = 4096
"""The server repeats the client's nonce. A longer one, or a longer name, is no client's."""
_NONCE_BYTES: Final = 18
_OTHER_ID: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class ScramExchange(Exchange):
    """One authentication.

    Args:
        mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        find: the credentials of this mechanism.
        find_token: those of delegation tokens; None where there are no tokens.
    """

    def __init__(self, mechanism: str, find: Find, find_token: FindToken | None = None) -> None:
        super().__init__()
        self._digest = DIGESTS[mechanism]
        self._find = find
        self._find_token = find_token
        self._is_nobody = False
        self._credential: ScramCredential | None = None
        self._first_messages = ""
        self._client_nonce = ""
        self._nonce = ""

    def evaluate(self, token: bytes) -> bytes:
        """Take client first or client final; return server first or server final."""
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed from None
        credential = self._credential
        reply = self._first(text) if credential is None else self._final(text, credential)
        return reply.encode()

    def _first(self, text: str) -> str:
        flag, authorization_id, bare = _split(text, 3)
        # "y": the client could bind to a channel, and thinks that the server cannot, which is right.
        if flag not in {"n", "y"}:
            raise AuthenticationFailed
        fields = bare.split(",")
        if len(fields) < 2 or any("=" not in field for field in fields):
            raise AuthenticationFailed
        name = _name(_value(fields[0], "n"))
        nonce = _value(fields[1], "r")
        if not nonce.isascii() or not nonce.isprintable() or " " in nonce:
            raise AuthenticationFailed
        if authorization_id and _name(_value(authorization_id, "a")) != name:
            raise AuthenticationFailed(_OTHER_ID)
        credential = self._credential = self._claimed(name, is_token=_is_by_token(fields[2:]))
        self._client_nonce = nonce
        self._nonce = nonce + secrets.token_urlsafe(_NONCE_BYTES)
        salt = base64.b64encode(credential.salt).decode()
        reply = f"r={self._nonce},s={salt},i={credential.iterations}"
        self._first_messages = f"{bare},{reply}"
        return reply

    def _claimed(self, name: str, *, is_token: bool) -> ScramCredential:
        """Return the credential of a user or of a token; say whose it is."""
        self.principal = f"User:{name}"
        self.by_token = is_token
        if not is_token:
            return self._find(name)
        found = None if self._find_token is None else self._find_token(name)
        if found is None:
            # As for a user who does not exist: it fails with the last message, whatever the client sends.
            self._is_nobody = True
            return self._find(f"\0{name}")
        self.principal = found.owner
        self.expires_at_ms = found.expires_ms
        return found.credential

    def _final(self, text: str, credential: ScramCredential) -> str:
        without_proof, comma, proof_field = text.rpartition(",")
        _, nonce_field, *_ = _split(without_proof, 2)
        nonce = _value(nonce_field.split(",")[0], "r")
        if not comma or not text.startswith("c="):
            raise AuthenticationFailed
        if nonce not in {self._nonce, self._client_nonce + self._nonce}:
            raise AuthenticationFailed
        try:
            proof = base64.b64decode(_value(proof_field, "p"), validate=True)
        except ValueError:
            raise AuthenticationFailed from None
        message = f"{self._first_messages},{without_proof}".encode()
        signature = hmac.digest(credential.stored_key, message, self._digest)
        if len(proof) != len(signature):
            raise AuthenticationFailed
        client_key = bytes(one ^ other for one, other in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._digest, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key) or self._is_nobody:
            raise AuthenticationFailed
        self.is_complete = True
        verifier = hmac.digest(credential.server_key, message, self._digest)
        return f"v={base64.b64encode(verifier).decode()}"


class ScramUsers:
    """The credentials of every user, and what takes the place of those that do not exist.

    Args:
        secret: from which invented salts are derived; the same in every process and after every start.
        credentials: returns those of now; the same object until one changes.
    """

    def __init__(self, secret: bytes, credentials: Callable[[], tuple[ScramCredential, ...]]) -> None:
        self._secret = secret
        self._source = credentials
        self._seen: tuple[ScramCredential, ...] = ()
        self._found: dict[tuple[str, str], ScramCredential] = {}
        self._usual = dict.fromkeys(DIGESTS, (ITERATIONS_MIN, SALT_BYTES))

    def find(self, mechanism: str) -> Find:
        """Return what finds the credentials of a mechanism."""
        return lambda user: self._find(mechanism, user)

    def _find(self, mechanism: str, user: str) -> ScramCredential:
        credentials = self._source()
        if credentials is not self._seen:
            self._seen = credentials
            self._found = {(each.mechanism, each.user): each for each in credentials}
            for each in DIGESTS:
                self._usual[each] = _usual(one for one in credentials if one.mechanism == each)
        invented = self._invented(mechanism, user)
        return self._found.get((mechanism, user), invented)

    def _invented(self, mechanism: str, user: str) -> ScramCredential:
        """A credential that no password fits, with the look of most real ones."""
        iterations, salt_bytes = self._usual[mechanism]
        length = digest_bytes(mechanism)
        name = f"{mechanism}\0{user}".encode()
        salt = b"".join(
            hmac.digest(self._secret, number.to_bytes(1, "big") + name, "sha512")
            for number in range(salt_bytes // 64 + 1)
        )[:salt_bytes]
        keys = hmac.digest(self._secret, b"keys" + name, "sha512")
        return ScramCredential(user, mechanism, salt, keys[:length], keys[:length], iterations)


def _usual(credentials: Iterable[ScramCredential]) -> tuple[int, int]:
    """Return iterations and length of the salt that most of these have."""
    counts = Counter((each.iterations, len(each.salt)) for each in credentials)
    return min(counts, key=lambda look: (-counts[look], look)) if counts else (ITERATIONS_MIN, SALT_BYTES)


def _is_by_token(extensions: list[str]) -> bool:
    """Return what the extensions of a first message say; of one that stands there twice the last counts."""
    told = dict(each.split("=", 1) for each in extensions)
    return told.get("tokenauth", "").lower() == "true"


def _split(text: str, parts: int) -> list[str]:
    found = text.split(",", parts - 1)
    if len(found) < parts:
        raise AuthenticationFailed
    return found


def _value(field: str, name: str) -> str:
    found, equals, value = field.partition("=")
    if found != name or not equals or not value or len(value) > FIELD_CHARACTERS_MAX:
        raise AuthenticationFailed
    return value


def _name(text: str) -> str:
    """Return the name that a client wrote with `=2C` for a comma and `=3D` for an equals sign."""
    if "=" in text.replace("=2C", "").replace("=3D", "") or "\0" in text:
        raise AuthenticationFailed
    return text.replace("=2C", ",").replace("=3D", "=")
