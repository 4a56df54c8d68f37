"""What Kafka calls the settings of a broker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from appliance.config.declaration import ConfigType, Effect
from appliance.config.option import check_fields, option

_MIB: Final = 2**20


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """What Kafka calls broker configs, under Kafka's names where it has one."""

    num_partitions: int = option(
        1,
        "num.partitions",
        unit="partitions",
        minimum=1,
        doc="Partitions of a topic that is created without a number.",
    )
    default_replication_factor: int = option(
        0,
        "default.replication.factor",
        unit="replicas",
        minimum=1,
        special=(0,),
        doc="Replicas of a topic that is created without a number; 0 is the number of slots, at most 3.",
    )
    auto_create_topics_enable: bool = option(
        True,
        "auto.create.topics.enable",
        doc="Whether a client that asks for an unknown topic creates it.",
    )
    delete_topic_enable: bool = option(
        True,
        "delete.topic.enable",
        doc="Whether clients may delete topics.",
    )
    slots_removed_ok: bool = option(
        False,
        "slots.removed.ok",
        doc="Whether to start with fewer slots than the data directory has partitions on: those are unavailable.",
    )
    auto_create_topics_per_request: int = option(
        100,
        "auto.create.topics.request.max",
        unit="topics",
        minimum=1,
        doc="Topics that one Metadata request creates at most; of others it is told LEADER_NOT_AVAILABLE, and when "
        "the client asks again, the next ones are created.",
    )
    max_partitions: int = option(
        10_000,
        "max.partitions",
        unit="partitions",
        minimum=1,
        maximum=1_000_000,
        doc="Partitions the appliance holds in total; a row of shared memory each.",
    )
    max_partitions_per_request: int = option(
        2000,
        "max.request.partition.size.limit",
        unit="partitions",
        minimum=1,
        doc="Partitions that one DescribeTopicPartitions answer lists, or one request creates, at most.",
    )
    fetch_max_bytes: int = option(
        57_671_680,
        "fetch.max.bytes",
        unit="bytes",
        minimum=1024,
        doc="Largest fetch answer, whatever the client asks for; one batch is always sent.",
    )
    fetch_session_partitions_max: int = option(
        500_000,
        "fetch.session.cache.partitions.max",
        unit="partitions",
        minimum=1000,
        doc="Partitions that the fetch sessions of one network process remember together, a fifth of a kilobyte each;"
        " a consumer without a session names its partitions in each request.",
    )
    fetch_session_slots: int = option(
        1000,
        "max.incremental.fetch.session.cache.slots",
        unit="sessions",
        minimum=0,
        doc="Incremental fetch sessions that are remembered.",
    )
    max_decompressed_message_bytes: int = option(
        104_857_600,
        "max.decompressed.message.bytes",
        unit="bytes",
        minimum=1024,
        doc="Where a batch must be decompressed, the size at which it is refused as a bomb.",
    )
    coordinator_processes: int = option(
        1,
        "coordinator.processes",
        unit="processes",
        minimum=1,
        maximum=16,
        doc="Coordinator processes that share the groups: partition p of __consumer_offsets is served by process"
        " p modulo this number. When one dies, only its groups wait for its next life. More than one pays where a"
        " single one is busy all the time. Each has a pool of coordinator.pool.bytes and an equal part of"
        " group.max.count, group.members.max and group.pending.members.max. Requests for groups of different processes"
        " that a client sends on one connection without waiting for answers may take effect in another order.",
    )
    coordinator_pool_bytes: int = option(
        32 * _MIB,
        "coordinator.pool.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=4 * _MIB,
        maximum=2**31,
        doc="Appends and larger answers of a coordinator process in flight at most; what does not fit waits its turn.",
    )
    producer_id_expiration_ms: int = option(
        86_400_000,
        "producer.id.expiration.ms",
        unit="ms",
        minimum=1,
        effect=Effect.AT_ONCE,
        doc="After how long the sequence numbers of a silent producer are forgotten.",
    )
    producer_ids_per_partition_max: int = option(
        20_000,
        "producer.ids.per.partition.max",
        unit="producer ids",
        minimum=100,
        doc="Producer ids whose sequence numbers one partition remembers; beyond that it forgets those that were silent"
        " the longest, never one with an open transaction.",
    )
    producer_ids_max: int = option(
        200_000,
        "producer.ids.max",
        unit="producer ids",
        minimum=1000,
        doc="Producer ids that all partitions of one worker remember, half a kilobyte each; beyond that a partition"
        " forgets one of its own for each new one.",
    )
    log_flush_offset_checkpoint_interval_ms: int = option(
        60_000,
        "log.flush.offset.checkpoint.interval.ms",
        unit="ms",
        minimum=0,
        doc="How often recovery points, log starts and high watermarks go to their checkpoint files.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = option(
        1000,
        "log.flush.start.offset.checkpoint.interval.ms",
        unit="ms",
        minimum=0,
        doc="How soon a log start that DeleteRecords moved is written down; Kafka waits a minute.",
    )
    reader_state_interval_ms: int = option(
        20,
        "reader.state.interval.ms",
        unit="ms",
        minimum=1,
        maximum=60_000,
        doc="How soon readers off the disk are told of new records, in each partition's .state file.",
    )
    reader_lease_max_bytes: int = option(
        10 * 1024 * _MIB,
        "reader.lease.max.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=0,
        doc="Upper bound on deleted segments that leases of readers off the disk keep from removal, in each process"
        " that owns logs. Above it, the leases on what was held longest are revoked, also those of live readers.",
    )
    reader_lease_max_ms: int = option(
        3_600_000,
        "reader.lease.max.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=0,
        doc="How long a lease that nobody renews keeps deleted segments from removal, whatever the lease asks for;"
        " then it is revoked. A live reader renews its lease every ten seconds and is not cut off.",
    )
    log_retention_check_interval_ms: int = option(
        300_000,
        "log.retention.check.interval.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="How often each partition is looked at for segments that have had their time.",
    )
    log_cleaner_dedupe_buffer_bytes: int = option(
        128 * _MIB,
        "log.cleaner.dedupe.buffer.size",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=_MIB,
        effect=Effect.AT_ONCE,
        doc="Most memory the cleaner takes for the keys of one round; it takes what the keys need, and gives it back.",
    )
    log_cleaner_io_max_bytes_per_second: int = option(
        2**63 - 1,
        "log.cleaner.io.max.bytes.per.second",
        type=ConfigType.LONG,
        unit="bytes/s",
        minimum=1,
        effect=Effect.AT_ONCE,
        doc="Upper bound on the cleaner's average I/O rate, reads and writes together.",
    )
    log_cleaner_backoff_ms: int = option(
        15_000,
        "log.cleaner.backoff.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=0,
        effect=Effect.AT_ONCE,
        doc="Pause between two looks of the cleaner at logs that have changed; without a change it does not look.",
    )
    replica_lag_time_max_ms: int = option(
        30_000,
        "replica.lag.time.max.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="How long a follower may stay behind before it leaves the in-sync replicas.",
    )
    auto_leader_rebalance_enable: bool = option(
        True,
        "auto.leader.rebalance.enable",
        doc="Whether leadership goes back to the preferred leaders by itself.",
    )
    leader_imbalance_check_interval_seconds: int = option(
        300,
        "leader.imbalance.check.interval.seconds",
        type=ConfigType.LONG,
        unit="s",
        minimum=1,
        doc="How soon after it left them, and how often while some slot is out of balance.",
    )
    leader_imbalance_per_broker_percentage: int = option(
        10,
        "leader.imbalance.per.broker.percentage",
        unit="%",
        minimum=0,
        maximum=100,
        doc="How many of the partitions that a slot should lead others may lead before they go back to it.",
    )
    rack: str | None = option(
        None,
        "broker.rack",
        doc="The rack that Metadata and DescribeCluster name. Nothing else reads it: consumers fetch from the leader.",
    )
    shutdown_timeout_ms: int = option(
        10_000,
        "shutdown.timeout.ms",
        unit="ms",
        minimum=100,
        doc="How long a clean stop may take in total before what still runs is killed.",
    )
    restart_backoff_ms: int = option(
        50,
        "process.restart.backoff.ms",
        unit="ms",
        minimum=0,
        doc="Pause before a process that died is started again; doubles while it keeps dying.",
    )
    restart_backoff_max_ms: int = option(
        5000,
        "process.restart.backoff.max.ms",
        unit="ms",
        minimum=0,
        doc="Longest pause before a process is started again.",
    )
    worker_hang_timeout_ms: int = option(
        10_000,
        "worker.hang.timeout.ms",
        unit="ms",
        minimum=1000,
        special=(0,),
        doc="With several workers: how long one of them, or a replica, may stand still until it is ended; 0: for ever.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
