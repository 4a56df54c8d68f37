"""What each admin API was asked to change, and what became of it: resources for the journal.

One function for each API takes the request as the client sent it and the response as the client gets it, and yields the
resources. Values of topic and group settings are recorded; of broker settings only the names, because a value may be a
password. A request that only validates changes nothing and yields nothing.

Left out: commits of offsets by members of a group, which are the daily work of consumers. A tool that resets the
offsets of a group commits as nobody, and so does a consumer in no group: these are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any, Final
from uuid import UUID

from msgspec.structs import replace

from appliance.audit.entry import FAILED, UNKNOWN, Resource, cut, resource
from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_configs import ResourceType as ConfigResourceType

Described = Iterator[Resource]
Describe = Callable[[Any, Any], Described]

TOPIC: Final = "topic"
PARTITION: Final = "partition"
GROUP: Final = "group"
ACL: Final = "acl"
TOKEN: Final = "delegation-token"

_OPERATIONS: Final = {0: "set", 1: "delete", 2: "append", 3: "subtract"}
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_WITH_VALUES: Final = frozenset({int(ConfigResourceType.TOPIC), int(ConfigResourceType.GROUP)})


def create_topics(request: Any, response: Any) -> Described:
    """Partitions, replicas and settings of each topic."""
    if request.validate_only:
        return
    asked = {topic.name: topic for topic in request.topics}
    for result in response.topics:
        topic = asked.get(result.name)
        detail: dict[str, Any] = {"id": _id(result.topic_id)}
        if topic is not None:
            detail["partitions"] = (
                topic.num_partitions if result.num_partitions < 0 else result.num_partitions
            )
            detail["replication_factor"] = (
                topic.replication_factor if result.replication_factor < 0 else result.replication_factor
            )
            detail.update({config.name: config.value for config in topic.configs})
        yield resource(TOPIC, result.name, result.error_code, detail)


def delete_topics(_request: Any, response: Any) -> Described:
    """The name of each topic, and its id where the client named it so."""
    for result in response.responses:
        name = result.name or _id(result.topic_id) or ""
        yield resource(TOPIC, name, result.error_code, {"id": _id(result.topic_id)})


def create_partitions(request: Any, response: Any) -> Described:
    """How many partitions each topic is to have."""
    if request.validate_only:
        return
    counts = {topic.name: topic.count for topic in request.topics}
    for result in response.results:
        yield resource(TOPIC, result.name, result.error_code, {"partitions": counts.get(result.name)})


def delete_records(request: Any, response: Any) -> Described:
    """The offset before which the records of each partition go."""
    offsets = {
        (topic.name, each.partition_index): each.offset
        for topic in request.topics
        for each in topic.partitions
    }
    for topic in response.topics:
        for each in topic.partitions:
            before = offsets.get((topic.name, each.partition_index))
            detail = {
                "before_offset": before,
                "first_offset": None if each.error_code else each.low_watermark,
            }
            yield _partition(topic.name, each.partition_index, each.error_code, detail)


def alter_configs(request: Any, response: Any) -> Described:
    """The settings of each resource; of AlterConfigs all of them, of IncrementalAlterConfigs those that change."""
    if request.validate_only:
        return
    asked = {(each.resource_type, each.resource_name): each.configs for each in request.resources}
    for result in response.responses:
        kind = result.resource_type
        configs = asked.get((kind, result.resource_name), ())
        detail = {config.name: _config(config, with_value=kind in _WITH_VALUES) for config in configs}
        yield resource(_kind(ConfigResourceType, kind), result.resource_name, result.error_code, detail)


def create_acls(request: Any, response: Any) -> Described:
    """Each rule."""
    for creation, result in zip(request.creations, response.results, strict=False):
        yield _acl(creation, creation.resource_pattern_type, creation.permission_type, result.error_code)


def delete_acls(request: Any, response: Any) -> Described:
    """Each rule that was deleted; each filter that found none, or that failed."""
    for wanted, result in zip(request.filters, response.filter_results, strict=False):
        for acl in result.matching_acls:
            yield _acl(acl, acl.pattern_type, acl.permission_type, acl.error_code)
        if result.error_code or not result.matching_acls:
            detail = {
                "filter": "no ACL matches" if not result.error_code else None,
                "resource": wanted.resource_name_filter,
                "principal": wanted.principal_filter,
                "host": wanted.host_filter,
            }
            kind = _kind(ResourceType, wanted.resource_type_filter)
            yield resource(ACL, kind, result.error_code, detail)


def alter_partition_reassignments(request: Any, response: Any) -> Described:
    """The replicas that each partition is to have; `cancel` ends a reassignment."""
    wanted = {
        (topic.name, each.partition_index): each.replicas
        for topic in request.topics
        for each in topic.partitions
    }
    if response.error_code:
        for (name, number), replicas in wanted.items():
            yield _partition(name, number, response.error_code, {"replicas": _replicas(replicas)})
        return
    for topic in response.responses:
        for each in topic.partitions:
            detail = {"replicas": _replicas(wanted.get((topic.name, each.partition_index)))}
            yield _partition(topic.name, each.partition_index, each.error_code, detail)


def elect_leaders(request: Any, response: Any) -> Described:
    """Each partition for which an election was asked for, or took place."""
    detail = {"election": "unclean" if request.election_type else "preferred"}
    if response.error_code and not response.replica_election_results:
        yield resource("cluster", "kafka-cluster", response.error_code, detail)
    for topic in response.replica_election_results:
        for each in topic.partition_result:
            yield _partition(topic.topic, each.partition_id, each.error_code, detail)


def alter_replica_log_dirs(request: Any, response: Any) -> Described:
    """The directory that each replica moves to."""
    paths = {
        (topic.name, number): directory.path
        for directory in request.dirs
        for topic in directory.topics
        for number in topic.partitions
    }
    for topic in response.results:
        for each in topic.partitions:
            detail = {"directory": paths.get((topic.topic_name, each.partition_index))}
            yield _partition(topic.topic_name, each.partition_index, each.error_code, detail)


def update_features(request: Any, response: Any) -> Described:
    """The level of each feature."""
    if request.validate_only:
        return
    errors = {result.feature: result.error_code for result in response.results}
    for update in request.feature_updates:
        code = response.error_code or errors.get(update.feature, 0)
        yield resource("feature", update.feature, code, {"level": update.max_version_level})


def delete_groups(_request: Any, response: Any) -> Described:
    """Each group."""
    for result in response.results:
        yield resource(GROUP, result.group_id, result.error_code)


DAILY: Final = frozenset({int(ApiKey.OFFSET_COMMIT)})
"""APIs of CHANGES for which no administrator's rights are needed."""


def is_daily_work(api_key: int, request: Any) -> bool:
    """Return whether a request of an API of CHANGES is none of an administrator.

    A commit without a generation is none of a member, whatever member id it names: the coordinator looks at the id only
    while the group has members.
    """
    return bool(api_key == ApiKey.OFFSET_COMMIT and request.generation_id_or_member_epoch >= 0)


def offset_commit(request: Any, response: Any) -> Described:
    """The offset that the group has in each partition from then on."""
    offsets = {
        (topic.name or topic.topic_id, each.partition_index): each.committed_offset
        for topic in request.topics
        for each in topic.partitions
    }
    for topic in response.topics:
        for each in topic.partitions:
            offset = offsets.get((topic.name or topic.topic_id, each.partition_index))
            detail = {"group": request.group_id, "offset": offset}
            name = topic.name or str(topic.topic_id)
            yield _partition(name, each.partition_index, each.error_code, detail)


def offset_delete(request: Any, response: Any) -> Described:
    """Each partition of which the group's offset goes."""
    if response.error_code:
        yield resource(GROUP, request.group_id, response.error_code)
        return
    for topic in response.topics:
        for each in topic.partitions:
            detail = {"group": request.group_id}
            yield _partition(topic.name, each.partition_index, each.error_code, detail)


def write_txn_markers(request: Any, response: Any) -> Described:
    """Each partition in which a transaction was ended from outside."""
    outcomes = {marker.producer_id: marker.transaction_result for marker in request.markers}
    for marker in response.markers:
        outcome = "commit" if outcomes.get(marker.producer_id) else "abort"
        for topic in marker.topics:
            for each in topic.partitions:
                detail = {"producer_id": marker.producer_id, "marker": outcome}
                yield _partition(topic.name, each.partition_index, each.error_code, detail)


def alter_client_quotas(request: Any, response: Any) -> Described:
    """The quotas of each entity.

    An entity that is named twice is answered with an error although its first alteration may have taken place.
    """
    if request.validate_only:
        return
    asked: dict[frozenset[tuple[str, str | None]], Any] = {}
    twice = set()
    for each in request.entries:
        entity = _parts(each.entity)
        if entity in asked:
            twice.add(entity)
        else:
            asked[entity] = each.ops
    for result in response.entries:
        entity = _parts(result.entity)
        detail = {each.key: "remove" if each.remove else repr(each.value) for each in asked.get(entity, ())}
        told = resource("quota", _entity(result.entity), result.error_code, detail)
        yield replace(told, result=UNKNOWN) if entity in twice and told.result == FAILED else told


def alter_user_scram_credentials(request: Any, response: Any) -> Described:
    """Each user, and what became of which of its credentials; nothing of the credentials themselves."""
    changes: dict[str, dict[str, str | int | None]] = {}
    for operation, credentials in (("delete", request.deletions), ("set", request.upsertions)):
        for each in credentials:
            changes.setdefault(each.name, {})[_MECHANISMS.get(each.mechanism, str(each.mechanism))] = (
                operation
            )
    for result in response.results:
        yield resource("user", result.user, result.error_code, changes.get(result.user))


def create_delegation_token(request: Any, response: Any) -> Described:
    """The token's id, its owner, who may renew it, and how long; nothing of its password."""
    detail: dict[str, str | int | None] = {
        "owner": f"{response.principal_type}:{response.principal_name}",
        "renewers": ",".join(f"{each.principal_type}:{each.principal_name}" for each in request.renewers)
        or None,
    }
    if not response.error_code:
        detail |= {"until": response.max_timestamp_ms, "fingerprint": _fingerprint(response.hmac)}
    yield resource(TOKEN, response.token_id, response.error_code, detail)


def renew_delegation_token(request: Any, response: Any) -> Described:
    """Until when the token lives. The request names it by its password, and the journal by a fingerprint of that."""
    until_ms = None if response.error_code else response.expiry_timestamp_ms
    yield resource(TOKEN, _fingerprint(request.hmac), response.error_code, {"until": until_ms})


def expire_delegation_token(request: Any, response: Any) -> Described:
    """As `renew_delegation_token`."""
    until_ms = None if response.error_code else response.expiry_timestamp_ms
    yield resource(TOKEN, _fingerprint(request.hmac), response.error_code, {"until": until_ms})


CHANGES: Final[Mapping[ApiKey, Describe]] = {
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: alter_configs,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
    ApiKey.UPDATE_FEATURES: update_features,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_DELETE: offset_delete,
    ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
    ApiKey.CREATE_DELEGATION_TOKEN: create_delegation_token,
    ApiKey.RENEW_DELEGATION_TOKEN: renew_delegation_token,
    ApiKey.EXPIRE_DELEGATION_TOKEN: expire_delegation_token,
}
"""A test holds the keys against the served APIs that need ALTER, ALTER_CONFIGS, CREATE or DELETE, and tokens' APIs."""


_NAMING: Final = (
    "topics",
    "topic_partitions",
    "resources",
    "creations",
    "filters",
    "groups_names",
    "feature_updates",
    "dirs",
    "markers",
    "entries",
    "deletions",
    "upsertions",
    "renewers",
)
"""Fields of requests that have the things to be changed, and fields of such a thing that name it."""
_NAMES: Final = (
    "name",
    "topic",
    "resource_name",
    "resource_name_filter",
    "feature",
    "path",
    "topic_id",
    "producer_id",
    "principal_name",
)


def named(request: Any) -> Described:
    """Yield what a request would change, for a request whose outcome is unknown."""
    if getattr(request, "validate_only", False):
        return
    if isinstance(hmac := getattr(request, "hmac", None), bytes):
        yield Resource(TOKEN, _fingerprint(hmac), UNKNOWN)
    for field in _NAMING:
        for each in getattr(request, field, None) or ():
            if isinstance(each, str):
                names: list[object] = [each]
            elif field == "entries":
                names = [_entity(each.entity)]
            else:
                names = [getattr(each, name, None) for name in _NAMES]
            name = next((str(name) for name in names if name is not None), "")
            yield Resource(field.replace("_", "-"), cut(name), UNKNOWN)


def _parts(entity: Any) -> frozenset[tuple[str, str | None]]:
    """Return what makes two entities the same: of a part that is named twice the last name counts."""
    return frozenset({each.entity_type: each.entity_name for each in entity}.items())


def _entity(parts: Any) -> str:
    """Return the entity of a quota: `user=alice,client-id=<default>`."""
    return ",".join(
        f"{each.entity_type}={'<default>' if each.entity_name is None else each.entity_name}"
        for each in parts
    )


def _partition(topic: str, number: int, code: int, detail: Mapping[str, str | int | None]) -> Resource:
    return resource(PARTITION, f"{topic}-{number}", code, detail)


def _config(config: Any, *, with_value: bool) -> str:
    operation = _OPERATIONS.get(getattr(config, "config_operation", 0), "unknown")
    return f"{operation} {config.value}" if with_value and config.value is not None else operation


def _acl(acl: Any, pattern: int, permission: int, code: int) -> Resource:
    detail = {
        "resource_type": _kind(ResourceType, acl.resource_type),
        "pattern": _kind(PatternType, pattern),
        "principal": acl.principal,
        "host": acl.host,
        "operation": _kind(AclOperation, acl.operation),
        "permission": _kind(AclPermission, permission),
    }
    return resource(ACL, acl.resource_name, code, detail)


def _fingerprint(hmac: bytes) -> str:
    """Return what tells the password of one token from another's, and does not show it."""
    import hashlib  # OpenSSL is loaded with it

    return hashlib.sha256(hmac).hexdigest()[:16]


def _kind(enum: type[IntEnum], number: int) -> str:
    """Return the number's name, such as `transactional-id`."""
    try:
        return enum(number).name.lower().replace("_", "-")
    except ValueError:
        return str(number)


def _id(topic_id: UUID | None) -> str | None:
    return None if topic_id is None or not topic_id.int else str(topic_id)


def _replicas(replicas: tuple[int, ...] | None) -> str:
    return "cancel" if replicas is None else ",".join(map(str, replicas))
