"""SCRAM credentials: what is kept of a password, and Kafka's text for it.

    salted password = PBKDF2(password, salt, iterations)        clients send it in AlterUserScramCredentials
    client key      = HMAC(salted password, "Client Key")
    stored key      = H(client key)                             kept
    server key      = HMAC(salted password, "Server Key")       kept

    salt=…,stored_key=…,server_key=…,iterations=4096            the text in the metadata store; base64

Every process knows this module, and few of them derive a key: OpenSSL is loaded with the first one that does.

Source: RFC 5802, RFC 7677; Kafka's `ScramFormatter.java` and `ScramCredentialUtils.java`.
"""

from __future__ import annotations

import base64
import os
from typing import Final

from appliance.cluster import ScramCredential
from appliance.config.sections.sasl import SCRAM_SHA_256, SCRAM_SHA_512
from appliance.errors import CorruptFile

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384
"""Above it a broker could keep its clients busy (CVE-2026-10143); the bounds are Kafka's."""
SALT_BYTES: Final = 24

DIGESTS: Final = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
"""Mechanism → the hash function that it is named after."""
TYPES: Final = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
"""Kafka's number of a mechanism in requests → its name."""
NUMBERS: Final = {name: number for number, name in TYPES.items()}


_DIGEST_BYTES: Final = {SCRAM_SHA_256: 32, SCRAM_SHA_512: 64}


def digest_bytes(mechanism: str) -> int:
    """Return the length of the mechanism's keys."""
    return _DIGEST_BYTES[mechanism]


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Return what clients derive from a password: 1 to 20 ms of work."""
    import hashlib

    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password.encode(), salt, iterations)


def credential_from_salted(
    user: str, mechanism: str, *, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return what is kept of a salted password."""
    import hashlib
    import hmac

    digest = DIGESTS[mechanism]
    client_key = hmac.digest(salted, b"Client Key", digest)
    return ScramCredential(
        user,
        mechanism,
        salt,
        hashlib.new(digest, client_key).digest(),
        hmac.digest(salted, b"Server Key", digest),
        iterations,
    )


def new_credential(
    user: str, mechanism: str, password: str, *, iterations: int = ITERATIONS_MIN
) -> ScramCredential:
    """Return a credential for a password, with a new salt."""
    salt = os.urandom(SALT_BYTES)
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_from_salted(user, mechanism, salted=salted, salt=salt, iterations=iterations)


def credential_text(credential: ScramCredential) -> str:
    """Return Kafka's text for a credential."""
    fields = {
        "salt": _base64(credential.salt),
        "stored_key": _base64(credential.stored_key),
        "server_key": _base64(credential.server_key),
        "iterations": credential.iterations,
    }
    return ",".join(f"{name}={value}" for name, value in fields.items())


def parse_credential(user: str, mechanism: str, text: str) -> ScramCredential:
    """Return the credential that `credential_text` wrote.

    Raises:
        CorruptFile: the text is something else. Its content is not repeated.
    """
    try:
        fields = dict(part.split("=", 1) for part in text.split(","))
        credential = ScramCredential(
            user,
            mechanism,
            base64.b64decode(fields["salt"], validate=True),
            base64.b64decode(fields["stored_key"], validate=True),
            base64.b64decode(fields["server_key"], validate=True),
            int(fields["iterations"]),
        )
    except (KeyError, ValueError):
        raise CorruptFile(f"the {mechanism} credential of user {user!r} does not parse") from None
    length = digest_bytes(mechanism)
    if len(credential.stored_key) != length or len(credential.server_key) != length or not credential.salt:
        raise CorruptFile(f"the {mechanism} credential of user {user!r} has keys of a wrong length")
    return credential


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
