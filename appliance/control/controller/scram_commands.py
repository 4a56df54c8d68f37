"""What becomes of a request to change SCRAM credentials. The network process has checked them; here is what needs the
books.

| refused with | when |
|---|---|
| RESOURCE_NOT_FOUND | a credential to delete that does not exist |
| POLICY_VIOLATION | more than `CREDENTIALS_MAX` credentials: every network process holds them all |

Source: Kafka's `ScramControlManager.java`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from appliance.channels.control_channel import (
    AclOutcomes,
    AlterScram,
    QuotaOutcomes,
    ScramOutcome,
    ScramOutcomes,
    TokenOutcome,
)
from appliance.cluster import ScramCredential
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.outcomes import blamed_of_image
from appliance.control.controller.user_store import CREDENTIALS_MAX, ScramKey, scram_alteration
from appliance.control.store.metadata_store import MetadataStore, Operation
from appliance.errors import CorruptFile, StorageFault
from appliance.protocol.errors import ErrorCode

_NOBODY = "Attempt to delete a user credential that does not exist"


class Planned(Protocol):
    """Where the change is noted until the store has it (`deciding.Turn`)."""

    operations: list[Operation]
    access_altered: bool
    undo: list[Callable[[], None]]


def plan_scram(
    turn: Planned, state: ClusterState, store: MetadataStore, request: AlterScram
) -> AclOutcomes | QuotaOutcomes | ScramOutcomes | TokenOutcome:
    """Take the changes into the books; return what the network process is told of each user."""
    outcomes: list[ScramOutcome] = []
    scram = dict(state.scram)
    changes: dict[ScramKey, ScramCredential | None] = {}
    for user, mechanism in request.deleted:
        if scram.pop((user, mechanism), None) is None:
            outcomes.append(ScramOutcome(user, int(ErrorCode.RESOURCE_NOT_FOUND), _NOBODY))
        else:
            changes[user, mechanism] = None
            outcomes.append(ScramOutcome(user))
    for credential in request.made:
        key = (credential.user, credential.mechanism)
        if key not in scram and len(scram) >= CREDENTIALS_MAX:
            why = f"There are {CREDENTIALS_MAX} SCRAM credentials already."
            outcomes.append(ScramOutcome(credential.user, int(ErrorCode.POLICY_VIOLATION), why))
        else:
            scram[key] = changes[key] = credential
            outcomes.append(ScramOutcome(credential.user))
    answer = ScramOutcomes(tuple(outcomes))
    if changes:
        try:
            scram_alteration(store, turn.operations, changes)
        except (StorageFault, CorruptFile) as fault:
            return blamed_of_image(fault, answer)
        _take(turn, state, scram)
    return answer


def _take(turn: Planned, state: ClusterState, scram: Mapping[ScramKey, ScramCredential]) -> None:
    before = state.scram, state.shown_scram
    # New mappings: what fails is undone by taking the old ones back.
    state.scram = dict(scram)
    state.shown_scram = tuple(sorted(scram.values()))
    turn.access_altered = True

    def undo() -> None:
        state.scram, state.shown_scram = before

    turn.undo.append(undo)
