"""What a guard sees, and what it says.

A guard takes the decoded request and who sends it, and says

    None        everything in it is allowed
    Refused     this is the whole answer
    Narrowed    serve this request instead, and let `amend` add to the response what was taken out of the request

A guard is a generator (`requests.steps`): a request may name 100,000 things.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from appliance.protocol.acl import CLUSTER_NAME, AclOperation, ResourceType
from appliance.requests.rights import Rights
from appliance.requests.session import Session
from appliance.requests.steps import Steps
from appliance.requests.topic_routes import TopicRoutes

T = TypeVar("T")

DENIED_MAX = 1_000
"""Denials of one request that are noted."""
_PIECE = 64


Denial = tuple[AclOperation, ResourceType, str]
"""The operation, and the type and the name of the resource."""


class Caller:
    """Who sends the request, and what he may do.

    `may` notes what it denies, for the audit journal, in `denied` until that becomes None. `might` notes nothing: it is
    for what the request does not name, and where another operation would do.
    """

    __slots__ = ("_rights", "_routes", "_session", "denied", "version")

    def __init__(self, session: Session, version: int, rights: Rights, routes: TopicRoutes) -> None:
        self._session = session
        self._rights = rights
        self._routes = routes
        self.version = version
        self.denied: list[Denial] | None = []

    def may(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """Whether the session's principal may do that to the resource of this name."""
        if self._rights.may(self._session, operation, resource_type, name):
            return True
        if self.denied is not None and len(self.denied) < DENIED_MAX:
            self.denied.append((operation, resource_type, name))
        return False

    def might(self, operation: AclOperation, resource_type: ResourceType, name: str) -> bool:
        """`may`, and the journal does not hear of it."""
        return self._rights.may(self._session, operation, resource_type, name)

    def may_of_cluster(self, operation: AclOperation) -> bool:
        """`may`, of the cluster."""
        return self.may(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def might_of_cluster(self, operation: AclOperation) -> bool:
        """`might`, of the cluster."""
        return self.might(operation, ResourceType.CLUSTER, CLUSTER_NAME)

    def may_of_any(self, operation: AclOperation, resource_type: ResourceType) -> bool:
        """Whether there may be a resource of the type to which the session's principal may do that."""
        return self._rights.may_of_any(self._session, operation, resource_type)

    def named(self, topic: Any) -> str | None:
        """The name of a topic that a request names by `name`, or by `topic_id`; None where no topic has the id."""
        if topic.name:
            return str(topic.name)
        return self.name_of(topic.topic_id)

    def name_of(self, topic_id: UUID) -> str | None:
        """The name of the topic with an id; None where there is none."""
        route = self._routes.by_id(topic_id)
        return None if route is None else route.image.name

    def exists(self, topic: str) -> bool:
        """Whether there is a topic of this name."""
        return self._routes.by_name(topic) is not None

    def has_partition(self, topic: str, partition: int) -> bool:
        """Whether there is a partition of this topic with this number."""
        route = self._routes.by_name(topic)
        return route is not None and route.partition(partition) is not None

    def split(
        self, items: Iterable[T], is_allowed: Callable[[T], bool]
    ) -> Steps[tuple[tuple[T, ...], tuple[T, ...]]]:
        """The items that are allowed, and those that are not."""
        allowed: list[T] = []
        denied: list[T] = []
        for number, item in enumerate(items, 1):
            (allowed if is_allowed(item) else denied).append(item)
            if not number % _PIECE:
                yield None
        return tuple(allowed), tuple(denied)


class Refused(NamedTuple):
    response: Any


class Narrowed(NamedTuple):
    """`amend` takes the response to `request`, and returns the one for the client."""

    request: Any
    amend: Callable[[Any], Any]


Verdict = Refused | Narrowed | None
Guard = Callable[[Any, Caller], Steps[Verdict]]
