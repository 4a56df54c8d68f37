"""Which APIs are served, who answers them, what they need, and which quota they count against: one row for each key.

    scope         who answers                                         handler
    LOCAL         this process, from the metadata image and settings  a function (request, view) → response, or Steps
    CONTROLLER    the controller; this process asks it (`steps.Ask`)  the same
    PARTITION     the workers that own the partitions                 a class, one object for each network process
    COORDINATOR   the coordinator, which reads the frame itself       none here

To serve one more API: a row here, its handler in a file of its own, and its shapes in `protocol/apis/` with SERVED in
`protocol/api_versions.py` (see the README of `protocol`).

A key has one scope, unless its row has a `route`, which looks at the request: InitProducerId with a transactional id is
for a coordinator, and without one for the controller, which gives out producer ids. TxnOffsetCommit is for the group's
coordinator, behind a question to the transaction's (`transactional_commits`).

`acl` names what Apache Kafka 4.3 checks first, and leaves the request without an effect if it is denied
(`KafkaApis.scala`, `ControllerApis.scala`); ResourceType.ANY stands for what the request names. `guards` checks it,
and the rest, where an authorizer is configured. `throttled` names the quota beside the processor time (`meter`).
The same part in Apache Kafka: the `match` of `KafkaApis.handle`.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from appliance.protocol.acl import AclOperation, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.group_requests import has_transactional_id
from appliance.requests.local_handlers.alter_client_quotas import alter_client_quotas
from appliance.requests.local_handlers.alter_configs import alter_configs
from appliance.requests.local_handlers.alter_partition_reassignments import alter_partition_reassignments
from appliance.requests.local_handlers.alter_user_scram_credentials import alter_user_scram_credentials
from appliance.requests.local_handlers.api_versions import api_versions
from appliance.requests.local_handlers.create_acls import create_acls
from appliance.requests.local_handlers.create_delegation_token import create_delegation_token
from appliance.requests.local_handlers.create_partitions import create_partitions
from appliance.requests.local_handlers.create_topics import create_topics
from appliance.requests.local_handlers.delete_acls import delete_acls
from appliance.requests.local_handlers.delete_topics import delete_topics
from appliance.requests.local_handlers.describe_acls import describe_acls
from appliance.requests.local_handlers.describe_client_quotas import describe_client_quotas
from appliance.requests.local_handlers.describe_cluster import describe_cluster
from appliance.requests.local_handlers.describe_configs import describe_configs
from appliance.requests.local_handlers.describe_delegation_token import describe_delegation_token
from appliance.requests.local_handlers.describe_quorum import describe_quorum
from appliance.requests.local_handlers.describe_topic_partitions import describe_topic_partitions
from appliance.requests.local_handlers.describe_user_scram_credentials import describe_user_scram_credentials
from appliance.requests.local_handlers.elect_leaders import elect_leaders
from appliance.requests.local_handlers.expire_delegation_token import expire_delegation_token
from appliance.requests.local_handlers.find_coordinator import find_coordinator
from appliance.requests.local_handlers.get_telemetry_subscriptions import get_telemetry_subscriptions
from appliance.requests.local_handlers.incremental_alter_configs import incremental_alter_configs
from appliance.requests.local_handlers.init_producer_id import init_producer_id
from appliance.requests.local_handlers.list_config_resources import list_config_resources
from appliance.requests.local_handlers.list_partition_reassignments import list_partition_reassignments
from appliance.requests.local_handlers.metadata import metadata
from appliance.requests.local_handlers.push_telemetry import push_telemetry
from appliance.requests.local_handlers.renew_delegation_token import renew_delegation_token
from appliance.requests.local_handlers.sasl_authenticate import sasl_authenticate
from appliance.requests.local_handlers.sasl_handshake import sasl_handshake
from appliance.requests.local_handlers.update_features import update_features
from appliance.requests.local_requests import LocalHandler
from appliance.requests.log_handlers.alter_replica_log_dirs import AlterReplicaLogDirsHandler
from appliance.requests.log_handlers.delete_records import DeleteRecordsHandler
from appliance.requests.log_handlers.describe_log_dirs import DescribeLogDirsHandler
from appliance.requests.log_handlers.describe_producers import DescribeProducersHandler
from appliance.requests.log_handlers.fetch import FetchHandler
from appliance.requests.log_handlers.list_offsets import ListOffsetsHandler
from appliance.requests.log_handlers.offset_for_leader_epoch import OffsetForLeaderEpochHandler
from appliance.requests.log_handlers.partitioned import PartitionedHandler
from appliance.requests.log_handlers.produce import ProduceHandler
from appliance.requests.log_handlers.write_txn_markers import WriteTxnMarkersHandler

PartitionHandler = type[ProduceHandler] | type[FetchHandler] | type[PartitionedHandler]


class Scope(Enum):
    """Who answers."""

    LOCAL = auto()
    CONTROLLER = auto()
    PARTITION = auto()
    COORDINATOR = auto()


class Throttle(Enum):
    """Which quota of a client a request counts against: bytes written, bytes read, or processor time."""

    PRODUCE = auto()
    FETCH = auto()
    REQUEST = auto()


class Acl(NamedTuple):
    """The resource and the operation that the principal must be allowed."""

    resource: ResourceType
    operation: AclOperation


Route = Callable[[int, memoryview, int, int], Scope]
"""Takes the version, a view, and where in it the body begins and ends; returns who answers this request.

Raises:
    MalformedFrame: the body does not begin as it should.
"""


class Api(NamedTuple):
    """One row. `acl` is None where Kafka lets everybody ask. `route` goes before `scope`."""

    key: ApiKey
    scope: Scope
    handler: LocalHandler | PartitionHandler | None
    acl: Acl | None
    throttled: Throttle = Throttle.REQUEST
    route: Route | None = None

    @property
    def is_local(self) -> bool:
        """Whether `handler` is a function of `local_handlers`, which may ask the controller."""
        return self.scope is Scope.LOCAL or self.scope is Scope.CONTROLLER


def _producer_id_scope(version: int, view: memoryview, position: int, end: int) -> Scope:
    return _COORDINATOR if has_transactional_id(version, view, position, end) else _CONTROLLER


_LOCAL: Final = Scope.LOCAL
_CONTROLLER: Final = Scope.CONTROLLER
_PARTITION: Final = Scope.PARTITION
_COORDINATOR: Final = Scope.COORDINATOR
_DESCRIBE_CLUSTER: Final = Acl(ResourceType.CLUSTER, AclOperation.DESCRIBE)
_ALTER_CLUSTER: Final = Acl(ResourceType.CLUSTER, AclOperation.ALTER)
_DESCRIBE_TOPIC: Final = Acl(ResourceType.TOPIC, AclOperation.DESCRIBE)
_DELETE_TOPIC: Final = Acl(ResourceType.TOPIC, AclOperation.DELETE)
_READ_TOPIC: Final = Acl(ResourceType.TOPIC, AclOperation.READ)
_READ_GROUP: Final = Acl(ResourceType.GROUP, AclOperation.READ)
_DESCRIBE_GROUP: Final = Acl(ResourceType.GROUP, AclOperation.DESCRIBE)
_DELETE_GROUP: Final = Acl(ResourceType.GROUP, AclOperation.DELETE)
_WRITE_TRANSACTION: Final = Acl(ResourceType.TRANSACTIONAL_ID, AclOperation.WRITE)
_DESCRIBE_TRANSACTION: Final = Acl(ResourceType.TRANSACTIONAL_ID, AclOperation.DESCRIBE)
_DESCRIBE_CONFIGS: Final = Acl(ResourceType.ANY, AclOperation.DESCRIBE_CONFIGS)
_ALTER_CONFIGS: Final = Acl(ResourceType.ANY, AclOperation.ALTER_CONFIGS)

API_TABLE: Final[tuple[Api, ...]] = (
    Api(
        ApiKey.PRODUCE,
        _PARTITION,
        ProduceHandler,
        Acl(ResourceType.TOPIC, AclOperation.WRITE),
        Throttle.PRODUCE,
    ),
    Api(ApiKey.FETCH, _PARTITION, FetchHandler, _READ_TOPIC, Throttle.FETCH),
    Api(ApiKey.LIST_OFFSETS, _PARTITION, ListOffsetsHandler, _DESCRIBE_TOPIC),
    Api(ApiKey.METADATA, _LOCAL, metadata, _DESCRIBE_TOPIC),
    Api(ApiKey.OFFSET_COMMIT, _COORDINATOR, None, _READ_GROUP),
    Api(ApiKey.OFFSET_FETCH, _COORDINATOR, None, _DESCRIBE_GROUP),
    Api(ApiKey.FIND_COORDINATOR, _LOCAL, find_coordinator, _DESCRIBE_GROUP),
    Api(ApiKey.JOIN_GROUP, _COORDINATOR, None, _READ_GROUP),
    Api(ApiKey.HEARTBEAT, _COORDINATOR, None, _READ_GROUP),
    Api(ApiKey.LEAVE_GROUP, _COORDINATOR, None, _READ_GROUP),
    Api(ApiKey.SYNC_GROUP, _COORDINATOR, None, _READ_GROUP),
    Api(ApiKey.DESCRIBE_GROUPS, _COORDINATOR, None, _DESCRIBE_GROUP),
    Api(ApiKey.LIST_GROUPS, _COORDINATOR, None, _DESCRIBE_CLUSTER),
    Api(ApiKey.SASL_HANDSHAKE, _LOCAL, sasl_handshake, None),
    Api(ApiKey.API_VERSIONS, _LOCAL, api_versions, None),
    Api(
        ApiKey.CREATE_TOPICS,
        _CONTROLLER,
        create_topics,
        Acl(ResourceType.CLUSTER, AclOperation.CREATE),
    ),
    Api(ApiKey.DELETE_TOPICS, _CONTROLLER, delete_topics, _DELETE_TOPIC),
    Api(ApiKey.DELETE_RECORDS, _PARTITION, DeleteRecordsHandler, _DELETE_TOPIC),
    Api(
        ApiKey.INIT_PRODUCER_ID,
        _CONTROLLER,
        init_producer_id,
        # Of a request with a transactional id: WRITE on that.
        Acl(ResourceType.CLUSTER, AclOperation.IDEMPOTENT_WRITE),
        route=_producer_id_scope,
    ),
    Api(ApiKey.OFFSET_FOR_LEADER_EPOCH, _PARTITION, OffsetForLeaderEpochHandler, _DESCRIBE_TOPIC),
    # From v4 on, which brokers send each other: CLUSTER_ACTION on the cluster. Below, WRITE on each topic, too.
    Api(ApiKey.ADD_PARTITIONS_TO_TXN, _COORDINATOR, None, _WRITE_TRANSACTION),
    # Behind it READ on the group.
    Api(ApiKey.ADD_OFFSETS_TO_TXN, _COORDINATOR, None, _WRITE_TRANSACTION),
    Api(ApiKey.END_TXN, _COORDINATOR, None, _WRITE_TRANSACTION),
    Api(ApiKey.WRITE_TXN_MARKERS, _PARTITION, WriteTxnMarkersHandler, _ALTER_CLUSTER),
    # Behind it READ on the group and on each topic.
    Api(ApiKey.TXN_OFFSET_COMMIT, _COORDINATOR, None, _WRITE_TRANSACTION),
    Api(ApiKey.DESCRIBE_ACLS, _LOCAL, describe_acls, _DESCRIBE_CLUSTER),
    Api(ApiKey.CREATE_ACLS, _CONTROLLER, create_acls, _ALTER_CLUSTER),
    Api(ApiKey.DELETE_ACLS, _CONTROLLER, delete_acls, _ALTER_CLUSTER),
    Api(ApiKey.DESCRIBE_CONFIGS, _LOCAL, describe_configs, _DESCRIBE_CONFIGS),
    Api(ApiKey.ALTER_CONFIGS, _CONTROLLER, alter_configs, _ALTER_CONFIGS),
    Api(ApiKey.ALTER_REPLICA_LOG_DIRS, _PARTITION, AlterReplicaLogDirsHandler, _ALTER_CLUSTER),
    Api(ApiKey.DESCRIBE_LOG_DIRS, _PARTITION, DescribeLogDirsHandler, _DESCRIBE_CLUSTER),
    Api(ApiKey.SASL_AUTHENTICATE, _LOCAL, sasl_authenticate, None),
    Api(
        ApiKey.CREATE_PARTITIONS,
        _CONTROLLER,
        create_partitions,
        Acl(ResourceType.TOPIC, AclOperation.ALTER),
    ),
    # If the owner is not the requester.
    Api(
        ApiKey.CREATE_DELEGATION_TOKEN,
        _CONTROLLER,
        create_delegation_token,
        Acl(ResourceType.USER, AclOperation.CREATE_TOKENS),
    ),
    # Their owners and renewers may, and nobody else.
    Api(ApiKey.RENEW_DELEGATION_TOKEN, _CONTROLLER, renew_delegation_token, None),
    Api(ApiKey.EXPIRE_DELEGATION_TOKEN, _CONTROLLER, expire_delegation_token, None),
    Api(
        ApiKey.DESCRIBE_DELEGATION_TOKEN,
        _LOCAL,
        describe_delegation_token,
        Acl(ResourceType.DELEGATION_TOKEN, AclOperation.DESCRIBE),
    ),
    Api(ApiKey.DELETE_GROUPS, _COORDINATOR, None, _DELETE_GROUP),
    Api(ApiKey.ELECT_LEADERS, _CONTROLLER, elect_leaders, _ALTER_CLUSTER),
    Api(ApiKey.INCREMENTAL_ALTER_CONFIGS, _CONTROLLER, incremental_alter_configs, _ALTER_CONFIGS),
    Api(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        _CONTROLLER,
        alter_partition_reassignments,
        _ALTER_CLUSTER,
    ),
    Api(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        _LOCAL,
        list_partition_reassignments,
        _DESCRIBE_CLUSTER,
    ),
    Api(ApiKey.OFFSET_DELETE, _COORDINATOR, None, _DELETE_GROUP),
    Api(
        ApiKey.DESCRIBE_CLIENT_QUOTAS,
        _LOCAL,
        describe_client_quotas,
        Acl(ResourceType.CLUSTER, AclOperation.DESCRIBE_CONFIGS),
    ),
    Api(
        ApiKey.ALTER_CLIENT_QUOTAS,
        _CONTROLLER,
        alter_client_quotas,
        Acl(ResourceType.CLUSTER, AclOperation.ALTER_CONFIGS),
    ),
    Api(
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
        _LOCAL,
        describe_user_scram_credentials,
        _DESCRIBE_CLUSTER,
    ),
    Api(
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        _CONTROLLER,
        alter_user_scram_credentials,
        _ALTER_CLUSTER,
    ),
    Api(ApiKey.DESCRIBE_QUORUM, _LOCAL, describe_quorum, _DESCRIBE_CLUSTER),
    Api(ApiKey.UPDATE_FEATURES, _LOCAL, update_features, _ALTER_CLUSTER),
    Api(ApiKey.DESCRIBE_CLUSTER, _LOCAL, describe_cluster, _DESCRIBE_CLUSTER),
    Api(ApiKey.DESCRIBE_PRODUCERS, _PARTITION, DescribeProducersHandler, _READ_TOPIC),
    Api(ApiKey.DESCRIBE_TRANSACTIONS, _COORDINATOR, None, _DESCRIBE_TRANSACTION),
    Api(ApiKey.LIST_TRANSACTIONS, _COORDINATOR, None, _DESCRIBE_TRANSACTION),
    Api(ApiKey.CONSUMER_GROUP_HEARTBEAT, _COORDINATOR, None, _READ_GROUP),
    Api(ApiKey.CONSUMER_GROUP_DESCRIBE, _COORDINATOR, None, _DESCRIBE_GROUP),
    Api(ApiKey.GET_TELEMETRY_SUBSCRIPTIONS, _LOCAL, get_telemetry_subscriptions, None),
    Api(ApiKey.PUSH_TELEMETRY, _LOCAL, push_telemetry, None),
    Api(ApiKey.LIST_CONFIG_RESOURCES, _LOCAL, list_config_resources, _DESCRIBE_CONFIGS),
    Api(ApiKey.DESCRIBE_TOPIC_PARTITIONS, _LOCAL, describe_topic_partitions, _DESCRIBE_TOPIC),
)
"""By key."""
