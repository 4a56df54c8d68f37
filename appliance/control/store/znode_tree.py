"""Where things lie in the tree and what their JSON looks like: Kafka's paths, Kafka's field names.

| path | holds | written by |
|---|---|---|
| `/cluster/id` | cluster id | first controller |
| `/controller` (ephemeral) | who is controller | the controller |
| `/controller_epoch` | how many controllers there were, as decimal text | the controller |
| `/brokers/ids/N` (ephemeral) | address of slot N | the slot's registrar |
| `/brokers/topics/T` | topic id, partition → replicas | the controller |
| `/brokers/topics/T/partitions/P/state` | leader, leader epoch, ISR | the controller |
| `/config/topics/T` | what was set for the topic | the controller |
| `/config/brokers/N`, `/config/brokers/<default>` | set for slot N, for all slots | the controller |
| `/config/users/U`, `/config/clients/C`, `/config/ips/A` | quotas; SCRAM credentials | the controller |
| `/config/users/U/clients/C` | quotas of a user with a client id | the controller |
| `/config/groups/G` | what was set for group G, percent-encoded; Kafka had none in ZooKeeper | the controller |
| `/kafka-acl/TYPE/NAME` | the rules of a resource; its name percent-encoded where it must be | the controller |
| `/kafka-acl-extended/prefixed/TYPE/NAME` | the rules of resources whose names begin so | the controller |
| `/delegation_token/tokens/ID` | a delegation token, without its password | the controller |
| `/admin/delete_topics/T` | mark: T is being deleted | the controller |
| `/feature` | that no feature's level was agreed on | the first controller |
| `/latest_producer_id_block` | last block of producer ids handed out | the controller |
| `/writers/N` (ephemeral) | how many changes session N has made (zookeeper_store.py); in ZooKeeper only | session N |
| `/restore-in-progress` | id of the backup that is being restored into this tree | `appliance restore` |

Nodes of Kafka that its brokers notify each other by (`/config/changes`, `/isr_change_notification`,
`/log_dir_event_notification`), and those for what is not here (old consumers), are there and empty.

Source: Kafka 3.9, `core/src/main/scala/kafka/zk/ZkData.scala` (the last release that kept its metadata in
ZooKeeper).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Final, TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec

from appliance.errors import CorruptFile

CLUSTER_ID: Final = "/cluster/id"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKER_IDS: Final = "/brokers/ids"
TOPICS: Final = "/brokers/topics"
TOPIC_CONFIGS: Final = "/config/topics"
BROKER_CONFIGS: Final = "/config/brokers"
GROUP_CONFIGS: Final = "/config/groups"
CLIENT_METRICS: Final = "/config/client-metrics"
USER_CONFIGS: Final = "/config/users"
CLIENT_CONFIGS: Final = "/config/clients"
IP_CONFIGS: Final = "/config/ips"
DEFAULT_ENTITY: Final = "<default>"
DELETE_TOPICS: Final = "/admin/delete_topics"
PRODUCER_ID_BLOCK: Final = "/latest_producer_id_block"
FEATURE: Final = "/feature"
LITERAL_ACLS: Final = "/kafka-acl"
PREFIXED_ACLS: Final = "/kafka-acl-extended/prefixed"
DELEGATION_TOKENS: Final = "/delegation_token/tokens"
WRITERS: Final = "/writers"
RESTORING: Final = "/restore-in-progress"
ZOOKEEPERS_OWN: Final = "/zookeeper"
"""ZooKeeper's quotas and configuration, where the tree has no chroot."""

STANDING_PATHS: Final = (
    "/cluster",
    "/brokers",
    BROKER_IDS,
    "/brokers/seqid",
    TOPICS,
    "/config",
    "/config/changes",
    CLIENT_CONFIGS,
    IP_CONFIGS,
    USER_CONFIGS,
    TOPIC_CONFIGS,
    BROKER_CONFIGS,
    GROUP_CONFIGS,
    "/admin",
    DELETE_TOPICS,
    "/consumers",
    "/isr_change_notification",
    LITERAL_ACLS,
    "/kafka-acl-changes",
    "/kafka-acl-extended",
    PREFIXED_ACLS,
    "/kafka-acl-extended-changes",
    "/log_dir_event_notification",
)
"""Nodes without data that exist in every tree, parents first; made by the first controller. Those without a name here
stay empty: they are for whoever lists Kafka's tree, and finds nobody where there is nobody."""

CLIENT_METRICS_PATHS: Final = (CLIENT_METRICS,)
"""The same, made with the first subscription to metrics of clients."""

TOKEN_PATHS: Final = ("/delegation_token", DELEGATION_TOKENS, "/delegation_token/token_changes")
"""The same, made with the first delegation token, because Kafka has them only where tokens are switched on."""


def broker_path(node_id: int) -> str:
    return f"{BROKER_IDS}/{node_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}"


def partition_state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


def topic_config_path(topic: str) -> str:
    return f"{TOPIC_CONFIGS}/{topic}"


def broker_config_path(node_id: str) -> str:
    """`node_id` is a decimal text, "" for all brokers."""
    return f"{BROKER_CONFIGS}/{node_id or DEFAULT_ENTITY}"


def group_config_path(group_id: str) -> str:
    """A group id may be any text; a node's name may not be `.`, nor hold a `/` or a control character."""
    return f"{GROUP_CONFIGS}/{quote(group_id, safe='').replace('.', '%2E')}"


def client_metrics_path(name: str) -> str:
    """The node of a subscription, whose name may be any text."""
    return f"{CLIENT_METRICS}/{quote(name, safe='').replace('.', '%2E')}"


def group_of_node(name: str) -> str:
    """The group id, or the name of a subscription, that the paths above made a node's name of."""
    return unquote(name)


def user_config_path(user: str) -> str:
    """The node of a user."""
    return f"{USER_CONFIGS}/{entity_node(user)}"


def entity_node(name: str) -> str:
    """The name of the node of a user, a client id or an address; "" is the default of all others.

    Source: Kafka's `Sanitizer.java`. A name of dots, which can be no node there, is encoded too.
    """
    if not name:
        return DEFAULT_ENTITY
    if name in {".", ".."}:
        return name.replace(".", "%2E")
    return quote(name, safe="").replace("~", "%7E")


def entity_of_node(node: str) -> str:
    """The name that `entity_node` made a node's name of."""
    return "" if node == DEFAULT_ENTITY else unquote(node)


def acl_path(folder: str, resource_name: str) -> str:
    """The node of a resource. Its name may be any text, as a group id may; what a node may be called stays as it is.

    ZooKeeper refuses control characters, those for private use, and from U+FFF0 on everything.
    """
    if resource_name in {".", ".."}:
        return f"{folder}/{resource_name.replace('.', '%2E')}"
    encoded = (
        c if c.isprintable() and c not in "/%" and c < "\ufff0" else quote(c, safe="") for c in resource_name
    )
    return f"{folder}/{''.join(encoded)}"


def resource_of_node(name: str) -> str:
    """The name of a resource that `acl_path` made a node's name of."""
    return unquote(name)


def token_path(token_id: str) -> str:
    """The node of a delegation token."""
    return f"{DELEGATION_TOKENS}/{token_id}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


class ClusterIdRecord(msgspec.Struct, frozen=True):
    """`{"version":"1","id":"…"}`; the version is a text, in Kafka too."""

    id: str
    version: str = "1"


class ControllerRecord(msgspec.Struct, frozen=True):
    brokerid: int
    timestamp: str
    version: int = 2
    kraft_controller_epoch: int = msgspec.field(default=-1, name="kraftControllerEpoch")


class BrokerRecord(msgspec.Struct, frozen=True):
    """`rack` is left out where there is none. `host` and `port` are null and -1 without a listener in plain text."""

    host: str | None
    port: int
    endpoints: tuple[str, ...]
    listener_security_protocol_map: dict[str, str]
    timestamp: str
    rack: str | msgspec.UnsetType = msgspec.UNSET
    jmx_port: int = -1
    features: dict[str, str] = {}
    version: int = 5


class TopicRecord(msgspec.Struct, frozen=True):
    """`partitions` maps the partition number, as text, to its replicas; `adding_replicas` and `removing_replicas` hold
    the partitions that are being reassigned, and no others (KIP-455).

    `leaving_replicas` is ours, and there only while somebody still has to delete files; Kafka passes over what it does
    not know.
    """

    topic_id: str
    partitions: dict[str, tuple[int, ...]]
    adding_replicas: dict[str, tuple[int, ...]] = {}
    removing_replicas: dict[str, tuple[int, ...]] = {}
    version: int = 3
    leaving_replicas: dict[str, tuple[int, ...]] | msgspec.UnsetType = msgspec.UNSET

    @property
    def replicas(self) -> list[tuple[int, ...]]:
        """Replicas of partition 0, 1, …; those that are being added or removed too."""
        return [self.partitions[key] for key in sorted(self.partitions, key=int)]


class PartitionStateRecord(msgspec.Struct, frozen=True):
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    version: int = 1


class ConfigRecord(msgspec.Struct, frozen=True):
    config: dict[str, str]
    version: int = 1


class AclRecord(msgspec.Struct, frozen=True):
    """One rule; permission and operation as `Allow` and `DescribeConfigs`."""

    principal: str
    permission: str = msgspec.field(name="permissionType")
    operation: str
    host: str


class AclsRecord(msgspec.Struct, frozen=True):
    acls: tuple[AclRecord, ...]
    version: int = 1


class TokenRecord(msgspec.Struct, frozen=True, rename="camel"):
    """A delegation token; principals as `entity_node` writes names, times in milliseconds since 1970.

    Source: Kafka's `DelegationTokenManagerZk.scala`. Before version 3 the owner was the requester.
    """

    token_id: str
    owner: str
    renewers: tuple[str, ...]
    issue_timestamp: int
    max_timestamp: int
    expiry_timestamp: int
    token_requester: str | msgspec.UnsetType = msgspec.UNSET
    version: int = 3


class FeatureRecord(msgspec.Struct, frozen=True):
    """Levels of features that a cluster has agreed on (KIP-584): there are none. Status 1 says that this is final."""

    features: dict[str, str] = {}
    version: int = 2
    status: int = 1


class ProducerIdBlockRecord(msgspec.Struct, frozen=True):
    """The block's first and last id, as texts, in Kafka too."""

    broker: int
    block_start: str
    block_end: str
    version: int = 1


Record = TypeVar(
    "Record",
    ClusterIdRecord,
    ControllerRecord,
    BrokerRecord,
    TopicRecord,
    PartitionStateRecord,
    ConfigRecord,
    AclsRecord,
    TokenRecord,
    FeatureRecord,
    ProducerIdBlockRecord,
)

encode = msgspec.json.Encoder().encode
_decoders: Final[dict[type, msgspec.json.Decoder[object]]] = {}


def decode(kind: type[Record], data: bytes, *, path: str) -> Record:
    """The record in `data`. Fields that this program does not know are passed over, as Kafka does.

    Raises:
        CorruptFile: `data` is no such record; `path` is named.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        record = decoder.decode(data)
    except msgspec.DecodeError as error:
        raise CorruptFile(f"metadata node {path} does not hold what it should: {error}") from error
    assert isinstance(record, kind)
    return record


def topic_record(
    topic_id: UUID,
    replicas: Mapping[int, tuple[int, ...]],
    *,
    adding: Mapping[int, tuple[int, ...]] | None = None,
    removing: Mapping[int, tuple[int, ...]] | None = None,
    leaving: Mapping[int, tuple[int, ...]] | None = None,
) -> TopicRecord:
    """The record of a topic. `adding`, `removing`, `leaving`: replicas that come, go and are gone, by partition."""
    return TopicRecord(
        topic_id=id_text(topic_id),
        partitions=_by_text(replicas),
        adding_replicas=_by_text(adding or {}),
        removing_replicas=_by_text(removing or {}),
        leaving_replicas=_by_text(leaving) if leaving else msgspec.UNSET,
    )


def _by_text(replicas: Mapping[int, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {str(number): replicas[number] for number in sorted(replicas)}


def id_text(identity: UUID) -> str:
    """An id as Kafka prints it: 22 characters of URL-safe base64. Source: Kafka's `Uuid.java`."""
    return base64.urlsafe_b64encode(identity.bytes).rstrip(b"=").decode()


def id_from_text(text: str, *, path: str) -> UUID:
    """The id that `id_text` printed. Raises CorruptFile."""
    try:
        return UUID(bytes=base64.urlsafe_b64decode(text + "=="))
    except ValueError as error:
        raise CorruptFile(f"metadata node {path}: {text!r} is no id") from error
