"""AlterUserScramCredentials (51), version 0: adds, changes and deletes SCRAM credentials of users (KIP-554).

The client sends the salted password, never the password itself. The numbers of mechanisms are Kafka's: 1 is
SCRAM-SHA-256, 2 is SCRAM-SHA-512.
"""

from __future__ import annotations

import msgspec


class ScramCredentialDeletion(msgspec.Struct, frozen=True):
    name: str
    mechanism: int


class ScramCredentialUpsertion(msgspec.Struct, frozen=True):
    name: str
    mechanism: int
    iterations: int
    salt: bytes
    salted_password: bytes

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion({self.name!r}, {self.mechanism})"


class AlterUserScramCredentialsRequest(msgspec.Struct, frozen=True):
    deletions: tuple[ScramCredentialDeletion, ...] = ()
    upsertions: tuple[ScramCredentialUpsertion, ...] = ()


class AlterUserScramCredentialsResult(msgspec.Struct, frozen=True):
    user: str
    error_code: int = 0
    error_message: str | None = None


class AlterUserScramCredentialsResponse(msgspec.Struct, frozen=True):
    """One result for each user that the request names."""

    results: tuple[AlterUserScramCredentialsResult, ...]
    throttle_time_ms: int = 0
