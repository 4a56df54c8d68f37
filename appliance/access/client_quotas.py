"""Which quota counts for a client, and which clients share it (KIP-13, KIP-124, KIP-546, KIP-599, KIP-612).

The first of these entities that has a quota of the wanted key decides:

    entity                              its budget is shared by
    user, client id                     that user's sessions with that client id
    user, default client id             the same
    user                                that user's sessions
    default user, client id             one user's sessions with that client id
    default user, default client id     one user's sessions with one client id
    default user                        one user's sessions
    client id                           all sessions with that client id
    default client id                   all sessions with one client id

A session that gives no client id has the empty one, which only a default limits. (Apache Kafka limits it by the user
alone.)

Pure. Source: Kafka's `ClientQuotaManager.DefaultQuotaCallback`, release 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from appliance.access.addresses import one_spelling
from appliance.cluster import ClientQuotas, QuotaEntity

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = frozenset({USER, CLIENT_ID, IP})
"""The parts of an entity, as the wire names them."""

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

USER_KEYS: Final[Mapping[str, int | None]] = {
    PRODUCER_BYTE_RATE: INT64_MAX,
    CONSUMER_BYTE_RATE: INT64_MAX,
    REQUEST_PERCENTAGE: None,
    CONTROLLER_MUTATION_RATE: None,
}
"""Keys of entities with a user or a client id. A key with a maximum takes whole numbers only."""
IP_KEYS: Final[Mapping[str, int | None]] = {CONNECTION_CREATION_RATE: INT32_MAX}
"""Keys of entities with an ip."""

DEFAULT: Final = ""
"""The name of a default in a `QuotaEntity`."""

_ANY: Final = None


class Budget(NamedTuple):
    """What counts for a client: at most `bound` in a second, for all clients of the same `user` and `client_id`.

    A part of the two is "" where the budget does not look at it.
    """

    bound: float
    user: str
    client_id: str


class QuotaRules:
    """The quotas of one key, as they were when it was made."""

    __slots__ = ("_bounds", "key")

    def __init__(self, key: str, quotas: Iterable[ClientQuotas]) -> None:
        self.key = key
        self._bounds: dict[tuple[str | None, str | None], float] = {
            (each.entity.user, each.entity.client_id): bound
            for each in quotas
            if each.entity.ip is None and (bound := each.values.get(key)) is not None
        }

    def __bool__(self) -> bool:
        return bool(self._bounds)

    def budget(self, user: str, client_id: str) -> Budget | None:
        """Return what counts for a client; None where nothing limits it. Running time: at most eight look-ups."""
        bounds = self._bounds
        for user_part, client_part, shares_user, shares_client in (
            (user, client_id, user, client_id),
            (user, DEFAULT, user, client_id),
            (user, _ANY, user, ""),
            (DEFAULT, client_id, user, client_id),
            (DEFAULT, DEFAULT, user, client_id),
            (DEFAULT, _ANY, user, ""),
            (_ANY, client_id, "", client_id),
            (_ANY, DEFAULT, "", client_id),
        ):
            bound = bounds.get((user_part, client_part))
            if bound is not None:
                return Budget(bound, shares_user, shares_client)
        return None


class IpRates:
    """How many connections a second an address may open. A quota may spell its address in any way."""

    __slots__ = ("_bounds", "_default")

    def __init__(self, quotas: Iterable[ClientQuotas]) -> None:
        self._bounds = {
            one_spelling(each.entity.ip): bound
            for each in quotas
            if each.entity.ip is not None and (bound := each.values.get(CONNECTION_CREATION_RATE)) is not None
        }
        self._default = self._bounds.pop(DEFAULT, None)

    def __bool__(self) -> bool:
        return bool(self._bounds) or self._default is not None

    def bound(self, host: str) -> float | None:
        """Return the rate of an address in the spelling of `addresses`; None where nothing limits it."""
        return self._bounds.get(host, self._default)


def user_of(principal: str) -> str:
    """Return the name that quotas know a principal by."""
    return principal.partition(":")[2]


def entity_of(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity of checked parts: type on the wire → name, None for the default."""

    def part(kind: str) -> str | None:
        return (parts[kind] or DEFAULT) if kind in parts else None

    return QuotaEntity(part(USER), part(CLIENT_ID), part(IP))


def parts_of(entity: QuotaEntity) -> dict[str, str | None]:
    """Return the parts of an entity as the wire has them."""
    named = ((USER, entity.user), (CLIENT_ID, entity.client_id), (IP, entity.ip))
    return {kind: name or None for kind, name in named if name is not None}
