"""AlterUserScramCredentials 0: the controller decides; answers when the metadata image has the change, which every
authentication from then on goes by.

| refused with | when |
|---|---|
| DUPLICATE_RESOURCE | a user is named twice, in whichever lists: nothing of that user's is changed |
| UNACCEPTABLE_CREDENTIAL | name, salt or salted password empty or too long; iterations under 4,096 or above 16,384 |
| UNSUPPORTED_SASL_MECHANISM | a number that is no mechanism's |
| RESOURCE_NOT_FOUND | a deletion of what does not exist (the controller says so) |

The keys that are kept follow from the salted password here: the controller never sees that.
Source: Kafka's `ScramControlManager.java`, release 4.3. Differences: Kafka takes an empty salt, and has no limit of
lengths.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from appliance.channels.control_channel import AlterScram, ScramOutcomes
from appliance.cluster import ScramCredential
from appliance.errors import RejectedRequest
from appliance.protocol.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import ASKED_AT_ONCE, Ask, Steps
from appliance.sasl.scram_credential import ITERATIONS_MAX, ITERATIONS_MIN, TYPES, credential_from_salted

TIMEOUT_MS: Final = 60_000
NAME_CHARACTERS_MAX: Final = 1024
SALT_BYTES_MAX: Final = 1024
_PIECE: Final = 32
_TWICE: Final = "A user credential cannot be altered twice in the same request"


def alter_user_scram_credentials(
    request: AlterUserScramCredentialsRequest, _view: LocalView
) -> Steps[AlterUserScramCredentialsResponse]:
    """One result for each user that the request names."""
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion] = [*request.deletions]
    changes += request.upsertions
    times = Counter(change.name for change in changes)
    results: dict[str, AlterUserScramCredentialsResult] = {}
    deleted: list[tuple[str, str]] = []
    made: list[ScramCredential] = []
    for number, change in enumerate(changes):
        if not number % _PIECE:
            yield None
        try:
            if times[change.name] > 1:
                raise RejectedRequest(ErrorCode.DUPLICATE_RESOURCE, _TWICE)
            mechanism = _mechanism(change)
            if isinstance(change, ScramCredentialUpsertion):
                made.append(_credential(change, mechanism))
            else:
                deleted.append((change.name, mechanism))
        except RejectedRequest as refusal:
            results[change.name] = AlterUserScramCredentialsResult(
                change.name, int(refusal.code), refusal.message
            )
    while deleted or made:
        question = AlterScram(tuple(deleted[:ASKED_AT_ONCE]), tuple(made[:ASKED_AT_ONCE]))
        del deleted[:ASKED_AT_ONCE], made[:ASKED_AT_ONCE]
        for result in (yield from _altered(question)):
            results[result.user] = result
    return AlterUserScramCredentialsResponse(tuple(results.values()))


def _altered(question: AlterScram) -> Steps[list[AlterUserScramCredentialsResult]]:
    """What became of each user. A controller that does not answer may have made the change."""
    answer = yield Ask(question, TIMEOUT_MS)
    if isinstance(answer, ScramOutcomes):
        return [
            AlterUserScramCredentialsResult(each.user, each.error, each.message) for each in answer.outcomes
        ]
    late = ErrorCode.REQUEST_TIMED_OUT
    users = [user for user, _ in question.deleted] + [each.user for each in question.made]
    return [AlterUserScramCredentialsResult(user, int(late), late.message) for user in users]


def _mechanism(change: ScramCredentialDeletion | ScramCredentialUpsertion) -> str:
    if not change.name:
        raise RejectedRequest(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if len(change.name) > NAME_CHARACTERS_MAX:
        raise RejectedRequest(
            ErrorCode.UNACCEPTABLE_CREDENTIAL, f"Username is longer than {NAME_CHARACTERS_MAX} characters"
        )
    mechanism = TYPES.get(change.mechanism)
    if mechanism is None:
        raise RejectedRequest(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return mechanism


def _credential(change: ScramCredentialUpsertion, mechanism: str) -> ScramCredential:
    if change.iterations < ITERATIONS_MIN:
        raise RejectedRequest(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > ITERATIONS_MAX:
        raise RejectedRequest(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    for what, data in (("Salt", change.salt), ("Salted password", change.salted_password)):
        if not data:
            raise RejectedRequest(ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{what} must not be empty")
        if len(data) > SALT_BYTES_MAX:
            raise RejectedRequest(
                ErrorCode.UNACCEPTABLE_CREDENTIAL, f"{what} is longer than {SALT_BYTES_MAX} bytes"
            )
    return credential_from_salted(
        change.name, mechanism, salted=change.salted_password, salt=change.salt, iterations=change.iterations
    )
