"""What becomes of a request to alter quotas: Kafka's checks, Kafka's error codes, nothing done yet.

| refused with | when |
|---|---|
| INVALID_REQUEST | an entity without a part, with an unknown part or an empty name; an ip with something beside it |
| INVALID_REQUEST | an ip that is no address; a key that such an entity does not have |
| INVALID_REQUEST | a value that is not above 0; a fraction or too large a value where the key wants a whole number |
| INVALID_REQUEST | a key twice; an entity twice (the first of the two counts) |
| POLICY_VIOLATION | quotas for more than 10,000 entities: every process holds them all |

Pure. Source: Kafka's `ClientQuotaControlManager.java`, release 4.3. Where we differ: a host name is no ip (Kafka asks
its name server), and what is not a finite number is refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

from appliance.access.client_quotas import (
    CLIENT_ID,
    ENTITY_TYPES,
    IP,
    IP_KEYS,
    USER,
    USER_KEYS,
    entity_of,
)
from appliance.channels.control_channel import AlteredQuotas
from appliance.cluster import QuotaEntity
from appliance.errors import RejectedRequest
from appliance.protocol.errors import ErrorCode

ENTITIES_MAX: Final = 10_000
_FRACTION: Final = 1e-6
"""What a whole number may be off, because it comes as a floating-point number."""


def check_entity(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity of these parts: type → name, None for the default.

    Raises:
        RejectedRequest: as the table above says.
    """
    if not parts:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind[:200]}")
        if name is not None and not name:
            raise _invalid(f"Empty {kind} not supported")
    if IP in parts:
        if USER in parts or CLIENT_ID in parts:
            raise _invalid(
                "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
            )
        address = parts[IP]
        if address is not None and not _is_address(address):
            raise _invalid(f"{address[:200]} is not a valid IP or resolvable host.")
    return entity_of(parts)


def plan_quotas(
    asked: AlteredQuotas, entity: QuotaEntity, before: Mapping[str, float], *, count: int
) -> dict[str, float]:
    """Return all quotas that the entity will have. `count`: how many entities have some.

    Raises:
        RejectedRequest: as the table above says.
    """
    changes: dict[str, float | None] = {}
    for change in asked.changes:
        if change.key in changes:
            raise _invalid(f"Duplicate quota key {change.key[:200]}")
        changes[change.key] = change.value
    keys = USER_KEYS if entity.ip is None else IP_KEYS
    after = dict(before)
    for key, value in changes.items():
        if value is None:
            after.pop(key, None)
            continue
        _check_value(keys, key, value)
        after[key] = value
    if after and not before and count >= ENTITIES_MAX:
        raise RejectedRequest(ErrorCode.POLICY_VIOLATION, f"{ENTITIES_MAX} entities have quotas already.")
    return after


def _check_value(keys: Mapping[str, int | None], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"Invalid configuration key {key[:200]}")
    if not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    maximum = keys[key]
    # As Kafka compares: the largest number is a little too large as a floating-point number, and fits.
    if maximum is not None and value > float(maximum):
        raise _invalid(f"Proposed value for {key} is too large: at most {maximum}.")
    if not math.isfinite(value):
        raise _invalid(f"{key} must be a finite number.")
    if maximum is not None and value % 1.0 > _FRACTION:
        raise _invalid(f"{key} cannot be a fractional value.")


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _invalid(message: str) -> RejectedRequest:
    return RejectedRequest(ErrorCode.INVALID_REQUEST, message)
