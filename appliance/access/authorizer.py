"""The decision: may this principal, from this host, do this to that resource?

    super user                                                  allowed
    a rule denies                                               denied
    a rule allows                                               allowed
    no rule of any principal covers the resource                as `allow.everyone.if.no.acl.found` says
    else                                                        denied

A rule covers a resource by its name, by the name `*`, or by a prefix of its name. It counts for its principal or for
`User:*`, for its host or for `*`, and for its operation or for ALL. A rule that *allows* READ, WRITE, DELETE or ALTER
also allows DESCRIBE, and one that allows ALTER_CONFIGS also allows DESCRIBE_CONFIGS. A denial implies nothing.

Pure. An `Authorizer` never changes: when the rules change, another one takes its place, so what it remembers of its
decisions is never old. A decision that it remembers is one look into a dictionary.

Source: Kafka's `StandardAuthorizerData.java` and `Authorizer.java` (`authorizeByResourceType`), release 4.3.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace
from sortedcontainers import SortedList

from appliance.access.addresses import one_spelling
from appliance.cluster import AclBinding
from appliance.protocol.acl import (
    ANY_PRINCIPAL,
    WILDCARD,
    AclOperation,
    AclPermission,
    PatternType,
)

DECISIONS_MAX: Final = 20_000
"""Remembered decisions; with the next one all are forgotten. A client chooses names, so it could ask for many."""

_DENY: Final = int(AclPermission.DENY)
_PREFIXED: Final = int(PatternType.PREFIXED)
_ALL: Final = int(AclOperation.ALL)
_IMPLIES: Final = {
    int(AclOperation.DESCRIBE): frozenset(
        map(int, (AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER))
    ),
    int(AclOperation.DESCRIBE_CONFIGS): frozenset({int(AclOperation.ALTER_CONFIGS)}),
}
_NONE: Final[frozenset[int]] = frozenset()

_Decision = tuple[str, str, int, int, str]


class _Rules:
    """The rules of one type of resource: by literal name, and by prefix in the order of the text."""

    __slots__ = ("by_name", "by_prefix", "prefixes")

    def __init__(self) -> None:
        self.by_name: dict[str, list[AclBinding]] = {}
        self.by_prefix: dict[str, list[AclBinding]] = {}
        self.prefixes: SortedList = SortedList()

    def add(self, acl: AclBinding) -> None:
        if acl.pattern_type == _PREFIXED:
            if acl.resource_name not in self.by_prefix:
                self.prefixes.add(acl.resource_name)
            self.by_prefix.setdefault(acl.resource_name, []).append(acl)
        else:
            self.by_name.setdefault(acl.resource_name, []).append(acl)

    def covering(self, name: str) -> Iterable[AclBinding]:
        """Every rule whose pattern covers `name`."""
        yield from self.by_name.get(name, ())
        if name != WILDCARD:
            yield from self.by_name.get(WILDCARD, ())
        for prefix in self._prefixes_of(name):
            yield from self.by_prefix[prefix]

    def _prefixes_of(self, name: str) -> Iterable[str]:
        """The prefixes that `name` begins with, longest first.

        The greatest prefix that is not above `name` is one, or shares its beginning with every other one: what both
        share is the longest text that can still be one. So there is one look for each prefix found, and some between.
        """
        prefixes = self.prefixes
        bound = name
        while True:
            at = prefixes.bisect_right(bound)
            if not at:
                return
            found: str = prefixes[at - 1]
            if name.startswith(found):
                yield found
                if not found:
                    return
                bound = found[:-1]
            else:
                bound = found[: _shared(found, bound)]

    def all(self) -> Iterable[AclBinding]:
        for some in (*self.by_name.values(), *self.by_prefix.values()):
            yield from some


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return number
    return min(len(one), len(other))


class Authorizer:
    """What these rules say. A `host` that is asked about is spelled as `addresses.one_spelling` does.

    Args:
        super_users: principals that may do everything, as `User:alice`.
        allow_without_acls: whether everybody may do everything to a resource that no rule covers.
    """

    __slots__ = ("_allow_without_acls", "_decisions", "_rules", "_super_users")

    def __init__(
        self, acls: Iterable[AclBinding], *, super_users: frozenset[str], allow_without_acls: bool
    ) -> None:
        self._super_users = super_users
        self._allow_without_acls = allow_without_acls
        self._rules: dict[int, _Rules] = {}
        for acl in acls:
            host = one_spelling(acl.host)
            compared = acl if host == acl.host else replace(acl, host=host)
            self._rules.setdefault(acl.resource_type, _Rules()).add(compared)
        self._decisions: dict[_Decision, bool] = {}

    def allows(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        """Whether the principal may do that to the resource of this name."""
        key = (principal, host, operation, resource_type, name)
        decision = self._decisions.get(key)
        if decision is None:
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            decision = self._decisions[key] = self._decide(*key)
        return decision

    def allows_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether there may be a resource of this type to which the principal may do that."""
        # Any name will do: it finds super users, and those who may where no rule is.
        if self.allows(principal, host, operation, resource_type, "hardcode"):
            return True
        rules = self._rules.get(resource_type)
        if rules is None:
            return False
        wildcard = False
        allowed: list[AclBinding] = []
        denied: set[tuple[str, int]] = set()
        for acl in rules.all():
            if (
                acl.host not in (host, WILDCARD)
                or acl.principal not in (principal, ANY_PRINCIPAL)
                or acl.operation not in (operation, _ALL)
            ):
                continue
            everything = acl.pattern_type != _PREFIXED and acl.resource_name == WILDCARD
            if acl.permission == _DENY:
                if everything:
                    return False
                denied.add((acl.resource_name, acl.pattern_type))
            elif everything:
                wildcard = True
            else:
                allowed.append(acl)
        return wildcard or any(not _is_denied(acl, denied) for acl in allowed)

    def _decide(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        if principal in self._super_users:
            return True
        rules = self._rules.get(resource_type)
        implied_by = _IMPLIES.get(operation, _NONE)
        covered = allowed = False
        for acl in rules.covering(name) if rules is not None else ():
            covered = True
            if acl.principal not in (principal, ANY_PRINCIPAL) or acl.host not in (host, WILDCARD):
                continue
            named = acl.operation in (operation, _ALL)
            if acl.permission == _DENY:
                if named:
                    return False
            elif named or acl.operation in implied_by:
                allowed = True
        return allowed if covered else self._allow_without_acls


def _is_denied(acl: AclBinding, denied: set[tuple[str, int]]) -> bool:
    """Whether every resource that the rule allows is denied by a literal name or by a prefix of its pattern."""
    name = acl.resource_name
    if acl.pattern_type != _PREFIXED and (name, acl.pattern_type) in denied:
        return True
    return any((name[:length], _PREFIXED) in denied for length in range(1, len(name) + 1))
