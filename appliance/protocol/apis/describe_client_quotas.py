"""DescribeClientQuotas (48), versions 0-1: the quotas of the entities that a filter matches (KIP-546).

The versions differ in encoding.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from appliance.protocol.apis.alter_client_quotas import QuotaEntity


class MatchType(IntEnum):
    """How a part of a filter matches the name of an entity: the same name, the default, or any name and the default."""

    EXACT = 0
    DEFAULT = 1
    SPECIFIED = 2


class QuotaFilterComponent(msgspec.Struct, frozen=True):
    """`match` is None unless the match type is EXACT."""

    entity_type: str
    match_type: int
    match: str | None = None


class DescribeClientQuotasRequest(msgspec.Struct, frozen=True):
    """`strict`: leave out entities that have a part which no component names."""

    components: tuple[QuotaFilterComponent, ...]
    strict: bool = False


class QuotaValue(msgspec.Struct, frozen=True):
    key: str
    value: float


class DescribedQuotas(msgspec.Struct, frozen=True):
    entity: tuple[QuotaEntity, ...]
    values: tuple[QuotaValue, ...]


class DescribeClientQuotasResponse(msgspec.Struct, frozen=True):
    """`entries` is None beside an error."""

    entries: tuple[DescribedQuotas, ...] | None
    error_code: int = 0
    error_message: str | None = None
    throttle_time_ms: int = 0
