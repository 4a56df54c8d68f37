"""What the sessions of one network process may do, by the rules of the current metadata image.

Without an authorizer everybody may do everything, nobody asks here, and there is no `Rights`.
"""

from __future__ import annotations

from typing import Final

from appliance.access.authorizer import Authorizer
from appliance.cluster import AclBinding
from appliance.config import Settings
from appliance.requests.session import Session
from appliance.requests.topic_routes import TopicRoutes


class Rights:
    """The rules of the newest image. `version` moves with them.

    Args:
        routes: of which the image is taken.
    """

    __slots__ = ("_acls", "_authorizer", "_image_version", "_routes", "_settings", "version")

    def __init__(self, routes: TopicRoutes, settings: Settings) -> None:
        self._routes = routes
        self._settings = settings.access
        self._acls: tuple[AclBinding, ...] = ()
        self._authorizer = self._made()
        self._image_version = -1
        self.version = _FIRST

    def refresh(self) -> None:
        """Go by the rules of the current image from now on; a look at a number while it stands."""
        version = self._routes.version
        if version == self._image_version:
            return
        self._image_version = version
        image = self._routes.image
        acls = () if image is None else image.acls
        if acls is not self._acls:
            self._acls = acls
            self._authorizer = self._made()
            self.version += 1

    def may(self, session: Session, operation: int, resource_type: int, name: str) -> bool:
        """Whether the session's principal may do that to the resource of this name."""
        return self._authorizer.allows(session.principal, session.host, operation, resource_type, name)

    def may_of_any(self, session: Session, operation: int, resource_type: int) -> bool:
        """Whether there may be a resource of this type to which the session's principal may do that."""
        return self._authorizer.allows_any(session.principal, session.host, operation, resource_type)

    def _made(self) -> Authorizer:
        return Authorizer(
            self._acls,
            super_users=self._settings.super_users,
            allow_without_acls=self._settings.allow_without_acls,
        )


_FIRST: Final = 1
