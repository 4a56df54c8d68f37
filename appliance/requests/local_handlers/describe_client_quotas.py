"""DescribeClientQuotas 0-1: the quotas of the metadata image that a filter matches.

    error                  when
    INVALID_REQUEST        a component without a type, or with the type of another one; a match type that nobody knows
    INVALID_REQUEST        no name for an exact match, or a name for another one; an ip with another part
    UNSUPPORTED_VERSION    a type of entity that nobody knows

Source: Kafka's `ClientQuotasImage.java`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.access.client_quotas import CLIENT_ID, ENTITY_TYPES, IP, USER, parts_of
from appliance.cluster import ClientQuotas
from appliance.errors import RejectedRequest
from appliance.protocol.apis.alter_client_quotas import QuotaEntity
from appliance.protocol.apis.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuotas,
    MatchType,
    QuotaFilterComponent,
    QuotaValue,
)
from appliance.protocol.errors import ErrorCode
from appliance.requests.local_handlers.view import LocalView
from appliance.requests.steps import Steps

_PIECE: Final = 200
_ANY_NAME: Final = object()

_Wanted = Mapping[str, object]
"""Type of entity → the name, None for the default, or _ANY_NAME."""


def describe_client_quotas(
    request: DescribeClientQuotasRequest, view: LocalView
) -> Steps[DescribeClientQuotasResponse]:
    """Look at every entity, some in each piece."""
    try:
        wanted = _wanted(request.components)
    except RejectedRequest as refusal:
        return DescribeClientQuotasResponse(None, int(refusal.code), refusal.message)
    found: list[DescribedQuotas] = []
    for number, quotas in enumerate(view.image.quotas):
        if not number % _PIECE:
            yield None
        if _matches(wanted, parts_of(quotas.entity), strict=request.strict):
            found.append(_described(quotas))
    return DescribeClientQuotasResponse(tuple(found))


def _wanted(components: tuple[QuotaFilterComponent, ...]) -> _Wanted:
    wanted: dict[str, object] = {}
    for component in components:
        kind, name = component.entity_type, component.match
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in wanted:
            raise _invalid(f"Entity type {kind[:200]} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise RejectedRequest(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind[:200]}")
        if component.match_type == MatchType.EXACT:
            if name is None:
                raise _invalid("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            wanted[kind] = name
        elif component.match_type in {MatchType.DEFAULT, MatchType.SPECIFIED}:
            match = MatchType(component.match_type)
            if name is not None:
                raise _invalid(
                    f"Request specified MATCH_TYPE_{match.name}, but also specified a match string."
                )
            wanted[kind] = None if match is MatchType.DEFAULT else _ANY_NAME
        else:
            raise _invalid(f"Unknown match type {component.match_type}")
    if IP in wanted and (USER in wanted or CLIENT_ID in wanted):
        raise _invalid(
            "Invalid entity filter component combination. IP filter component should not be used with user or"
            " clientId filter component."
        )
    return wanted


def _matches(wanted: _Wanted, parts: Mapping[str, str | None], *, strict: bool) -> bool:
    if strict and len(parts) != len(wanted):
        return False
    return all(kind in parts and name in (_ANY_NAME, parts[kind]) for kind, name in wanted.items())


def _described(quotas: ClientQuotas) -> DescribedQuotas:
    return DescribedQuotas(
        tuple(QuotaEntity(kind, name) for kind, name in parts_of(quotas.entity).items()),
        tuple(QuotaValue(key, value) for key, value in quotas.values.items()),
    )


def _invalid(message: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.INVALID_REQUEST, message)
