"""DescribeUserScramCredentials (50), version 0: which SCRAM credentials users have. No key is shown (KIP-554)."""

from __future__ import annotations

import msgspec


class UserName(msgspec.Struct, frozen=True):
    name: str


class DescribeUserScramCredentialsRequest(msgspec.Struct, frozen=True):
    """None, or no user, means all of them."""

    users: tuple[UserName, ...] | None = None


class CredentialInfo(msgspec.Struct, frozen=True):
    """`mechanism` is Kafka's number: 1 is SCRAM-SHA-256, 2 is SCRAM-SHA-512."""

    mechanism: int
    iterations: int


class DescribeUserScramCredentialsResult(msgspec.Struct, frozen=True):
    user: str
    error_code: int = 0
    error_message: str | None = None
    credential_infos: tuple[CredentialInfo, ...] = ()


class DescribeUserScramCredentialsResponse(msgspec.Struct, frozen=True):
    """`error_code` is of the request as a whole."""

    results: tuple[DescribeUserScramCredentialsResult, ...] = ()
    error_code: int = 0
    error_message: str | None = None
    throttle_time_ms: int = 0
