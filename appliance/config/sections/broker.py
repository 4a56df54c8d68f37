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
        doc="Number of partitions of a new topic if the request that creates it gives no number.",
    )
    default_replication_factor: int = option(
        0,
        "default.replication.factor",
        unit="replicas",
        minimum=1,
        special=(0,),
        doc="Number of replicas of a new topic if the request that creates it gives no number. 0 means "
        "the number of slots, but at most 3.",
    )
    auto_create_topics_enable: bool = option(
        True,
        "auto.create.topics.enable",
        doc="Whether the broker creates an unknown topic when a client requests its metadata.",
    )
    delete_topic_enable: bool = option(
        True,
        "delete.topic.enable",
        doc="Whether clients may delete topics.",
    )
    slots_removed_ok: bool = option(
        False,
        "slots.removed.ok",
        doc="Whether the appliance may start if the data directory has partitions on more slots than "
        "the option `slots` allows. The partitions of the missing slots are then unavailable.",
    )
    auto_create_topics_per_request: int = option(
        100,
        "auto.create.topics.request.max",
        unit="topics",
        minimum=1,
        doc="Maximum number of topics that the broker creates for one Metadata request. For the other "
        "unknown topics the client gets LEADER_NOT_AVAILABLE. The next request of the client then "
        "creates more topics.",
    )
    max_partitions: int = option(
        10_000,
        "max.partitions",
        unit="partitions",
        minimum=1,
        maximum=1_000_000,
        doc="Maximum number of partitions of the appliance. Each partition needs a row of shared memory.",
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
        doc="Maximum size of a fetch response, even if the client asks for more. Exception: a response "
        "with a single larger batch is larger.",
    )
    fetch_session_partitions_max: int = option(
        500_000,
        "fetch.session.cache.partitions.max",
        unit="partitions",
        minimum=1000,
        doc="Maximum number of partitions in all fetch sessions of one network process. Each of these "
        "partitions needs about 200 bytes. A consumer without a session lists its partitions in each "
        "request.",
    )
    fetch_session_slots: int = option(
        1000,
        "max.incremental.fetch.session.cache.slots",
        unit="sessions",
        minimum=0,
        doc="Maximum number of incremental fetch sessions of one network process.",
    )
    max_decompressed_message_bytes: int = option(
        104_857_600,
        "max.decompressed.message.bytes",
        unit="bytes",
        minimum=1024,
        doc="Maximum size of a batch after decompression. The broker rejects a larger batch as a "
        "decompression bomb.",
    )
    coordinator_processes: int = option(
        1,
        "coordinator.processes",
        unit="processes",
        minimum=1,
        maximum=16,
        doc="Number of coordinator processes. The coordinator processes divide the consumer groups among "
        "themselves. Partition p of __consumer_offsets belongs to process p modulo this number. When a "
        "coordinator process dies, only the groups of this process wait until it is restarted. Several "
        "processes help if a single coordinator process is busy all the time. Each coordinator process has "
        "its own pool of coordinator.pool.bytes. The processes divide the limits group.max.count, "
        "group.members.max, group.members.max.bytes and group.pending.members.max equally. If a client "
        "sends requests for several groups on one connection without waiting for the answers, these "
        "requests can take effect in another order.",
    )
    coordinator_pool_bytes: int = option(
        32 * _MIB,
        "coordinator.pool.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=4 * _MIB,
        maximum=2**31,
        doc="Memory of one coordinator process for its appends and large responses in flight. While "
        "this memory is full, further work waits.",
    )
    producer_id_expiration_ms: int = option(
        86_400_000,
        "producer.id.expiration.ms",
        unit="ms",
        minimum=1,
        effect=Effect.AT_ONCE,
        doc="Time after which the broker forgets the sequence numbers of a producer that sends nothing.",
    )
    producer_ids_per_partition_max: int = option(
        20_000,
        "producer.ids.per.partition.max",
        unit="producer ids",
        minimum=100,
        doc="Maximum number of producer ids whose sequence numbers one partition remembers. Above the "
        "maximum, the partition forgets the producers that have sent nothing for the longest time. The "
        "partition never forgets a producer with an open transaction.",
    )
    producer_ids_max: int = option(
        200_000,
        "producer.ids.max",
        unit="producer ids",
        minimum=1000,
        doc="Maximum number of producer ids that all partitions of one worker remember. Each id needs "
        "about 500 bytes. Above the maximum, a partition forgets one of its ids for each new id.",
    )
    log_flush_offset_checkpoint_interval_ms: int = option(
        60_000,
        "log.flush.offset.checkpoint.interval.ms",
        unit="ms",
        minimum=0,
        doc="Interval at which the broker writes recovery points, log start offsets and high watermarks"
        " to their checkpoint files.",
    )
    log_flush_start_offset_checkpoint_interval_ms: int = option(
        1000,
        "log.flush.start.offset.checkpoint.interval.ms",
        unit="ms",
        minimum=0,
        doc="Maximum delay before the broker writes a log start offset that DeleteRecords has moved to "
        "its checkpoint file. Kafka's default is one minute.",
    )
    reader_state_interval_ms: int = option(
        20,
        "reader.state.interval.ms",
        unit="ms",
        minimum=1,
        maximum=60_000,
        doc="Maximum delay before the broker writes the end of new records into the .state file of a "
        "partition. Readers of the disk see new records only after this delay.",
    )
    reader_lease_max_bytes: int = option(
        10 * 1024 * _MIB,
        "reader.lease.max.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=0,
        doc="Maximum size of the deleted segments that one process keeps for leases of readers of the "
        "disk. Above the maximum, the process revokes leases, even if their readers are alive. The process "
        "first revokes the leases for which it has kept segments for the longest time.",
    )
    reader_lease_max_ms: int = option(
        3_600_000,
        "reader.lease.max.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=0,
        doc="Maximum time for which a lease keeps deleted segments if its reader does not renew it. This "
        "maximum also applies if the lease asks for more time. After the maximum time, the broker revokes "
        "the lease. A live reader renews its lease every ten seconds.",
    )
    log_retention_check_interval_ms: int = option(
        300_000,
        "log.retention.check.interval.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="Interval at which the broker looks for segments that retention may delete.",
    )
    log_cleaner_dedupe_buffer_bytes: int = option(
        128 * _MIB,
        "log.cleaner.dedupe.buffer.size",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=_MIB,
        effect=Effect.AT_ONCE,
        doc="Maximum memory for the keys of one compaction round. The cleaner allocates only the memory"
        " that the keys need, and frees it after the round.",
    )
    log_cleaner_io_max_bytes_per_second: int = option(
        2**63 - 1,
        "log.cleaner.io.max.bytes.per.second",
        type=ConfigType.LONG,
        unit="bytes/s",
        minimum=1,
        effect=Effect.AT_ONCE,
        doc="Maximum average I/O rate of the cleaner, for reads and writes together.",
    )
    log_cleaner_backoff_ms: int = option(
        15_000,
        "log.cleaner.backoff.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=0,
        effect=Effect.AT_ONCE,
        doc="Pause between two rounds in which the cleaner looks for logs to compact. The cleaner looks"
        " only if a log has changed.",
    )
    replica_lag_time_max_ms: int = option(
        30_000,
        "replica.lag.time.max.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="Time after which a follower that has not caught up with the leader leaves the in-sync replicas.",
    )
    auto_leader_rebalance_enable: bool = option(
        True,
        "auto.leader.rebalance.enable",
        doc="Whether the controller gives leadership back to preferred leaders by itself. The preferred"
        " leader of a partition is its first replica.",
    )
    leader_imbalance_check_interval_seconds: int = option(
        300,
        "leader.imbalance.check.interval.seconds",
        type=ConfigType.LONG,
        unit="s",
        minimum=1,
        doc="Delay before the controller gives leadership back to preferred leaders. While some "
        "partitions have another leader, the controller checks again after the same time.",
    )
    leader_imbalance_per_broker_percentage: int = option(
        10,
        "leader.imbalance.per.broker.percentage",
        unit="%",
        minimum=0,
        maximum=100,
        doc="Percentage of a slot's preferred partitions that other slots may lead. Above this "
        "percentage, the controller gives leadership back to the slot.",
    )
    rack: str | None = option(
        None,
        "broker.rack",
        doc="The rack that Metadata and DescribeCluster report. The option has no other effect, because"
        " consumers always fetch from the leader.",
    )
    shutdown_timeout_ms: int = option(
        10_000,
        "shutdown.timeout.ms",
        unit="ms",
        minimum=100,
        doc="Maximum time of a clean stop. After this time the supervisor kills the processes that "
        "still run.",
    )
    restart_backoff_ms: int = option(
        50,
        "process.restart.backoff.ms",
        unit="ms",
        minimum=0,
        doc="Pause before the supervisor starts a dead process again. The pause doubles each time the "
        "process dies again.",
    )
    restart_backoff_max_ms: int = option(
        5000,
        "process.restart.backoff.max.ms",
        unit="ms",
        minimum=0,
        doc="Longest pause before the supervisor starts a dead process again.",
    )
    worker_hang_timeout_ms: int = option(
        10_000,
        "worker.hang.timeout.ms",
        unit="ms",
        minimum=1000,
        special=(0,),
        doc="Time after which the supervisor kills a worker or a replica process that hangs. With only one "
        "worker, the supervisor does not kill it. 0 means that the supervisor kills no hanging process.",
    )

    def __post_init__(self) -> None:
        check_fields(self)
