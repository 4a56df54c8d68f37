"""Frozen values that every room shares: what a topic, a partition and a broker slot are."""

from __future__ import annotations

from uuid import UUID

import msgspec

NO_LEADER = -1
NO_EPOCH = -1

CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
AUDIT_LOG = "__audit_log"
"""Where the auditor appends the entries of the audit journal, if it is to."""
MESSAGE_AUDIT = "__audit"
"""The counts and findings of the message audit. It has nothing to do with AUDIT_LOG."""
MESSAGE_AUDIT_STATE = "__audit_state"
TRACE = "__trace"
"""The steps of traced records."""
TRACE_STATE = "__trace_state"
OBSERVATIONS = "__observations"
"""What network processes have seen of audited and traced topics: who appended and fetched which offsets."""
OBSERVING_TOPICS = frozenset({MESSAGE_AUDIT, MESSAGE_AUDIT_STATE, TRACE, TRACE_STATE, OBSERVATIONS})
"""Topics that the services processes create for audit and trace."""
INTERNAL_TOPICS = (
    frozenset({CONSUMER_OFFSETS, TRANSACTION_STATE, "__share_group_state", AUDIT_LOG}) | OBSERVING_TOPICS
)
DELAYED_PREFIX = "__delayed_"
"""Topics in which delayed records wait, one for each level; and the one below."""
DELAYED_STATE = "__delayed_state"
"""Where the services process keeps how far it has delivered."""
DELAYED_TRANSACTIONS = "__delayed_transactions"
"""Where delayed records wait until their transaction has ended."""
DELAYED_CANCELS = "__delayed_cancels"
"""What cancels delayed records."""

TOPIC_NAME_LENGTH_MAX = 249


def is_internal(topic: str) -> bool:
    """Return whether only the appliance itself writes to topics of this name."""
    return topic in INTERNAL_TOPICS or topic.startswith(DELAYED_PREFIX)


class TopicPartition(msgspec.Struct, frozen=True, order=True):
    """A partition by name, printed as Kafka prints it: `topic-3`."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class BrokerSlot(msgspec.Struct, frozen=True):
    """What Kafka calls a broker: a node id (the slot's number) and the address clients are told."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionImage(msgspec.Struct, frozen=True):
    """One partition as the controller last published it.

    `row` is its row in the shared partition table and `incarnation` tells this use of the row from an earlier
    one; a request that carries an old incarnation is refused, so a reused row never takes a foreign record.
    `partition_epoch` grows with every change of leader, ISR or replicas. While a reassignment is under way `replicas`
    are those of before and after together; `adding` come, `removing` go (KIP-455). `leaving` are none any more, but
    may still have files.
    """

    partition: int
    row: int
    incarnation: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    partition_epoch: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    leaving: tuple[int, ...] = ()


class TopicImage(msgspec.Struct, frozen=True):
    """One topic as the controller last published it. `configs` holds only what was set for the topic."""

    name: str
    topic_id: UUID
    partitions: tuple[PartitionImage, ...]
    configs: dict[str, str] = msgspec.field(default_factory=dict)
    internal: bool = False


class AclBinding(msgspec.Struct, frozen=True, order=True):
    """A rule: who (`principal`, from `host`) may, or may not, do what to which resources.

    The numbers are Kafka's (`protocol.acl`). The `host` "*" is every host.
    """

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int


class ScramCredential(msgspec.Struct, frozen=True, order=True):
    """What the broker keeps of a user's password for one SCRAM mechanism (RFC 5802). The password does not follow from
    it, but who has `stored_key` can try passwords: no log line shows it.

    `mechanism` is the mechanism's name, such as `SCRAM-SHA-256`.
    """

    user: str
    mechanism: str
    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential({self.user!r}, {self.mechanism!r})"


class DelegationToken(msgspec.Struct, frozen=True, order=True):
    """A token that its holder logs in with as `owner` (KIP-48). Its password is not here: it follows from the id and
    the secret of the cluster.

    Principals as `User:alice`; times in milliseconds since 1970. `max_ms`: no renewal goes beyond it.
    """

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    max_ms: int
    expires_ms: int

    def is_expired(self, now_ms: int) -> bool:
        """Whether nobody can log in with it any more."""
        return self.expires_ms < now_ms or self.max_ms < now_ms


class QuotaEntity(msgspec.Struct, frozen=True, order=True):
    """Who a quota is for (KIP-546). Each part is a name, "" for the default, or None where the entity does not have it.

    An entity has a user, a client id or both; or it has an ip alone.
    """

    user: str | None = None
    client_id: str | None = None
    ip: str | None = None


class ClientQuotas(msgspec.Struct, frozen=True):
    """The quotas of one entity, by key; at least one."""

    entity: QuotaEntity
    values: dict[str, float]


class ClusterImage(msgspec.Struct, frozen=True):
    """Everything a process needs to answer Metadata, at one version.

    `broker_configs`: node id, or "" for all of them → what was set there while running; `group_configs` the same by
    group id. `acls`: every rule, in order; the same object in every image until one changes. `scram`: every user's
    credentials, in order, the same. `quotas`: the same, of entities with quotas. `tokens`: every delegation token, in
    order, the same.
    """

    version: int
    cluster_id: str
    controller_id: int
    controller_epoch: int
    slots: tuple[BrokerSlot, ...]
    topics: dict[str, TopicImage]
    broker_configs: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    acls: tuple[AclBinding, ...] = ()
    scram: tuple[ScramCredential, ...] = ()
    quotas: tuple[ClientQuotas, ...] = ()
    tokens: tuple[DelegationToken, ...] = ()


def topic_name_fault(name: str) -> str | None:
    """Why `name` is no legal topic name, or None.

    Source: Kafka's `Topic.java`: 1 to 249 of `[a-zA-Z0-9._-]`, neither `.` nor `..`.
    """
    if not name:
        return "Topic name is illegal, it can't be empty"
    if name in {".", ".."}:
        return "Topic name cannot be '.' or '..'"
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        return f"Topic name is longer than {TOPIC_NAME_LENGTH_MAX} characters"
    if not all(c.isascii() and (c.isalnum() or c in "._-") for c in name):
        return "Topic name contains a character other than ASCII letters, digits, '.', '_' and '-'"
    return None
