"""Kafka's numbers for what an access rule names: a type of resource, and an operation on it.

Source: `clients/src/main/java/org/apache/kafka/common/resource/ResourceType.java` and `…/acl/AclOperation.java`.
"""

from __future__ import annotations

from enum import IntEnum


class ResourceType(IntEnum):
    """What an operation is done to."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclOperation(IntEnum):
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
