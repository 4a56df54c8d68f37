"""Kafka's numbers for what an access rule names: a type of resource, a pattern of names, an operation, a permission.

Source: `ResourceType.java` and `PatternType.java` in `clients/src/main/java/org/apache/kafka/common/resource/`,
`AclOperation.java` and `AclPermissionType.java` in `…/common/acl/`.
"""

from __future__ import annotations

from enum import IntEnum


class _Spelled(IntEnum):
    @property
    def spelled(self) -> str:
        """The name as Kafka's tools and its tree in ZooKeeper write it: `TransactionalId`, `DescribeConfigs`."""
        return self.name.title().replace("_", "")


class ResourceType(_Spelled):
    """What an operation is done to."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclOperation(_Spelled):
    """What is done. As a bit (`1 << operation`) in a response's authorized operations (KIP-430)."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class PatternType(_Spelled):
    """Which names a rule is for. ANY and MATCH stand in filters only: ANY is every rule with that name, MATCH every
    rule that applies to a resource of that name.
    """

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class AclPermission(_Spelled):
    """Whether a rule denies or allows."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


WILDCARD = "*"
"""Every resource of its type in a literal pattern; every host. Source: `ResourcePattern.WILDCARD_RESOURCE`."""
ANY_PRINCIPAL = "User:*"
CLUSTER_NAME = "kafka-cluster"
"""The only name of a resource of type CLUSTER. Source: `Resource.CLUSTER_NAME`."""
