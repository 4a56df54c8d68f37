"""AlterClientQuotas 0-1: the controller decides; answers when every process goes by the new quotas.

One result for each entity, however often the request names it: with the second time it is refused, as in Kafka, where
the first alteration counts all the same.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.control_channel import (
    AlteredQuotas,
    AlterQuotas,
    QuotaChange,
    QuotaOutcome,
    QuotaOutcomes,
)
from appliance.protocol.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    QuotaAlteration,
    QuotaAlterationResult,
    QuotaEntity,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Ask, Steps, chunks, in_pieces

TIMEOUT_MS: Final = 60_000
_INVALID: Final = int(ErrorCode.INVALID_REQUEST)

_Entity = frozenset[tuple[str, str | None]]


def alter_client_quotas(
    request: AlterClientQuotasRequest, _view: LocalView
) -> Steps[AlterClientQuotasResponse]:
    """One question for every ASKED_AT_ONCE entities."""
    asked: dict[_Entity, AlteredQuotas] = {}
    twice: set[_Entity] = set()
    altered = yield from in_pieces(_altered, request.entries)
    for entity, alteration in altered:
        if entity in asked:
            twice.add(entity)
        else:
            asked[entity] = alteration
    outcomes: list[QuotaOutcome] = []
    for part in chunks(list(asked.values())):
        answer = yield Ask(AlterQuotas(tuple(part), request.validate_only), TIMEOUT_MS)
        if isinstance(answer, QuotaOutcomes):
            outcomes += answer.outcomes
        else:  # the controller may have made the change
            late = ErrorCode.REQUEST_TIMED_OUT
            outcomes += [QuotaOutcome(int(late), late.message)] * len(part)
    results = []
    for (entity, alteration), outcome in zip(asked.items(), outcomes, strict=True):
        error, message = outcome.error, outcome.message
        if entity in twice:
            error, message = _INVALID, "Ignoring duplicate entity"
        parts = tuple(QuotaEntity(kind, name) for kind, name in alteration.entity.items())
        results.append(QuotaAlterationResult(parts, error, message))
    return AlterClientQuotasResponse(tuple(results))


def _altered(entry: QuotaAlteration) -> tuple[_Entity, AlteredQuotas]:
    # A part that is named twice has the last name, as in Kafka.
    entity = {part.entity_type: part.entity_name for part in entry.entity}
    changes = tuple(QuotaChange(each.key, None if each.remove else each.value) for each in entry.ops)
    return frozenset(entity.items()), AlteredQuotas(entity, changes)
