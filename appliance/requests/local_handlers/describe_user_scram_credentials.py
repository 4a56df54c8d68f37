"""DescribeUserScramCredentials 0: which credentials users have, from the metadata image. No key is shown.

A user without credentials is RESOURCE_NOT_FOUND, one who is named twice DUPLICATE_RESOURCE.
The message of a result without an error is empty, and not null.
Source: Kafka's `ScramImage.java`, release 4.3.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from appliance.cluster import ScramCredential
from appliance.protocol.apis.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps
from appliance.sasl.scram_credential import NUMBERS

_PIECE: Final = 200
_TWICE: Final = "Cannot describe SCRAM credentials for the same user twice in a single request: "
_NOBODY: Final = "Attempt to describe a user credential that does not exist: "


def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, view: LocalView
) -> Steps[DescribeUserScramCredentialsResponse]:
    """One result for each user, in the order asked; of all users, by name."""
    found: dict[str, list[ScramCredential]] = {}
    for number, credential in enumerate(view.image.scram):
        if not number % _PIECE:
            yield None
        found.setdefault(credential.user, []).append(credential)
    wanted = Counter(user.name for user in request.users) if request.users else dict.fromkeys(found, 1)
    results: list[DescribeUserScramCredentialsResult] = []
    for number, (user, times) in enumerate(wanted.items()):
        if not number % _PIECE:
            yield None
        results.append(_result(user, times, found.get(user, [])))
    return DescribeUserScramCredentialsResponse(tuple(results), error_message="")


def _result(user: str, times: int, credentials: list[ScramCredential]) -> DescribeUserScramCredentialsResult:
    if times > 1:
        return DescribeUserScramCredentialsResult(user, int(ErrorCode.DUPLICATE_RESOURCE), _TWICE + user)
    if not credentials:
        return DescribeUserScramCredentialsResult(user, int(ErrorCode.RESOURCE_NOT_FOUND), _NOBODY + user)
    infos = (CredentialInfo(NUMBERS[each.mechanism], each.iterations) for each in credentials)
    return DescribeUserScramCredentialsResult(user, error_message="", credential_infos=tuple(infos))
