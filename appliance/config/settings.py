"""The options of the appliance, each declared where its value lives.

A field of a section *is* the option: its type is what mypy checks, its declaration (Kafka's name, unit,
default, range, sentence) is what the file, the flags, DescribeConfigs and docs/configuration.md read. No
`Settings` with a value outside its range can be made.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from appliance.config.declaration import INT32_MAX, ConfigType, Declaration, Effect, Value
from appliance.errors import ConfigurationError

T = TypeVar("T")

_DECLARATION: Final = "declaration"
_PORT_MAX: Final = 65535
_MIB: Final = 2**20
_SLOT: Final = "{slot}"
_LOG_DIRS_MAX: Final = 63
_MIGRATION_POLICIES: Final = ("bidirectional", "upgrade", "downgrade", "disabled")
_ASSIGNORS: Final = ("uniform", "range")
_DATA_DIR: Final = Path("data")
_ZOOKEEPER_HOST: Final = r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}"
_ZOOKEEPER_CONNECT: Final = re.compile(
    rf"{_ZOOKEEPER_HOST}(?:,{_ZOOKEEPER_HOST})*(?:/|(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_.-]+)+)?"
)


def option(
    default: T,
    name: str,
    *,
    doc: str,
    type: ConfigType | None = None,
    unit: str = "",
    minimum: float | None = None,
    maximum: float | None = None,
    choices: tuple[str, ...] = (),
    special: tuple[int, ...] = (),
    effect: Effect = Effect.AT_RESTART,
) -> T:
    """Declares the field it is assigned to; its type follows from the default, an int being Kafka's INT."""
    assert default is None or isinstance(default, (bool, int, str, Path, tuple))
    known = {bool: ConfigType.BOOLEAN, int: ConfigType.INT, tuple: ConfigType.LIST}
    inferred = known.get(default.__class__, ConfigType.STRING)
    declaration = Declaration(
        name=name,
        type=type or inferred,
        default=default,
        doc=doc,
        unit=unit,
        minimum=minimum,
        maximum=maximum,
        choices=choices,
        special=special,
        effect=effect,
    )
    declared: T = field(default=default, metadata={_DECLARATION: declaration})
    return declared


@dataclass(frozen=True, slots=True)
class NetworkSettings:
    """Acceptor and network processes."""

    processes: int = option(
        2,
        "network.processes",
        unit="processes",
        minimum=1,
        maximum=64,
        doc="Network processes that share the connections; Kafka's nearest word is num.network.threads.",
    )
    pool_bytes: int = option(
        256 * _MIB,
        "network.pool.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=_MIB,
        doc="Requests in flight that one network process holds at most; when full, sockets are not read.",
    )
    ring_slots: int = option(
        4096,
        "network.ring.slots",
        unit="messages",
        minimum=64,
        maximum=2**20,
        doc="Messages in each ring between two processes; a power of two.",
    )
    connections_max: int = option(
        10_000,
        "max.connections",
        unit="connections",
        minimum=1,
        doc="Connections held at once; one more is closed as soon as it is accepted.",
    )
    connections_max_per_ip: int = option(
        10_000,
        "max.connections.per.ip",
        unit="connections",
        minimum=1,
        doc="Connections held at once from one address.",
    )
    connections_max_idle_ms: int = option(
        600_000,
        "connections.max.idle.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="After how long a connection that sends nothing is closed.",
    )
    request_max_bytes: int = option(
        104_857_600,
        "socket.request.max.bytes",
        unit="bytes",
        minimum=1024,
        doc="Largest request; a longer one closes its connection before anything is allocated.",
    )
    requests_in_flight_per_connection: int = option(
        64,
        "network.requests.in.flight.per.connection",
        unit="requests",
        minimum=1,
        maximum=4096,
        doc="Requests of one connection under way at once; beyond that its socket is not read.",
    )
    request_stall_grace_ms: int = option(
        1000,
        "network.request.stall.grace.ms",
        unit="ms",
        minimum=1,
        doc="How long a half-received request may hold pool space while others wait for that space.",
    )
    socket_send_buffer_bytes: int = option(
        -1,
        "socket.send.buffer.bytes",
        unit="bytes",
        minimum=1,
        special=(-1,),
        doc="SO_SNDBUF of client sockets; -1 leaves it to the system, which adapts it to the connection.",
    )
    socket_receive_buffer_bytes: int = option(
        -1,
        "socket.receive.buffer.bytes",
        unit="bytes",
        minimum=1,
        special=(-1,),
        doc="SO_RCVBUF of client sockets; -1 leaves it to the system, which adapts it to the connection.",
    )
    listen_backlog: int = option(
        1024,
        "socket.listen.backlog.size",
        unit="connections",
        minimum=1,
        maximum=65535,
        doc="Connections the system may hold ready before they are accepted.",
    )

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.ring_slots & (self.ring_slots - 1):
            raise ConfigurationError(f"network.ring.slots = {self.ring_slots}: wants a power of two")
        if self.pool_bytes < self.request_max_bytes:
            raise ConfigurationError(
                f"network.pool.bytes = {self.pool_bytes}: under socket.request.max.bytes = "
                f"{self.request_max_bytes}, so a request of that size could never be received"
            )


@dataclass(frozen=True, slots=True)
class IoSettings:
    """Workers that own the leader partitions."""

    workers: int = option(
        1,
        "io.workers",
        unit="processes",
        minimum=1,
        maximum=64,
        doc="I/O worker processes of each slot; a partition belongs to one of them. Kafka: num.io.threads.",
    )

    def __post_init__(self) -> None:
        _check_fields(self)


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
    coordinator_pool_bytes: int = option(
        32 * _MIB,
        "coordinator.pool.bytes",
        type=ConfigType.LONG,
        unit="bytes",
        minimum=4 * _MIB,
        maximum=2**31,
        doc="Answers and appends of the coordinator under way at most; what does not fit waits its turn.",
    )
    producer_id_expiration_ms: int = option(
        86_400_000,
        "producer.id.expiration.ms",
        unit="ms",
        minimum=1,
        effect=Effect.AT_ONCE,
        doc="After how long the sequence numbers of a silent producer are forgotten.",
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
        doc="Deleted segments that leases of readers off the disk keep from removal at most, in each process that"
        " owns logs; beyond it the leases on what was held longest are revoked.",
    )
    reader_lease_max_ms: int = option(
        3_600_000,
        "reader.lease.max.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=0,
        doc="How long a lease keeps a deleted segment from removal at most; then it is revoked.",
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
        doc="Most memory the cleaner takes for the keys of one round; it takes what the keys need, and gives it back.",
    )
    log_cleaner_io_max_bytes_per_second: int = option(
        2**63 - 1,
        "log.cleaner.io.max.bytes.per.second",
        type=ConfigType.LONG,
        unit="bytes/s",
        minimum=1,
        doc="What the cleaner reads and writes in a second at most, on average.",
    )
    log_cleaner_backoff_ms: int = option(
        15_000,
        "log.cleaner.backoff.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=0,
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
        doc="The rack that clients are told; for fetching from the nearest replica.",
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
        doc="With several slots: how long an I/O worker or a replica may stand still until it is ended; 0: for ever.",
    )

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Consumer groups."""

    min_session_timeout_ms: int = option(
        6000,
        "group.min.session.timeout.ms",
        unit="ms",
        minimum=0,
        doc="Shortest session timeout a member of a classic group may ask for.",
    )
    max_session_timeout_ms: int = option(
        1_800_000,
        "group.max.session.timeout.ms",
        unit="ms",
        minimum=0,
        doc="Longest session timeout a member of a classic group may ask for.",
    )
    initial_rebalance_delay_ms: int = option(
        3000,
        "group.initial.rebalance.delay.ms",
        unit="ms",
        minimum=0,
        doc="How long the first rebalance of an empty group waits for more members; each new one prolongs it.",
    )
    max_size: int = option(
        INT32_MAX,
        "group.max.size",
        unit="members",
        minimum=1,
        doc="Members that a classic group may have.",
    )
    consumer_session_timeout_ms: int = option(
        45_000,
        "group.consumer.session.timeout.ms",
        unit="ms",
        minimum=1,
        doc="How long a member of a consumer group (KIP-848) may be silent before it is out.",
    )
    consumer_min_session_timeout_ms: int = option(
        45_000,
        "group.consumer.min.session.timeout.ms",
        unit="ms",
        minimum=1,
        doc="Shortest session timeout that consumer groups may be given.",
    )
    consumer_max_session_timeout_ms: int = option(
        60_000,
        "group.consumer.max.session.timeout.ms",
        unit="ms",
        minimum=1,
        doc="Longest session timeout that consumer groups may be given.",
    )
    consumer_heartbeat_interval_ms: int = option(
        5_000,
        "group.consumer.heartbeat.interval.ms",
        unit="ms",
        minimum=1,
        doc="How often members of consumer groups are told to send heartbeats; less than their session timeout.",
    )
    consumer_min_heartbeat_interval_ms: int = option(
        5_000,
        "group.consumer.min.heartbeat.interval.ms",
        unit="ms",
        minimum=1,
        doc="Shortest heartbeat interval that consumer groups may be given.",
    )
    consumer_max_heartbeat_interval_ms: int = option(
        15_000,
        "group.consumer.max.heartbeat.interval.ms",
        unit="ms",
        minimum=1,
        doc="Longest heartbeat interval that consumer groups may be given.",
    )
    consumer_max_size: int = option(
        INT32_MAX,
        "group.consumer.max.size",
        unit="members",
        minimum=1,
        doc="Members that a consumer group may have.",
    )
    consumer_assignors: tuple[str, ...] = option(
        _ASSIGNORS,
        "group.consumer.assignors",
        choices=_ASSIGNORS,
        doc="Assignors that members of consumer groups may ask for; the first one serves who asks for none.",
    )
    consumer_migration_policy: str = option(
        "bidirectional",
        "group.consumer.migration.policy",
        doc="Whether groups with members change between the classic protocol and KIP-848's: bidirectional, upgrade,"
        " downgrade or disabled.",
    )

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.consumer_migration_policy not in _MIGRATION_POLICIES:
            raise ConfigurationError(
                f"group.consumer.migration.policy = {self.consumer_migration_policy!r}: one of "
                f"{', '.join(_MIGRATION_POLICIES)}"
            )
        if not self.consumer_assignors or len(set(self.consumer_assignors)) < len(self.consumer_assignors):
            raise ConfigurationError(
                f"group.consumer.assignors = {','.join(self.consumer_assignors)!r}: wants one or more, each once"
            )
        for name, low, value, high in (
            (
                "session.timeout",
                self.consumer_min_session_timeout_ms,
                self.consumer_session_timeout_ms,
                self.consumer_max_session_timeout_ms,
            ),
            (
                "heartbeat.interval",
                self.consumer_min_heartbeat_interval_ms,
                self.consumer_heartbeat_interval_ms,
                self.consumer_max_heartbeat_interval_ms,
            ),
        ):
            if not low <= value <= high:
                raise ConfigurationError(
                    f"group.consumer.{name}.ms = {value}: not from group.consumer.min.{name}.ms = {low} to "
                    f"group.consumer.max.{name}.ms = {high}"
                )
        if self.consumer_heartbeat_interval_ms >= self.consumer_session_timeout_ms:
            raise ConfigurationError(
                f"group.consumer.heartbeat.interval.ms = {self.consumer_heartbeat_interval_ms}: not less than "
                f"group.consumer.session.timeout.ms = {self.consumer_session_timeout_ms}"
            )


@dataclass(frozen=True, slots=True)
class OffsetsSettings:
    """Committed offsets of consumer groups, and the topic they lie in."""

    topic_num_partitions: int = option(
        50,
        "offsets.topic.num.partitions",
        unit="partitions",
        minimum=1,
        doc="Partitions that __consumer_offsets is created with; groups are spread over them by their id.",
    )
    topic_replication_factor: int = option(
        0,
        "offsets.topic.replication.factor",
        type=ConfigType.SHORT,
        unit="replicas",
        minimum=1,
        maximum=32,
        special=(0,),
        doc="Replicas that __consumer_offsets is created with; 0 is the number of slots, at most 3.",
    )
    topic_segment_bytes: int = option(
        100 * _MIB,
        "offsets.topic.segment.bytes",
        unit="bytes",
        minimum=_MIB,
        doc="Segments of __consumer_offsets; compaction takes only closed ones, and a replay reads what is left.",
    )
    topic_compression_codec: int = option(
        0,
        "offsets.topic.compression.codec",
        unit="codec",
        minimum=0,
        maximum=4,
        doc="How batches of __consumer_offsets are compressed: 0 not, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
    metadata_max_bytes: int = option(
        4096,
        "offset.metadata.max.bytes",
        unit="characters",
        minimum=0,
        maximum=32_767,
        doc="Longest text that a committed offset may carry.",
    )
    retention_minutes: int = option(
        10_080,
        "offsets.retention.minutes",
        unit="minutes",
        minimum=1,
        doc="How long offsets are kept of a group without members, or of a topic that it consumes no more.",
    )
    retention_check_interval_ms: int = option(
        600_000,
        "offsets.retention.check.interval.ms",
        type=ConfigType.LONG,
        unit="ms",
        minimum=1,
        doc="How often offsets are looked at that have had their time.",
    )

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True, slots=True)
class MetadataSettings:
    """Where topics, leaders and settings are kept."""

    store: str = option(
        "embedded",
        "metadata.store",
        choices=("embedded", "zookeeper"),
        doc="Where topics, leaders and settings are kept: in a file of data.dir, or in a ZooKeeper ensemble.",
    )
    zookeeper_connect: str | None = option(
        None,
        "zookeeper.connect",
        doc="The ensemble, host:port,host:port/chroot. One appliance to a chroot; it is created where missing.",
    )
    zookeeper_session_timeout_ms: int = option(
        18_000,
        "zookeeper.session.timeout.ms",
        unit="ms",
        minimum=1000,
        maximum=600_000,
        doc="How long ZooKeeper may hear nothing of the controller before another one may take its place.",
    )

    def __post_init__(self) -> None:
        _check_fields(self)
        connect = self.zookeeper_connect
        if self.store == "zookeeper" and connect is None:
            raise ConfigurationError("metadata.store = zookeeper: wants zookeeper.connect")
        if self.store != "zookeeper" and connect is not None:
            raise ConfigurationError("zookeeper.connect is set: wants metadata.store = zookeeper")
        if connect is not None and _ZOOKEEPER_CONNECT.fullmatch(connect) is None:
            raise ConfigurationError(
                f"zookeeper.connect = {connect[:100]!r}: wants host:port, more of them after commas, "
                "and a /chroot if there is one"
            )


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything the operator decides. Made by `appliance.config.load_settings`, or directly by a test.

    `configured` holds what was set, name → text: by it DescribeConfigs tells a set value from a default.
    `topic_defaults` is what it makes of the topic settings: topic setting → value, only where set.
    """

    data_dir: Path = option(  # noqa: RUF009 - a dataclass field like the others
        _DATA_DIR,
        "data.dir",
        doc="Directory of everything that is kept. In a file, relative to that file; Kafka: log.dirs.",
    )
    log_dirs: str | None = option(
        None,
        "log.dirs",
        doc="Log directories of a slot, comma-separated: put each on its own disk. `{slot}` stands for the slot's"
        " number. Relative ones are in data.dir; without any, data.dir/slot-N is the only one.",
    )
    host: str = option(
        "127.0.0.1",
        "host",
        doc="Address to listen on.",
    )
    port: int = option(
        9092,
        "port",
        minimum=1,
        maximum=_PORT_MAX,
        doc="Port of slot 0; slot n listens on port + n.",
    )
    slots: int = option(
        1,
        "slots",
        unit="slots",
        minimum=1,
        maximum=32,
        doc="Broker slots: each is what a client sees as one broker.",
    )
    advertised_host: str | None = option(
        None,
        "advertised.host",
        doc="Address that clients are told to connect to, where it differs from `host`.",
    )
    network: NetworkSettings = field(default_factory=NetworkSettings)
    io: IoSettings = field(default_factory=IoSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    offsets: OffsetsSettings = field(default_factory=OffsetsSettings)
    metadata: MetadataSettings = field(default_factory=MetadataSettings)
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    configured: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.port + self.slots - 1 > _PORT_MAX:
            raise ConfigurationError(f"slots = {self.slots}: port {self.port} leaves no room for their ports")
        if self.log_dirs is not None:
            names = _names(self.log_dirs)
            if not names or len({os.path.normpath(self.data_dir / name) for name in names}) < len(names):
                raise ConfigurationError(f"log.dirs = {self.log_dirs!r}: wants different directories")
            if len(names) > _LOG_DIRS_MAX:
                raise ConfigurationError(
                    f"log.dirs names {len(names)} directories, at most {_LOG_DIRS_MAX} serve"
                )
            if self.slots > 1 and not all(_SLOT in name for name in names):
                raise ConfigurationError(
                    f"log.dirs = {self.log_dirs!r}: {self.slots} slots want {_SLOT} in each"
                )
        factor = self.broker.default_replication_factor
        if factor > self.slots:
            raise ConfigurationError(
                f"default.replication.factor = {factor}: more replicas than slots = {self.slots}"
            )
        if factor == 0:
            resolved = replace(self.broker, default_replication_factor=min(3, self.slots))
            object.__setattr__(self, "broker", resolved)

    @property
    def client_host(self) -> str:
        """The host clients are told: `advertised_host`, else `host` (loopback where that means "any")."""
        if self.advertised_host is not None:
            return self.advertised_host
        return {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)

    def slot_directory(self, slot: int) -> Path:
        """The first log directory of slot `slot`, counted from 0."""
        return self.log_directories(slot)[0]

    def log_directories(self, slot: int) -> tuple[Path, ...]:
        """The log directories of slot `slot`, counted from 0. Relative ones are in `data_dir`."""
        if self.log_dirs is None:
            return (self.data_dir / f"slot-{slot}",)
        return tuple(self.data_dir / name.replace(_SLOT, str(slot)) for name in _names(self.log_dirs))


Section = NetworkSettings | IoSettings | BrokerSettings | GroupSettings | OffsetsSettings | MetadataSettings

SECTIONS: Final[Mapping[str, type[Section]]] = {
    "network": NetworkSettings,
    "io": IoSettings,
    "broker": BrokerSettings,
    "group": GroupSettings,
    "offsets": OffsetsSettings,
    "metadata": MetadataSettings,
}
"""Attribute of `Settings` → class of the section."""


def declared_fields(section: type[Any] | Any) -> Iterator[tuple[str, Declaration]]:
    """Field name and declaration of every option of a section, in the order of the source."""
    for each in fields(section):
        if _DECLARATION in each.metadata:
            yield each.name, each.metadata[_DECLARATION]


def option_declarations() -> dict[str, tuple[str, str, Declaration]]:
    """Option name → (section's attribute, "" for Settings itself; field; declaration)."""
    found: dict[str, tuple[str, str, Declaration]] = {}
    for section, of in {"": Settings, **SECTIONS}.items():
        for name, declaration in declared_fields(of):
            found[declaration.name] = (section, name, declaration)
    return found


def _names(log_dirs: str) -> list[str]:
    return [name.strip() for name in log_dirs.split(",") if name.strip()]


def _check_fields(section: Any) -> None:
    for name, declaration in declared_fields(section):
        value: Value = getattr(section, name)
        declaration.check(value)
