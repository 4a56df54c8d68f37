"""Which rules a filter of DescribeAcls or DeleteAcls means.

Source: Kafka's `ResourcePatternFilter.java` and `AccessControlEntryFilter.java`, release 4.3.
"""

from __future__ import annotations

import msgspec

from appliance.access.addresses import one_spelling
from appliance.cluster import AclBinding
from appliance.protocol.acl import WILDCARD, AclOperation, AclPermission, PatternType, ResourceType


class AclFilter(msgspec.Struct, frozen=True):
    """None, or the number for ANY, leaves that part open. Each spelling of a host finds the rules with any other."""

    resource_type: int = int(ResourceType.ANY)
    resource_name: str | None = None
    pattern_type: int = int(PatternType.ANY)
    principal: str | None = None
    host: str | None = None
    operation: int = int(AclOperation.ANY)
    permission: int = int(AclPermission.ANY)

    def matches(self, acl: AclBinding) -> bool:
        """Whether the filter means this rule."""
        return (
            self.resource_type in (ResourceType.ANY, acl.resource_type)
            and self._matches_name(acl)
            and self.principal in (None, acl.principal)
            and (self.host is None or one_spelling(self.host) == one_spelling(acl.host))
            and self.operation in (AclOperation.ANY, acl.operation)
            and self.permission in (AclPermission.ANY, acl.permission)
        )

    def _matches_name(self, acl: AclBinding) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, acl.pattern_type):
            return False
        name = self.resource_name
        if name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, WILDCARD)
