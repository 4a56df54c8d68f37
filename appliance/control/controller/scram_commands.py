"""What becomes of a request to change SCRAM credentials. The network process has checked them; here is what needs the
books.

| refused with | when |
|---|---|
| RESOURCE_NOT_FOUND | a credential to delete that does not exist |
| POLICY_VIOLATION | more than `CREDENTIALS_MAX` credentials: every network process holds them all |

Source: Kafka's `ScramControlManager.java`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from appliance.channels.control_channel import AlterScram, ScramOutcome, ScramOutcomes
from appliance.cluster import ScramCredential
from appliance.control.controller.cluster_state import ClusterState
from appliance.control.controller.user_store import CREDENTIALS_MAX, user_alteration, with_credential
from appliance.control.store.metadata_store import Operation
from appliance.protocol.errors import ErrorCode

_NOBODY = "Attempt to delete a user credential that does not exist"


class Planned(Protocol):
    """Where the change is noted until the store has it (`deciding.Turn`)."""

    operations: list[Operation]
    access_altered: bool
    undo: list[Callable[[], None]]


def plan_scram(turn: Planned, state: ClusterState, request: AlterScram) -> ScramOutcomes:
    """Take the changes into the books; return what the network process is told of each user."""
    outcomes: list[ScramOutcome] = []
    scram, configs = dict(state.scram), dict(state.user_configs)
    touched: dict[str, None] = {}

    def change(user: str, mechanism: str, credential: ScramCredential | None) -> None:
        configs[user] = with_credential(configs.get(user, {}), mechanism, credential)
        touched[user] = None
        outcomes.append(ScramOutcome(user))

    for user, mechanism in request.deleted:
        if scram.pop((user, mechanism), None) is None:
            outcomes.append(ScramOutcome(user, int(ErrorCode.RESOURCE_NOT_FOUND), _NOBODY))
        else:
            change(user, mechanism, None)
    for credential in request.made:
        key = (credential.user, credential.mechanism)
        if key not in scram and len(scram) >= CREDENTIALS_MAX:
            why = f"There are {CREDENTIALS_MAX} SCRAM credentials already."
            outcomes.append(ScramOutcome(credential.user, int(ErrorCode.POLICY_VIOLATION), why))
        else:
            scram[key] = credential
            change(*key, credential)
    if touched:
        _take(turn, state, scram=scram, configs=configs, touched=touched)
    return ScramOutcomes(tuple(outcomes))


def _take(
    turn: Planned,
    state: ClusterState,
    *,
    scram: dict[tuple[str, str], ScramCredential],
    configs: dict[str, dict[str, str]],
    touched: dict[str, None],
) -> None:
    before = state.user_configs, state.scram, state.shown_scram
    for user in touched:
        turn.operations += user_alteration(user, configs[user], is_new=user not in state.user_configs)
    # New mappings: what fails is undone by taking the old ones back.
    state.user_configs, state.scram = configs, scram
    state.shown_scram = tuple(sorted(scram.values()))
    turn.access_altered = True

    def undo() -> None:
        state.user_configs, state.scram, state.shown_scram = before

    turn.undo.append(undo)
