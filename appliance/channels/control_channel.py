"""Commands to and from the controller: ZeroMQ, `ipc://runtime_dir/controller.zmq`, ROUTER ←→ DEALERs.

A DEALER's identity is `<role token>.g<generation>`, so that an answer never reaches a later life of a process.
Every message is an `Envelope`; `id` pairs an answer with its question, and is the requester's to choose.
Commands to workers carry the controller's epoch; a worker refuses an older one than it has seen.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from appliance.access.acl_filter import AclFilter
from appliance.cluster import AclBinding, DelegationToken, ScramCredential


class MutatingClient(msgspec.Struct, frozen=True):
    """A client whose creations and deletions are counted (KIP-599). `is_strict`: what is over its quota is refused;
    else it is done, and the client throttled."""

    user: str
    client_id: str
    is_strict: bool


class NewTopic(msgspec.Struct, frozen=True):
    """A topic to create. `partitions`/`replication_factor` -1 = the broker's default; `assignments` by hand."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignments: dict[int, tuple[int, ...]] = {}
    configs: dict[str, str | None] = {}


class TopicOutcome(msgspec.Struct, frozen=True):
    """How one topic of a request fared. `error` is a Kafka error code, 0 = done."""

    name: str
    error: int = 0
    message: str | None = None
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = {}


class CreateTopics(msgspec.Struct, tag=True, frozen=True):
    topics: tuple[NewTopic, ...]
    validate_only: bool = False
    automatic: bool = False  # auto-creation by a Metadata request
    partitions_left: int | None = (
        None  # that the client's request may still create, where it is asked in parts
    )
    client: MutatingClient | None = None


class DeleteTopics(msgspec.Struct, tag=True, frozen=True):
    """By name and by id. An id is resolved by the controller alone: in an image that is a moment old it may have
    become the name of another topic. The outcomes of ids follow those of names; an unknown id has the name ""."""

    names: tuple[str, ...] = ()
    topic_ids: tuple[UUID, ...] = ()
    client: MutatingClient | None = None


class CreatePartitions(msgspec.Struct, tag=True, frozen=True):
    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None
    validate_only: bool = False
    client: MutatingClient | None = None


class TopicOutcomes(msgspec.Struct, tag=True, frozen=True):
    """Answer to the three above, sent after the workers serve (or dropped) the partitions and the metadata
    image that says so is published as `image_version`. The client is to be throttled for `throttle_ms`."""

    outcomes: tuple[TopicOutcome, ...]
    image_version: int
    throttle_ms: int = 0


class ConfigChange(msgspec.Struct, frozen=True):
    """One setting; `operation` is a number of Kafka's `AlterConfigOp`, or one that nobody knows."""

    name: str
    value: str | None
    operation: int = 0


class AlteredResource(msgspec.Struct, frozen=True):
    """`type` is a number of Kafka's `ConfigResource`; the name "" of a broker means all of them."""

    type: int
    name: str
    changes: tuple[ConfigChange, ...]


class AlterConfigs(msgspec.Struct, tag=True, frozen=True):
    """`replace`: what is not named is taken away (AlterConfigs of old), and every change sets."""

    resources: tuple[AlteredResource, ...]
    replace: bool = False
    validate_only: bool = False


class ConfigOutcome(msgspec.Struct, frozen=True):
    """How one resource of a request fared. `error` is a Kafka error code, 0 = done."""

    type: int
    name: str
    error: int = 0
    message: str | None = None


class ConfigOutcomes(msgspec.Struct, tag=True, frozen=True):
    """Answer to AlterConfigs, one for each of its resources in their order. Sent after every worker that lives goes by
    the new settings and the metadata image that shows them is published: what is produced after the answer meets
    them."""

    outcomes: tuple[ConfigOutcome, ...]


class AlterAcls(msgspec.Struct, tag=True, frozen=True):
    """Rules to make, and filters whose rules are to go."""

    created: tuple[AclBinding, ...] = ()
    deleted: tuple[AclFilter, ...] = ()


class AclOutcome(msgspec.Struct, frozen=True):
    """How one rule, or one filter, of a request fared. `error` is a Kafka error code, 0 = done. `acls`: what went."""

    error: int = 0
    message: str | None = None
    acls: tuple[AclBinding, ...] = ()


class AclOutcomes(msgspec.Struct, tag=True, frozen=True):
    """Answer to AlterAcls, in its order. Sent when the metadata image has the new rules: they count from here on."""

    created: tuple[AclOutcome, ...] = ()
    deleted: tuple[AclOutcome, ...] = ()


class AlterScram(msgspec.Struct, tag=True, frozen=True):
    """SCRAM credentials to delete, as (user, mechanism), and to make. A user is named once."""

    deleted: tuple[tuple[str, str], ...] = ()
    made: tuple[ScramCredential, ...] = ()


class ScramOutcome(msgspec.Struct, frozen=True):
    """What became of a user's credential. `error` is a Kafka error code, 0 = done."""

    user: str
    error: int = 0
    message: str | None = None


class ScramOutcomes(msgspec.Struct, tag=True, frozen=True):
    """Answer to AlterScram, one for each user. Sent when the metadata image has the change: it counts from here on."""

    outcomes: tuple[ScramOutcome, ...]


class CreateToken(msgspec.Struct, tag=True, frozen=True):
    """A delegation token to make; principals as `User:alice`. `max_lifetime_ms` of 0 or less: the longest."""

    token_id: str
    owner: str
    requester: str
    renewers: tuple[str, ...] = ()
    max_lifetime_ms: int = -1


class RenewToken(msgspec.Struct, tag=True, frozen=True):
    """A delegation token to live longer, if `principal` may renew it. `period_ms` of 0 or less: the default."""

    token_id: str
    principal: str
    period_ms: int = -1


class ExpireToken(msgspec.Struct, tag=True, frozen=True):
    """A delegation token to end earlier, if `principal` may renew it. `period_ms` below 0: now."""

    token_id: str
    principal: str
    period_ms: int = -1


class TokenOutcome(msgspec.Struct, tag=True, frozen=True):
    """Answer to the three above. `error` is a Kafka error code, 0 = done. Sent when the metadata image has the change:
    it counts from here on. `token`: the one that was made; `expires_ms`: its end, in milliseconds since 1970."""

    error: int = 0
    token: DelegationToken | None = None
    expires_ms: int = 0


class QuotaChange(msgspec.Struct, frozen=True):
    """One quota of an entity; None removes it."""

    key: str
    value: float | None


class AlteredQuotas(msgspec.Struct, frozen=True):
    """An entity as a client names it, not checked: type → name, None for the default."""

    entity: dict[str, str | None]
    changes: tuple[QuotaChange, ...]


class AlterQuotas(msgspec.Struct, tag=True, frozen=True):
    """Quotas to set and remove. No entity twice."""

    entities: tuple[AlteredQuotas, ...]
    validate_only: bool = False


class QuotaOutcome(msgspec.Struct, frozen=True):
    """How one entity of a request fared. `error` is a Kafka error code, 0 = done."""

    error: int = 0
    message: str | None = None


class QuotaOutcomes(msgspec.Struct, tag=True, frozen=True):
    """Answer to AlterQuotas, in its order. Sent when the metadata image has the new quotas: they count from here on."""

    outcomes: tuple[QuotaOutcome, ...]


class AllocateProducerIds(msgspec.Struct, tag=True, frozen=True):
    """Asks for a block of producer ids (Kafka's blocks have 1,000)."""


class ProducerIdBlock(msgspec.Struct, tag=True, frozen=True):
    """`count` ids from `first`, never handed out before or again. A count of 0: the store could not write it
    down; ask again later (COORDINATOR_NOT_AVAILABLE to a client)."""

    first: int
    count: int


class WorkerHello(msgspec.Struct, tag=True, frozen=True):
    """Worker → controller, first message of a generation: give me my partitions."""

    slot: int
    worker: int
    generation: int


class ReplicaHello(msgspec.Struct, tag=True, frozen=True):
    """Replica → controller, first message of a generation and to each new controller: give me what I follow."""

    slot: int
    generation: int


class AssignedPartition(msgspec.Struct, frozen=True):
    """A partition as its slot's worker is told (`leader` is the slot), or its slot's replica (it is another one, or -1:
    nobody leads, keep what there is). `partition_epoch` counts the changes of its state, the ISR's among them."""

    topic: str
    topic_id: UUID
    partition: int
    row: int
    incarnation: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    configs: dict[str, str]
    partition_epoch: int = 0


class ReplicationRates(msgspec.Struct, frozen=True):
    """Bytes a second of throttled copies that are not in sync (KIP-73): what the slot may copy in all, and from each
    leader, its part of what that one may give. None, or no entry: as fast as it can."""

    follower: int | None = None
    leaders: dict[int, int] = {}


class Assign(msgspec.Struct, tag=True, frozen=True):
    """Controller → worker or replica. `full`: these are all of its partitions, anything else on its disk is not served,
    and what was open of it is released.

    A slot's copy of a partition is open in one process at most. `released` names (topic, topic_id, partition) to let go
    of: once `Assigned` is sent their logs are closed, and the slot's other process may be assigned them. Naming one
    that is not open is no fault. `released` and `removed` are carried out before `partitions`, those before any answer.

    `removed` names (topic, topic_id, partition) whose files are to be deleted. `cluster_id` is checked against
    the log directory's meta.properties. `log_defaults` is what the slot's logs go by from now on where their topic
    says nothing (setting → value); None leaves it as it is, as it does `rates`. A partition that is served already
    takes its new configs.
    """

    controller_epoch: int
    cluster_id: str
    full: bool
    partitions: tuple[AssignedPartition, ...] = ()
    removed: tuple[tuple[str, UUID, int], ...] = ()
    log_defaults: dict[str, str] | None = None
    released: tuple[tuple[str, UUID, int], ...] = ()
    rates: ReplicationRates | None = None


class Assigned(msgspec.Struct, tag=True, frozen=True):
    """Worker, or replica, → controller: done; `failures` maps `topic-partition` to (error code, why)."""

    controller_epoch: int
    failures: dict[str, tuple[int, str]] = {}


class PartitionsOffline(msgspec.Struct, tag=True, frozen=True):
    """Worker, or replica, → controller: the storage of these (topic, partition) failed. The partition table says so
    already; a new metadata image makes everybody look, and forget what was remembered of the old one. Those that are
    `partial` lack files, and may lead when they are in sync again; the others not in this life of who says so."""

    slot: int
    partitions: tuple[tuple[str, int], ...]
    partial: tuple[tuple[str, int], ...] = ()


class LogAhead(msgspec.Struct, frozen=True):
    """A partition that was assigned in `leader_epoch`, while logs of this host have `log_epoch`, which is as high or
    higher. `longest_slot` has the longest valid log of all slots; the controller need not know it as a replica."""

    topic: str
    topic_id: UUID
    partition: int
    incarnation: int
    leader_epoch: int
    log_epoch: int
    longest_slot: int


class LogsAhead(msgspec.Struct, tag=True, frozen=True):
    """Worker of `slot` → controller, before the `Assigned` that names these partitions as failures: the metadata store
    is older than the logs, so it was restored from a backup. The worker leads none of them until it is assigned a later
    leader epoch. It asks again for as long as it is assigned the old one."""

    slot: int
    partitions: tuple[LogAhead, ...]


class WantedIsr(msgspec.Struct, frozen=True):
    """What the leader of a partition would have its ISR be. The epochs are those it goes by: another state has been
    decided meanwhile if the controller knows others."""

    topic: str
    topic_id: UUID
    partition: int
    incarnation: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]


class AlterPartitions(msgspec.Struct, tag=True, frozen=True):
    """Worker of `slot` → controller: followers of these partitions have caught up, or have fallen behind.

    At most one of a partition is under way; it is asked again, with the same content, of a new controller.
    Source: Kafka's AlterPartition (KIP-497).
    """

    slot: int
    partitions: tuple[WantedIsr, ...]


class AlteredPartition(msgspec.Struct, frozen=True):
    """What became of one: the state as it is now, whether that was asked for or not. `error` is a Kafka error code:

    | error | when | the leader |
    |---|---|---|
    | 0 | it is as was asked | goes by it |
    | INVALID_UPDATE_VERSION | another partition epoch | goes by the state that is told, and asks anew |
    | INELIGIBLE_REPLICA | a member is not alive | goes on with the ISR that is told |
    | FENCED_LEADER_EPOCH, NOT_LEADER_OR_FOLLOWER | another leader epoch, another leader | waits for its Assign |
    | UNKNOWN_TOPIC_ID, UNKNOWN_TOPIC_OR_PARTITION | no such partition, or incarnation | waits for its Assign |
    | KAFKA_STORAGE_ERROR | the store did not take it | asks again later |
    """

    topic: str
    partition: int
    incarnation: int
    error: int = 0
    leader: int = -1
    leader_epoch: int = -1
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()


class AlteredPartitions(msgspec.Struct, tag=True, frozen=True):
    """Controller → worker, under the id of its question, once the store has it; one for each that was asked."""

    controller_epoch: int
    partitions: tuple[AlteredPartition, ...]


class ElectLeaders(msgspec.Struct, tag=True, frozen=True):
    """Asks for the preferred leader of these (topic, partition), or (`unclean`) for any leader at all where there is
    none. None asks for all partitions; those that need no election are then left out of the answer."""

    partitions: tuple[tuple[str, int], ...] | None
    unclean: bool = False


class Reassignment(msgspec.Struct, frozen=True):
    """Where a partition is to lie; None calls back what is under way."""

    topic: str
    partition: int
    replicas: tuple[int, ...] | None


class AlterReassignments(msgspec.Struct, tag=True, frozen=True):
    """`allow_factor_change`: whether a partition may get more or fewer replicas (KIP-860)."""

    partitions: tuple[Reassignment, ...]
    allow_factor_change: bool = True


class CopyMove(msgspec.Struct, frozen=True):
    """A followed copy and the log directory it shall go to, by its place in `log.dirs`."""

    topic: str
    partition: int
    incarnation: int
    directory: int


class MoveCopies(msgspec.Struct, tag=True, frozen=True):
    """Network process → controller → replica of `slot`: AlterReplicaLogDirs of what the slot follows."""

    slot: int
    moves: tuple[CopyMove, ...]


class CopiesMoved(msgspec.Struct, tag=True, frozen=True):
    """Answer to it, back the same way: a Kafka error code for each, 0 = the move has begun. None of them: the replica
    is down, or died meanwhile."""

    errors: tuple[int, ...] = ()


class PartitionOutcome(msgspec.Struct, frozen=True):
    """How one partition of a request fared. `error` is a Kafka error code, 0 = done (a reassignment: begun)."""

    topic: str
    partition: int
    error: int = 0
    message: str | None = None


class PartitionOutcomes(msgspec.Struct, tag=True, frozen=True):
    """Answer to the two above. Elections are answered when the leaders lead and the metadata image says so,
    reassignments when the store has them."""

    outcomes: tuple[PartitionOutcome, ...]


Body = (
    CreateTopics
    | DeleteTopics
    | CreatePartitions
    | TopicOutcomes
    | AlterConfigs
    | ConfigOutcomes
    | AlterAcls
    | AclOutcomes
    | AlterScram
    | ScramOutcomes
    | CreateToken
    | RenewToken
    | ExpireToken
    | TokenOutcome
    | AlterQuotas
    | QuotaOutcomes
    | AllocateProducerIds
    | ProducerIdBlock
    | WorkerHello
    | ReplicaHello
    | Assign
    | Assigned
    | PartitionsOffline
    | LogsAhead
    | AlterPartitions
    | AlteredPartitions
    | ElectLeaders
    | AlterReassignments
    | PartitionOutcomes
    | MoveCopies
    | CopiesMoved
)


class Envelope(msgspec.Struct, frozen=True):
    id: int
    body: Body


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(Envelope).decode
