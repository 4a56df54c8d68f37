"""AlterClientQuotas (49), versions 0-1: set or remove quotas of entities (KIP-546). The versions differ in encoding."""

from __future__ import annotations

import msgspec


class QuotaEntity(msgspec.Struct, frozen=True):
    """A part of an entity: its type (`user`, `client-id` or `ip`) and its name. None is the default of the type."""

    entity_type: str
    entity_name: str | None


class QuotaOperation(msgspec.Struct, frozen=True):
    """Set a quota to `value`, or remove it."""

    key: str
    value: float = 0.0
    remove: bool = False


class QuotaAlteration(msgspec.Struct, frozen=True):
    entity: tuple[QuotaEntity, ...]
    ops: tuple[QuotaOperation, ...]


class AlterClientQuotasRequest(msgspec.Struct, frozen=True):
    entries: tuple[QuotaAlteration, ...]
    validate_only: bool = False


class QuotaAlterationResult(msgspec.Struct, frozen=True):
    entity: tuple[QuotaEntity, ...]
    error_code: int = 0
    error_message: str | None = None


class AlterClientQuotasResponse(msgspec.Struct, frozen=True):
    """`entries`: one for each entity that the request names."""

    entries: tuple[QuotaAlterationResult, ...]
    throttle_time_ms: int = 0
