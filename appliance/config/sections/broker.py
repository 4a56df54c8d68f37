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
        doc="Number of partitions of a topic that is created without a number.",
    )
    default_replication_factor: int = option(
        0,
        "default.replication.factor",
        unit="replicas",
        minimum=1,
        special=(0,),
        doc="Number of replicas of a topic that is created without a number. 0: the number of slots, at "
        "most 3.",
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
        doc="Whether the appliance may start with fewer slots than the data directory has partitions on. "
        "Partitions of the missing slots are then unavailable.",
    )
    auto_create_topics_per_request: int = option(
        100,
        "auto.create.topics.request.max",
        unit="topics",
        minimum=1,
        doc="Maximum number of topics that one Metadata request creates. For further topics the client gets "
        "LEADER_NOT_AVAILABLE; its next request creates more of them.",
    )
    max_partitions: int = option(
        10_000,
        "max.partitions",
        unit="partitions",
        minimum=1,
        maximum=1_000_000,
        doc="Maximum number of partitions of the appliance. Each needs a row of shared memory.",
    )
    max_partitions_per_request: int = option(
        2000,
        "max.request.partition.size.limit",
        unit="partitions",
        minimum=1,
        doc="Maximum number of partitions that one DescribeTopicPartitions response lists, or that one "
        "request creates.",
    )
    fetch_max_bytes: int = option(
        57_671_680,
        "fetch.max.bytes",
        unit="bytes",
        minimum=1024,
        doc="Maximum size of a fetch response, whatever the client asks for. A response may exceed it to "
        "hold one batch.",
    )
    fetch_session_partitions_max: int = option(
        500_000,
        "fetch.session.cache.partitions.max",
        unit="partitions",
        minimum=1000,
        doc="Maximum number of partitions in all fetch sessions of one network process, about 200 bytes "
        "each. A consumer without a session lists its partitions in each request.",
    )
    fetch_session_slots: int = option(
        1000,
        "max.incremental.fetch.session.cache.slots",
        unit="sessions",
        minimum=0,
        doc="Maximum number of incremental fetch sessions.",
    )
    max_decompressed_message_bytes: int = option(
        104_857_600,
        "max.decompressed.message.bytes",
        unit="bytes",
        minimum=1024,
        doc="Maximum size of a batch after decompression. A batch that exceeds it is rejected as a "
        "decompression bomb.",
    )
    coordinator_processes: int = option(
        1,
        "coordinator.processes",
        unit="processes",
        minimum=1,
        maximum=16,
        doc="Number of coordinator processes, which share the groups. Process p modulo this number serves partition p"
        " of __consumer_offsets. When a process dies, only its groups wait until it is restarted. More than one process"
        " helps if a single one is busy all the time. Each process has a pool of coordinator.pool.bytes. Each has an"
        " equal part of group.max.count, group.members.max, group.members.max.bytes and group.pending.members.max."
        " If a client sends requests for groups of different processes on one connection, and does not wait for"
        " the answers, the requests may take effect in another order.",
    )
    coordinator_pool_bytes: int = option(
        32 * _MIB,
        "coordinator.pool.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=4 * _MIB,
        maximum=2**31,
        doc="Memory for appends and large responses of a coordinator process that are in flight. Work that does "
        "not fit waits.",
    )
    producer_id_expiration_ms: int = option(
        86_400_000,
        "producer.id.expiration.ms",
        unit="ms",
        minimum=1,
        effect=Effect.AT_ONCE,
        doc="Time after which the sequence numbers of a producer that sends nothing are forgotten.",
    )
    producer_ids_per_partition_max: int = option(
        20_000,
        "producer.ids.per.partition.max",
        unit="producer ids",
        minimum=100,
        doc="Maximum number of producer ids whose sequence numbers one partition remembers. Above it the "
        "partition forgets those that have sent nothing for the longest time, but never one with an "
        "open transaction.",
    )
    producer_ids_max: int = option(
        200_000,
        "producer.ids.max",
        unit="producer ids",
        minimum=1000,
        doc="Maximum number of producer ids that all partitions of one worker remember, about 500 bytes "
        "each. Above it a partition forgets one of its own for each new one.",
    )
    log_flush_offset_checkpoint_interval_ms: int = option(
        60_000,
        "log.flush.offset.checkpoint.interval.ms",
        unit="ms",
        minimum=0,
        doc="Interval at which recovery points, log start offsets and high watermarks are written to their "
        "checkpoint files.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = option(
        1000,
        "log.flush.start.offset.checkpoint.interval.ms",
        unit="ms",
        minimum=0,
        doc="Maximum delay before a log start offset that DeleteRecords moved is written to its checkpoint "
        "file. Kafka's default is one minute.",
    )
    reader_state_interval_ms: int = option(
        20,
        "reader.state.interval.ms",
        unit="ms",
        minimum=1,
        maximum=60_000,
        doc="Maximum delay before new records appear in a partition's .state file, where readers of the "
        "disk see them.",
    )
    reader_lease_max_bytes: int = option(
        10 * 1024 * _MIB,
        "reader.lease.max.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=0,
        doc="Maximum size of deleted segments that leases of readers of the disk keep, in each process that "
        "owns logs. Above it, the leases on the segments that were held longest are revoked, even if "
        "their readers are alive.",
    )
    reader_lease_max_ms: int = option(
        3_600_000,
        "reader.lease.max.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=0,
        doc="Maximum time that a lease keeps deleted segments if nobody renews it, whatever the lease asks "
        "for. Then it is revoked. A live reader renews its lease every ten seconds.",
    )
    log_retention_check_interval_ms: int = option(
        300_000,
        "log.retention.check.interval.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="Interval at which partitions are checked for segments that retention may delete.",
    )
    log_cleaner_dedupe_buffer_bytes: int = option(
        128 * _MIB,
        "log.cleaner.dedupe.buffer.size",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=_MIB,
        effect=Effect.AT_ONCE,
        doc="Maximum memory for the keys of one compaction round. The cleaner allocates what the keys need "
        "and frees it afterwards.",
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
        doc="Pause between two checks of the cleaner for logs that have changed. Without changes it does "
        "not check.",
    )
    replica_lag_time_max_ms: int = option(
        30_000,
        "replica.lag.time.max.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="Time after which a follower that has not caught up leaves the in-sync replicas.",
    )
    auto_leader_rebalance_enable: bool = option(
        True,
        "auto.leader.rebalance.enable",
        doc="Whether leadership returns to the preferred leaders automatically.",
    )
    leader_imbalance_check_interval_seconds: int = option(
        300,
        "leader.imbalance.check.interval.seconds",
        type=ConfigType.LONG,
        unit="s",
        minimum=1,
        doc="Delay before leadership returns to preferred leaders, and the interval of further checks while "
        "a slot is out of balance.",
    )
    leader_imbalance_per_broker_percentage: int = option(
        10,
        "leader.imbalance.per.broker.percentage",
        unit="%",
        minimum=0,
        maximum=100,
        doc="Percentage of a slot's preferred partitions that other slots may lead before leadership "
        "returns to it.",
    )
    rack: str | None = option(
        None,
        "broker.rack",
        doc="The rack that Metadata and DescribeCluster report. It has no other effect: consumers always "
        "fetch from the leader.",
    )
    shutdown_timeout_ms: int = option(
        10_000,
        "shutdown.timeout.ms",
        unit="ms",
        minimum=100,
        doc="Maximum time of a clean stop. Processes that still run after it are killed.",
    )
    restart_backoff_ms: int = option(
        50,
        "process.restart.backoff.ms",
        unit="ms",
        minimum=0,
        doc="Pause before a process that died is started again. It doubles each time the process dies again.",
    )
    restart_backoff_max_ms: int = option(
        5000,
        "process.restart.backoff.max.ms",
        unit="ms",
        minimum=0,
        doc="Longest pause before a process that died is started again.",
    )
    worker_hang_timeout_ms: int = option(
        10_000,
        "worker.hang.timeout.ms",
        unit="ms",
        minimum=1000,
        special=(0,),
        doc="If there are several workers: time after which a worker or replica process that hangs is "
        "killed. 0: never.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
