"""Rules in the metadata store, where Kafka had them in ZooKeeper: a node for each resource.

As in `topic_store`, each function makes operations for one `multi`, behind the controller's fence.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from appliance.cluster import AclBinding
from appliance.control.store.metadata_store import Create, Delete, MetadataStore, Operation, SetData
from appliance.control.store.znode_tree import (
    LITERAL_ACLS,
    PREFIXED_ACLS,
    AclRecord,
    AclsRecord,
    acl_path,
    decode,
    encode,
    resource_of_node,
)
from appliance.errors import CorruptFile
from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType

_FIELDS_BYTES: Final = 96
"""Of a rule in its node: names of fields, permission and operation."""

Resource = tuple[int, int, str]
"""Resource type, pattern type and name: what a node is for."""

_TYPES: Final = {each.spelled: each for each in ResourceType if each > ResourceType.ANY}
_OPERATIONS: Final = {each.spelled: each for each in AclOperation if each > AclOperation.ANY}
_PERMISSIONS: Final = {each.spelled: each for each in AclPermission if each > AclPermission.ANY}
_ROOTS: Final = {PatternType.LITERAL: LITERAL_ACLS, PatternType.PREFIXED: PREFIXED_ACLS}


def resource_of(acl: AclBinding) -> Resource:
    """What the rule is about."""
    return (acl.resource_type, acl.pattern_type, acl.resource_name)


def load_acls(store: MetadataStore) -> dict[Resource, frozenset[AclBinding]]:
    """The rules of every resource that has some. Raises CorruptFile where a node holds something else."""
    acls: dict[Resource, frozenset[AclBinding]] = {}
    for pattern, root in _ROOTS.items():
        for spelled in sorted(set(store.children(root)) & _TYPES.keys()):
            folder = f"{root}/{spelled}"
            nodes = store.get_many(f"{folder}/{name}" for name in store.children(folder))
            for path, node in nodes.items():
                name = resource_of_node(path.rpartition("/")[2])
                resource = (int(_TYPES[spelled]), int(pattern), name)
                records = decode(AclsRecord, node.data, path=path).acls
                acls[resource] = frozenset(_binding(resource, record, path) for record in records)
    return acls


def acl_alteration(
    resource: Resource, acls: Collection[AclBinding], *, is_new: bool, has_folder: bool
) -> list[Operation]:
    """Makes `acls` all the rules of a resource; a resource without rules has no node. `is_new` where it had none;
    `has_folder` where its type and pattern ever had some.
    """
    kind, pattern, name = resource
    folder = f"{_ROOTS[PatternType(pattern)]}/{ResourceType(kind).spelled}"
    path = acl_path(folder, name)
    if not acls:
        return [Delete(path)]
    data = encode(AclsRecord(tuple(map(_record, sorted(acls)))))
    if not is_new:
        return [SetData(path, data)]
    made: list[Operation] = [] if has_folder else [Create(folder)]
    return [*made, Create(path, data)]


def written_bytes(acl: AclBinding) -> int:
    """Return how many bytes a rule has in its node, at most."""
    return len(encode((acl.principal, acl.host))) + _FIELDS_BYTES


def folders(store: MetadataStore) -> set[tuple[int, int]]:
    """(resource type, pattern type) of the folders that exist."""
    return {
        (int(_TYPES[spelled]), int(pattern))
        for pattern, root in _ROOTS.items()
        for spelled in store.children(root)
        if spelled in _TYPES
    }


def all_of(acls: Iterable[frozenset[AclBinding]]) -> tuple[AclBinding, ...]:
    """Every rule, in order."""
    return tuple(sorted(acl for some in acls for acl in some))


def _record(acl: AclBinding) -> AclRecord:
    return AclRecord(
        principal=acl.principal,
        permission=AclPermission(acl.permission).spelled,
        operation=AclOperation(acl.operation).spelled,
        host=acl.host,
    )


def _binding(resource: Resource, record: AclRecord, path: str) -> AclBinding:
    operation, permission = _OPERATIONS.get(record.operation), _PERMISSIONS.get(record.permission)
    if operation is None or permission is None:
        raise CorruptFile(
            f"metadata node {path}: {record.permission!r} {record.operation!r} is no permission and operation"
        )
    kind, pattern, name = resource
    return AclBinding(kind, name, pattern, record.principal, record.host, int(operation), int(permission))
