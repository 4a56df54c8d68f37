"""The same rules, the same requests: the appliance allows and denies what Apache Kafka allows and denies.

Both brokers get random rules and then random requests, which come from another address of the loopback than the
administrator's. Who may do what is compared, with the names that are told; what else is in a response is not.
"""

from __future__ import annotations

import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
import pytest

from appliance.protocol.acl import AclOperation, AclPermission, PatternType, ResourceType
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.apis.alter_client_quotas import (
    AlterClientQuotasRequest,
    QuotaAlteration,
    QuotaEntity,
)
from appliance.protocol.apis.alter_configs import AlterConfigsRequest
from appliance.protocol.apis.alter_configs import AlterConfigsResource as OldAlterConfigsResource
from appliance.protocol.apis.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from appliance.protocol.apis.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from appliance.protocol.apis.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
)
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from appliance.protocol.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from appliance.protocol.apis.create_acls import AclCreation, CreateAclsRequest
from appliance.protocol.apis.create_partitions import CreatePartitionsRequest, PartitionsTopic
from appliance.protocol.apis.create_topics import CreatableTopic, CreateTopicsRequest
from appliance.protocol.apis.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from appliance.protocol.apis.delete_groups import DeleteGroupsRequest
from appliance.protocol.apis.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.describe_acls import DescribeAclsRequest
from appliance.protocol.apis.describe_client_quotas import DescribeClientQuotasRequest
from appliance.protocol.apis.describe_cluster import DescribeClusterRequest
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.apis.describe_log_dirs import DescribeLogDirsRequest
from appliance.protocol.apis.describe_producers import DescribeProducersRequest, TopicRequest
from appliance.protocol.apis.describe_quorum import DescribeQuorumRequest, PartitionData, TopicData
from appliance.protocol.apis.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicName
from appliance.protocol.apis.describe_transactions import DescribeTransactionsRequest
from appliance.protocol.apis.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    UserName,
)
from appliance.protocol.apis.elect_leaders import ElectLeadersRequest, TopicPartitions
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.find_coordinator import GROUP, TRANSACTION, FindCoordinatorRequest
from appliance.protocol.apis.heartbeat import HeartbeatRequest
from appliance.protocol.apis.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.join_group import JoinGroupProtocol, JoinGroupRequest
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance.protocol.apis.list_config_resources import ListConfigResourcesRequest
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.apis.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from appliance.protocol.apis.list_partition_reassignments import ListPartitionReassignmentsRequest
from appliance.protocol.apis.list_transactions import ListTransactionsRequest
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.apis.offset_delete import (
    OffsetDeletePartition,
    OffsetDeleteRequest,
    OffsetDeleteTopic,
)
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from appliance.protocol.apis.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from appliance.protocol.apis.sync_group import SyncGroupRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.apis.txn_offset_commit import (
    TxnOffsetCommitPartition,
    TxnOffsetCommitRequest,
    TxnOffsetCommitTopic,
)
from appliance.protocol.apis.update_features import UpdateFeaturesRequest
from appliance.protocol.apis.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import Appliance
from tests.support.wire import PATIENCE_S, WireSocket, nullable_string
from tests.system.raw import ask, create_topic, produce

AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
SETTINGS: Final = {
    "authorizer.class.name": AUTHORIZER,
    "allow.everyone.if.no.acl.found": "true",  # until the first rules are there; then there are some for everything
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
ADMIN: Final = "127.0.0.1"
CLIENT: Final = "127.0.0.2"
TOPICS: Final = ("team-a", "team-a-2", "team-b")
TOPIC_NAMES: Final = (*TOPICS, "unknown")
GROUPS: Final = ("group-a", "group-b")
IDS: Final = ("id-a", "id-b")
REQUESTS: Final = int(os.environ.get("ACL_REQUESTS", "800"))
SEED: Final = int(os.environ.get("ACL_SEED", "31"))
REQUESTS_A_RULE_SET: Final = 12
DENIALS: Final = frozenset(
    map(
        int,
        (
            ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            ErrorCode.GROUP_AUTHORIZATION_FAILED,
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            ErrorCode.OPERATION_NOT_ATTEMPTED,
        ),
    )
)
NAMING: Final = (
    "name",
    "topic",
    "topic_name",
    "group_id",
    "transactional_id",
    "key",
    "resource_name",
    "partition",
    "partition_index",
    "partition_id",
)
OPERATIONS: Final = ("authorized_operations", "topic_authorized_operations", "cluster_authorized_operations")
NAMES: Final = {
    ResourceType.TOPIC: ("team-a", "team-", "team-b", "*", "unknown", "u"),
    ResourceType.GROUP: ("group-a", "group-", "group-b", "*"),
    ResourceType.TRANSACTIONAL_ID: ("id-a", "id-", "id-b", "*"),
    ResourceType.CLUSTER: ("kafka-cluster",),
}
RULE_OPERATIONS: Final = [
    *(each for each in AclOperation if AclOperation.ALL <= each <= AclOperation.IDEMPOTENT_WRITE),
    *(AclOperation.ALL, AclOperation.READ, AclOperation.DESCRIBE) * 3,
]

Brokers = tuple[Appliance, ApacheKafka]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Both with the same topics, internal ones too, and the administrator's rules."""
    appliance = Appliance(tmp_path_factory.mktemp("acls") / "data", settings=SETTINGS)
    kafka = ApacheKafka(
        tmp_path_factory.mktemp("kafka"),
        settings={**SETTINGS, "super.users": "User:nobody"},
    )
    try:
        appliance.start()
        kafka.start()
        for port in (appliance.port, kafka.port):
            prepare(port)
        yield appliance, kafka
    finally:
        appliance.stop()
        kafka.stop()


def prepare(port: int) -> None:
    for topic in TOPICS:
        assert create_topic(port, topic, partitions=2) == 0
    with WireSocket(port, timeout_s=60) as admin:
        for kind in (GROUP, TRANSACTION):
            find = FindCoordinatorRequest(key_type=kind, coordinator_keys=("any",))
            while ask(admin, ApiKey.FIND_COORDINATOR, find).coordinators[0].error_code:
                pass
        commit = OffsetCommitRequest(
            "group-a",
            topics=tuple(
                OffsetCommitTopic(name, partitions=(OffsetCommitPartition(0, 1),)) for name in TOPICS
            ),
        )
        while ask(admin, ApiKey.OFFSET_COMMIT, commit, version=8).topics[0].partitions[0].error_code:
            pass
        while ask(admin, ApiKey.INIT_PRODUCER_ID, InitProducerIdRequest("id-a", 60_000)).error_code:
            pass
        rules = tuple(
            AclCreation(int(kind), names[-1] if len(names) == 1 else "*", "User:*", ADMIN, 2, 3)
            for kind, names in NAMES.items()
        )
        created = ask(admin, ApiKey.CREATE_ACLS, CreateAclsRequest(rules))
        assert {each.error_code for each in created.results} == {0}


def random_rules(chance: random.Random) -> tuple[AclCreation, ...]:
    rules = []
    wide = chance.sample(list(NAMES), chance.choice((0, 0, 2, 3)))
    for kind in wide + chance.choices(list(NAMES), k=chance.randint(1, 10)):
        is_cluster = kind is ResourceType.CLUSTER
        pattern = PatternType.LITERAL if is_cluster or chance.random() < 0.5 else PatternType.PREFIXED
        denies = chance.random() < 0.2
        if kind in wide:
            name = "kafka-cluster" if is_cluster else "*"
            rules.append(AclCreation(int(kind), name, "User:ANONYMOUS", CLIENT, 2, 3))
            wide.remove(kind)
            continue
        rules.append(
            AclCreation(
                int(kind),
                chance.choice(NAMES[kind]),
                chance.choice(("User:ANONYMOUS", "User:ANONYMOUS", "User:*", "User:somebody")),
                chance.choice((CLIENT, CLIENT, "127.0.0.3")),
                int(chance.choice(RULE_OPERATIONS)),
                int(AclPermission.DENY if denies else AclPermission.ALLOW),
                int(pattern),
            )
        )
    return tuple(rules)


def set_rules(port: int, rules: tuple[AclCreation, ...]) -> None:
    with WireSocket(port, timeout_s=60) as admin:
        anything = int(ResourceType.ANY)
        doomed = tuple(
            DeleteAclsFilter(anything, None, None, host, 1, 1, int(PatternType.ANY))
            for host in (CLIENT, "127.0.0.3")
        )
        deleted = ask(admin, ApiKey.DELETE_ACLS, DeleteAclsRequest(doomed))
        assert not any(each.error_code for each in deleted.filter_results)
        created = ask(admin, ApiKey.CREATE_ACLS, CreateAclsRequest(rules))
        assert not any(each.error_code for each in created.results)
        await_rules(admin, rules)


def await_rules(admin: WireSocket, rules: tuple[AclCreation, ...]) -> None:
    """Return when the broker goes by the rules.

    Apache Kafka answers when its controller has them. Its broker takes them over later, one by one, and decides the
    first requests by the old ones (`AclPublisher.scala`). The appliance needs no look of these.
    """
    wanted = {
        (
            each.resource_type,
            each.resource_name,
            each.resource_pattern_type,
            each.principal,
            each.host,
            each.operation,
            each.permission_type,
        )
        for each in rules
    }
    deadline = time.monotonic() + PATIENCE_S
    while True:
        told = ask(admin, ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(1, None, None, None, 1, 1, 1))
        there = {
            (
                resource.resource_type,
                resource.resource_name,
                resource.pattern_type,
                acl.principal,
                acl.host,
                acl.operation,
                acl.permission_type,
            )
            for resource in told.resources
            for acl in resource.acls
            if acl.host in {CLIENT, "127.0.0.3"}
        }
        if there == wanted:
            return
        assert time.monotonic() < deadline, (there, wanted)


def some(chance: random.Random, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(chance.sample(names, chance.randint(1, len(names))))


Question = tuple[ApiKey, Any, int | None]


def questions(chance: random.Random) -> list[Callable[[], Question]]:
    """One maker of a random request for each API; nothing that is allowed changes what the next ones find."""

    def topic() -> str:
        return chance.choice(TOPIC_NAMES)

    def topics() -> tuple[str, ...]:
        return some(chance, TOPIC_NAMES)

    def group() -> str:
        return chance.choice(GROUPS)

    def groups() -> tuple[str, ...]:
        return some(chance, GROUPS)

    def identity() -> str:
        return chance.choice(IDS)

    def flag() -> bool:
        return chance.random() < 0.5

    def resources() -> list[tuple[int, str]]:
        named = [(2, name) for name in topics()]
        named += [(32, name) for name in groups() if flag()]
        return [*named, (4, "")] if flag() else named

    return [
        lambda: (
            ApiKey.LIST_OFFSETS,
            ListOffsetsRequest(
                -1, tuple(ListOffsetsTopic(n, (ListOffsetsPartition(0, -1),)) for n in topics())
            ),
            None,
        ),
        lambda: (
            ApiKey.OFFSET_FOR_LEADER_EPOCH,
            OffsetForLeaderEpochRequest(
                tuple(OffsetForLeaderTopic(n, (OffsetForLeaderPartition(0, 0),)) for n in topics()), -1
            ),
            None,
        ),
        lambda: (
            ApiKey.METADATA,
            MetadataRequest(
                None if flag() else tuple(TopicSelector(name=n) for n in topics()), False, flag(), flag()
            ),
            10,
        ),
        lambda: (
            ApiKey.DESCRIBE_TOPIC_PARTITIONS,
            DescribeTopicPartitionsRequest(tuple(map(TopicName, topics())) if flag() else ()),
            None,
        ),
        lambda: (ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest(True), 0),
        lambda: (
            ApiKey.OFFSET_COMMIT,
            OffsetCommitRequest(
                group(),
                topics=tuple(
                    OffsetCommitTopic(n, partitions=(OffsetCommitPartition(0, 1),)) for n in topics()
                ),
            ),
            8,
        ),
        lambda: (
            ApiKey.OFFSET_FETCH,
            OffsetFetchRequest(
                groups=tuple(
                    OffsetFetchGroup(
                        g,
                        None
                        if flag()
                        else tuple(OffsetFetchTopic(n, partition_indexes=(0,)) for n in topics()),
                    )
                    for g in groups()
                )
            ),
            8,
        ),
        lambda: (
            ApiKey.OFFSET_FETCH,
            OffsetFetchRequest(
                group(),
                None if flag() else tuple(OffsetFetchTopic(n, partition_indexes=(0,)) for n in topics()),
            ),
            7,
        ),
        lambda: (
            ApiKey.OFFSET_DELETE,
            OffsetDeleteRequest(
                group(), tuple(OffsetDeleteTopic(n, (OffsetDeletePartition(1),)) for n in topics())
            ),
            None,
        ),
        lambda: (ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(coordinator_keys=groups()), None),
        lambda: (ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(group()), 3),
        lambda: (
            ApiKey.FIND_COORDINATOR,
            FindCoordinatorRequest(key_type=TRANSACTION, coordinator_keys=some(chance, IDS)),
            None,
        ),
        lambda: (
            ApiKey.JOIN_GROUP,
            JoinGroupRequest(group(), 10_000, "", "consumer", (JoinGroupProtocol("range", b""),), 10_000),
            None,
        ),
        lambda: (ApiKey.SYNC_GROUP, SyncGroupRequest(group(), 1, "nobody"), 4),
        lambda: (ApiKey.HEARTBEAT, HeartbeatRequest(group(), 1, "nobody"), None),
        lambda: (
            ApiKey.LEAVE_GROUP,
            LeaveGroupRequest(group(), members=(MemberIdentity("nobody"),)),
            None,
        ),
        lambda: (ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest(groups(), True), 4),
        lambda: (ApiKey.LIST_GROUPS, ListGroupsRequest(), None),
        lambda: (ApiKey.DELETE_GROUPS, DeleteGroupsRequest(("group-c", "group-d")), None),
        lambda: (
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ConsumerGroupHeartbeatRequest(
                group(), "nobody", 5, rebalance_timeout_ms=1000, subscribed_topic_names=topics()
            ),
            0,
        ),
        lambda: (ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest(groups(), True), None),
        lambda: (
            ApiKey.CREATE_TOPICS,
            CreateTopicsRequest(
                tuple(CreatableTopic(n, 1, 1) for n in ("team-a-new", "unknown", "third")), 30_000, True
            ),
            None,
        ),
        lambda: (
            ApiKey.DELETE_TOPICS,
            DeleteTopicsRequest(tuple(TopicSelector(name=n) for n in ("unknown", "team-none")), 30_000),
            None,
        ),
        lambda: (
            ApiKey.CREATE_PARTITIONS,
            CreatePartitionsRequest(tuple(PartitionsTopic(n, 4) for n in topics()), 30_000, True),
            None,
        ),
        lambda: (
            ApiKey.DELETE_RECORDS,
            DeleteRecordsRequest(
                tuple(DeleteRecordsTopic(n, (DeleteRecordsPartition(1, 0),)) for n in topics()), 30_000
            ),
            None,
        ),
        lambda: (
            ApiKey.DESCRIBE_CONFIGS,
            DescribeConfigsRequest(
                tuple(DescribedResource(k, n or "1", ("retention.ms",)) for k, n in resources())
            ),
            None,
        ),
        lambda: (
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            IncrementalAlterConfigsRequest(tuple(AlterConfigsResource(k, n) for k, n in resources()), True),
            None,
        ),
        lambda: (
            ApiKey.ALTER_CONFIGS,
            AlterConfigsRequest(tuple(OldAlterConfigsResource(k, n) for k, n in resources()), True),
            None,
        ),
        lambda: (
            ApiKey.DESCRIBE_PRODUCERS,
            DescribeProducersRequest(tuple(TopicRequest(n, (0,)) for n in topics())),
            None,
        ),
        lambda: (
            ApiKey.INIT_PRODUCER_ID,
            InitProducerIdRequest(None if flag() else identity(), 60_000),
            None,
        ),
        lambda: (
            ApiKey.ADD_PARTITIONS_TO_TXN,
            AddPartitionsToTxnRequest(
                transactional_id=identity(),
                producer_id=99,
                producer_epoch=0,
                topics=tuple(AddPartitionsToTxnTopic(n, (0,)) for n in topics()),
            ),
            3,
        ),
        lambda: (
            ApiKey.ADD_PARTITIONS_TO_TXN,
            AddPartitionsToTxnRequest(
                (
                    AddPartitionsToTxnTransaction(
                        identity(), 99, 0, True, (AddPartitionsToTxnTopic("team-a", (0,)),)
                    ),
                )
            ),
            4,
        ),
        lambda: (ApiKey.ADD_OFFSETS_TO_TXN, AddOffsetsToTxnRequest(identity(), 99, 0, group()), None),
        lambda: (ApiKey.END_TXN, EndTxnRequest(identity(), 99, 0, True), 3),
        lambda: (
            ApiKey.TXN_OFFSET_COMMIT,
            TxnOffsetCommitRequest(
                identity(),
                group(),
                99,
                0,
                tuple(TxnOffsetCommitTopic(n, (TxnOffsetCommitPartition(0, 1),)) for n in topics()),
            ),
            3,
        ),
        lambda: (
            ApiKey.WRITE_TXN_MARKERS,
            WriteTxnMarkersRequest(
                (WritableTxnMarker(99, 0, True, (WritableTxnMarkerTopic("unknown", (0,)),), 0),)
            ),
            1,
        ),
        lambda: (ApiKey.DESCRIBE_TRANSACTIONS, DescribeTransactionsRequest(some(chance, IDS)), None),
        lambda: (ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest(), 0),
        lambda: (
            ApiKey.DESCRIBE_QUORUM,
            DescribeQuorumRequest((TopicData("__cluster_metadata", (PartitionData(0),)),)),
            None,
        ),
        lambda: (ApiKey.UPDATE_FEATURES, UpdateFeaturesRequest(()), None),
        lambda: (ApiKey.ELECT_LEADERS, ElectLeadersRequest((TopicPartitions(topic(), (0,)),)), None),
        lambda: (ApiKey.ALTER_PARTITION_REASSIGNMENTS, AlterPartitionReassignmentsRequest(()), None),
        lambda: (ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(None), None),
        lambda: (ApiKey.LIST_CONFIG_RESOURCES, ListConfigResourcesRequest((2,)), None),
        lambda: (ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(()), None),
        lambda: (
            ApiKey.ALTER_REPLICA_LOG_DIRS,
            AlterReplicaLogDirsRequest(
                (AlterReplicaLogDir("/nowhere", (AlterReplicaLogDirTopic(topic(), (0,)),)),)
            ),
            None,
        ),
        lambda: (ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(1, None, None, CLIENT, 1, 1, 1), None),
        lambda: (
            ApiKey.CREATE_ACLS,
            CreateAclsRequest((AclCreation(2, "", "User:x", "*", 3, 3),)),
            None,
        ),
        lambda: (ApiKey.DESCRIBE_CLIENT_QUOTAS, DescribeClientQuotasRequest(()), None),
        lambda: (
            ApiKey.ALTER_CLIENT_QUOTAS,
            AlterClientQuotasRequest((QuotaAlteration((QuotaEntity("user", "nobody"),), ()),)),
            None,
        ),
        lambda: (ApiKey.DELETE_ACLS, DeleteAclsRequest((DeleteAclsFilter(2, "no", None, None, 1, 1),)), None),
        lambda: (
            ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
            DescribeUserScramCredentialsRequest((UserName("no"),)),
            None,
        ),
        lambda: (
            ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
            AlterUserScramCredentialsRequest((ScramCredentialDeletion("no", 1),)),
            None,
        ),
    ]


def seen(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """What is allowed and denied in a response, and which names are told."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        here = (*path, *(fields[each] for each in NAMING if each in fields))
        codes = tuple(
            code if code in DENIALS else 0 for name, code in fields.items() if name.endswith("error_code")
        )
        rights = tuple(fields[each] for each in OPERATIONS if each in fields)
        yield (*here, codes, rights)
        for name, inner in fields.items():
            if name not in ("configs", "brokers", "nodes", "log_dir", "unknown_state_filters"):
                yield from seen(inner, here)
    elif isinstance(value, tuple):
        for each in value:
            yield from seen(each, path)


def answered(port: int, question: Question) -> Any:
    api, request, version = question
    with WireSocket(port, source=CLIENT, timeout_s=30) as connection:
        return ask(connection, api, request, version=version)


def test_random_requests_under_random_rules_are_allowed_and_denied_alike(brokers: Brokers) -> None:
    chance = random.Random(SEED)
    makers = questions(chance)
    deck: list[Callable[[], Question]] = []
    denied: set[ApiKey] = set()
    allowed: set[ApiKey] = set()
    for number in range(REQUESTS):
        if not number % REQUESTS_A_RULE_SET:
            rules = random_rules(chance)
            for broker in brokers:
                set_rules(broker.port, rules)
        if not deck:
            deck = makers.copy()
            chance.shuffle(deck)
        question = deck.pop()()
        ours, theirs = (answered(broker.port, question) for broker in brokers)
        what_we_say, what_kafka_says = (sorted(seen(each), key=repr) for each in (ours, theirs))
        assert what_we_say == what_kafka_says, (
            f"request {number} of seed {SEED}: {question}\nrules: {rules}\nours: {ours}\nKafka's: {theirs}"
        )
        for row in what_we_say:
            if row[-2]:
                (denied if any(row[-2]) else allowed).add(question[0])
    # Each API was met on both sides of the fence, but those that say nothing to who may do nothing.
    silent = {ApiKey.LIST_GROUPS, ApiKey.LIST_TRANSACTIONS, ApiKey.DESCRIBE_CLUSTER}
    asked = {maker()[0] for maker in makers}
    assert asked - denied <= silent
    assert asked - allowed == set()


def test_produce_and_fetch_are_allowed_and_denied_alike(brokers: Brokers) -> None:
    batch = encode_batch([Record(b"value")])
    literal, allow = int(PatternType.LITERAL), int(AclPermission.ALLOW)
    rules = tuple(
        AclCreation(int(ResourceType.TOPIC), name, "User:ANONYMOUS", CLIENT, int(operation), allow, literal)
        for name, operation in (("team-a", AclOperation.WRITE), ("team-b", AclOperation.READ))
    )
    said = []
    for broker in brokers:
        set_rules(broker.port, rules)
        with WireSocket(broker.port, source=CLIENT) as connection:
            written = [produce(connection, name, batch).error for name in TOPIC_NAMES]
            read = [fetched(connection, name) for name in TOPIC_NAMES]
        said.append((written, read))
        set_rules(broker.port, rules[1:])
        with WireSocket(broker.port, source=CLIENT) as connection:
            assert produce(connection, "team-a", batch).error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
    assert said[0] == said[1]
    assert said[0] == ([0, 29, 29, 29], [29, 29, 0, 29])


def fetched(connection: WireSocket, topic: str) -> int:
    """Fetch 11 of partition 0 from offset 0; its error."""

    head = struct.pack(">iiiibii", -1, 0, 0, 1 << 20, 0, 0, -1)
    wanted = struct.pack(">i", 1) + nullable_string(topic) + struct.pack(">iiiqqi", 1, 0, -1, 0, -1, 1 << 20)
    body = head + wanted + struct.pack(">i", 0) + nullable_string("")
    connection.send_request(int(ApiKey.FETCH), 11, body, flexible=False)
    answer = connection.read_frame()
    position = 4 + 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4
    return int(struct.unpack_from(">h", answer, position)[0])


def test_a_producer_whose_right_is_taken_away_is_denied_with_its_next_request(brokers: Brokers) -> None:
    """The bytes of a busy producer's request are remembered, and nothing of them is parsed again."""
    batch = encode_batch([Record(b"value")])
    literal, allow = int(PatternType.LITERAL), int(AclPermission.ALLOW)
    write = AclCreation(
        int(ResourceType.TOPIC), "team-a", "User:ANONYMOUS", CLIENT, int(AclOperation.WRITE), allow, literal
    )
    port = brokers[0].port
    with WireSocket(port, source=CLIENT) as connection:
        for _ in range(3):
            set_rules(port, (write,))
            assert [produce(connection, "team-a", batch).error for _ in range(3)] == [0, 0, 0]
            set_rules(port, ())
            assert produce(connection, "team-a", batch).error == ErrorCode.TOPIC_AUTHORIZATION_FAILED
