"""The page `/metrics/kafka`: the same numbers under the names that dashboards for Apache Kafka ask for.

    A   Kafka's JMX beans as the jmx_exporter rules of Strimzi and Confluent spell them
    B   kafka_exporter: offsets of topics, offsets and lag of groups

Values and labels are as there, with these differences. One page shows all broker slots, so what Kafka has for each
broker has a label `broker`. Series of partitions need the option metrics.partitions; without it there is one series for
each topic, which is the sum. JMX shows quantiles of a decaying sample; here they are of the last minutes, from the
buckets of a histogram. What the broker does not count is left out (docs/metrics.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from appliance.channels.roles import RoleKind
from appliance.channels.traffic_table import (
    BUCKETS_NS,
    BYTES_IN,
    BYTES_OUT,
    FAILED_FETCHES,
    FAILED_PRODUCES,
    FETCH_LOG,
    FETCH_QUEUE,
    FETCHES,
    FLUSH_TIME,
    PRODUCE_LOG,
    PRODUCE_QUEUE,
    PRODUCE_REPLICATE,
    PRODUCES,
    RECORDS_IN,
    REQUESTS,
    SEND_TIME,
    TOTAL_TIME,
)
from appliance.ipc.process_table import ProcessState
from appliance.metrics.exposition import Family, Kind, Page, Value
from appliance.metrics.group_lag import lags
from appliance.metrics.own_page import (
    Extra,
    buckets,
    errors,
    failed_directories,
    has_controller,
    used_apis,
)
from appliance.metrics.snapshot import STAGES_AT, PartitionState, Snapshot
from appliance.metrics.topology import Topic
from appliance.metrics.writing import counted, shown

QUANTILES: Final = (0.5, 0.75, 0.95, 0.98, 0.99, 0.999)
RUNNING: Final = 3
"""BrokerState of a broker that serves. Source: Kafka's `BrokerState.java`."""
NOT_RUNNING: Final = 0

_NS_PER_MS: Final = 1e6
_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE
_BROKER: Final = ("broker",)
_PARTITION: Final = ("topic", "partition")

_TOPIC_METRICS: Final = tuple(
    (Family(f"kafka_server_brokertopicmetrics_{name}_total", _C, help, ("topic",)), column)
    for name, column, help in (
        ("messagesin", RECORDS_IN, "Records that clients have produced."),
        ("bytesin", BYTES_IN, "Bytes that clients have produced."),
        ("bytesout", BYTES_OUT, "Bytes that clients have fetched."),
        ("totalproducerequests", PRODUCES, "Batches that clients have sent."),
        ("failedproducerequests", FAILED_PRODUCES, "Batches that were refused."),
        ("totalfetchrequests", FETCHES, "Partitions that were fetched."),
        ("failedfetchrequests", FAILED_FETCHES, "Partitions whose fetch has failed."),
    )
)

_CONTROLLER: Final = "kafka_controller_kafkacontroller"
ACTIVE_CONTROLLER = Family(f"{_CONTROLLER}_activecontrollercount", _G, "1 on the active controller.", _BROKER)
OFFLINE_PARTITIONS = Family(
    f"{_CONTROLLER}_offlinepartitionscount", _G, "Partitions without a leader.", _BROKER
)
GLOBAL_TOPICS = Family(f"{_CONTROLLER}_globaltopiccount", _G, "Topics.", _BROKER)
GLOBAL_PARTITIONS = Family(f"{_CONTROLLER}_globalpartitioncount", _G, "Partitions.", _BROKER)
IMBALANCE = Family(
    f"{_CONTROLLER}_preferredreplicaimbalancecount",
    _G,
    "Partitions whose leader is not the preferred leader.",
    _BROKER,
)
UNCLEAN_ELECTIONS = Family(
    "kafka_controller_controllerstats_uncleanleaderelections_total",
    _C,
    "Elections of leaders that were not in sync.",
)

_REPLICA_MANAGER: Final = "kafka_server_replicamanager"
LEADERS = Family(f"{_REPLICA_MANAGER}_leadercount", _G, "Partitions that the broker leads.", _BROKER)
REPLICAS = Family(f"{_REPLICA_MANAGER}_partitioncount", _G, "Replicas of the broker.", _BROKER)
UNDER_REPLICATED = Family(
    f"{_REPLICA_MANAGER}_underreplicatedpartitions", _G, "Led partitions with a replica out of sync.", _BROKER
)
UNDER_MIN_ISR = Family(
    f"{_REPLICA_MANAGER}_underminisrpartitioncount", _G, "Led partitions below min.insync.replicas.", _BROKER
)
AT_MIN_ISR = Family(
    f"{_REPLICA_MANAGER}_atminisrpartitioncount", _G, "Led partitions at min.insync.replicas.", _BROKER
)
ISR_SHRINKS = Family(f"{_REPLICA_MANAGER}_isrshrinks_total", _C, "Replicas that have left an ISR.")
ISR_EXPANDS = Family(f"{_REPLICA_MANAGER}_isrexpands_total", _C, "Replicas that have joined an ISR.")

CLUSTER_UNDER_MIN_ISR = Family(
    "kafka_cluster_partition_underminisr", _G, "Partitions below min.insync.replicas.", _BROKER
)
CLUSTER_AT_MIN_ISR = Family(
    "kafka_cluster_partition_atminisr", _G, "Partitions at min.insync.replicas.", _BROKER
)

SEGMENTS = Family("kafka_log_log_numlogsegments", _G, "Segments of the leaders' logs.", ("topic",))
LOG_START = Family("kafka_log_log_logstartoffset", _G, "Log start offset.", _PARTITION)
LOG_END = Family("kafka_log_log_logendoffset", _G, "Log end offset of the leader.", _PARTITION)
LOG_SIZE = Family("kafka_log_log_size", _G, "Bytes of the leader's log.", _PARTITION)
TOPIC_LOG_SIZE = Family("kafka_log_log_size", _G, "Bytes of the leaders' logs.", ("topic",))
OFFLINE_DIRECTORIES = Family(
    "kafka_log_logmanager_offlinelogdirectorycount", _G, "Log directories that have failed.", _BROKER
)

UNCLEANABLE = Family(
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    _G,
    "Partitions that the cleaner cannot compact.",
)
DISK_READ = Family("kafka_server_kafkaserver_linux_disk_read_bytes", _G, "Bytes that disks have read.")
DISK_WRITTEN = Family(
    "kafka_server_kafkaserver_linux_disk_write_bytes",
    _G,
    "Bytes of files that were changed in the page cache.",
)
PROCESS_CPU = Family("process_cpu_seconds_total", _C, "Processor time of all processes, user and system.")
PROCESS_MEMORY = Family(
    "process_resident_memory_bytes", _G, "Memory of all processes. Shared memory counts once (PSS)."
)
PROCESS_FILES = Family("process_open_fds", _G, "Descriptors that all processes have open.")

NETWORK_IDLE = Family(
    "kafka_network_socketserver_networkprocessoravgidle_percent",
    _G,
    "Idle share of network processes, 0 to 1.",
)
WORKER_IDLE = Family(
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    _G,
    "Idle share of I/O workers, 0 to 1.",
)
CONNECTIONS = Family(
    "kafka_server_socket_server_metrics_connection_count", _G, "Open connections.", ("networkProcessor",)
)
REQUESTS_TOTAL = Family("kafka_network_requestmetrics_requests_total", _C, "Requests.", ("request",))
ERRORS_TOTAL = Family(
    "kafka_network_requestmetrics_errors_total",
    _C,
    "Partitions answered with an error.",
    ("request", "error"),
)
TOTAL_TIME_MS = Family(
    "kafka_network_requestmetrics_totaltimems",
    Kind.SUMMARY,
    "Milliseconds from a request's arrival to the last byte of its answer.",
    ("request",),
)
SEND_TIME_MS = Family(
    "kafka_network_requestmetrics_responsesendtimems",
    Kind.SUMMARY,
    "Milliseconds from the complete answer until its last byte is sent.",
    ("request",),
)
QUEUE_TIME_MS = Family(
    "kafka_network_requestmetrics_requestqueuetimems",
    Kind.SUMMARY,
    "Milliseconds from a request's arrival until a worker takes an operation of the request.",
    ("request",),
)
LOCAL_TIME_MS = Family(
    "kafka_network_requestmetrics_localtimems",
    Kind.SUMMARY,
    "Milliseconds of the append, or of the look-up of records.",
    ("request",),
)
REMOTE_TIME_MS = Family(
    "kafka_network_requestmetrics_remotetimems",
    Kind.SUMMARY,
    "Milliseconds that an answer waits for followers or for the disk.",
    ("request",),
)
FLUSH_TIME_MS = Family(
    "kafka_log_logflushstats_logflushrateandtimems", Kind.SUMMARY, "Milliseconds of a flush of a log.", ()
)
QUEUE_SIZE = Family(
    "kafka_network_requestchannel_requestqueuesize", _G, "Requests that wait for I/O workers."
)
PURGATORY = Family(
    "kafka_server_delayedoperationpurgatory_purgatorysize", _G, "Operations that wait.", ("delayedOperation",)
)
BROKER_STATE = Family("kafka_server_kafkaserver_brokerstate", _G, "3 if the broker serves clients.", _BROKER)
GROUPS = Family("kafka_coordinator_group_groupmetadatamanager_numgroups", _G, "Consumer groups.")

# B

BROKERS = Family("kafka_brokers", _G, "Brokers.")
BROKER_INFO = Family("kafka_broker_info", _G, "Always 1. The labels are id and address.", ("id", "address"))
TOPIC_PARTITIONS = Family("kafka_topic_partitions", _G, "Partitions of a topic.", ("topic",))


def _topic_partition(name: str, help: str) -> tuple[Family, Family]:
    """Return a family by partition and the same by topic."""
    full = f"kafka_topic_partition_{name}"
    return Family(full, _G, help, _PARTITION), Family(full, _G, help, ("topic",))


CURRENT_OFFSET = _topic_partition("current_offset", "High watermark.")
OLDEST_OFFSET = _topic_partition("oldest_offset", "Log start offset.")
IN_SYNC = _topic_partition("in_sync_replica", "In-sync replicas.")
PARTITION_REPLICAS = _topic_partition("replicas", "Replicas.")
PARTITION_UNDER_REPLICATED = _topic_partition("under_replicated_partition", "1 if a replica is out of sync.")
LEADER = _topic_partition("leader", "Node id of the leader.")
PREFERRED = _topic_partition("leader_is_preferred", "1 if the preferred leader leads.")

_GROUP: Final = ("consumergroup", "topic", "partition")
_GROUP_TOPIC: Final = ("consumergroup", "topic")
GROUP_OFFSET = Family("kafka_consumergroup_current_offset", _G, "Committed offset.", _GROUP)
GROUP_LAG = Family("kafka_consumergroup_lag", _G, "High watermark minus committed offset.", _GROUP)
GROUP_TOPIC_OFFSET = Family(
    "kafka_consumergroup_current_offset", _G, "Committed offsets, summed.", _GROUP_TOPIC
)
GROUP_TOPIC_LAG = Family(
    "kafka_consumergroup_lag", _G, "High watermarks less committed offsets, summed.", _GROUP_TOPIC
)
GROUP_OFFSET_SUM = Family(
    "kafka_consumergroup_current_offset_sum", _G, "Committed offsets of a topic, summed.", _GROUP_TOPIC
)
GROUP_LAG_SUM = Family("kafka_consumergroup_lag_sum", _G, "Lag in a topic, summed.", _GROUP_TOPIC)
GROUP_MEMBERS = Family("kafka_consumergroup_members", _G, "Members.", ("consumergroup",))


def _all() -> tuple[Family, ...]:
    """Return every family once, those by partition where there are two."""
    found: dict[str, Family] = {}
    for each in (*(family for family, _ in _TOPIC_METRICS), *globals().values()):
        for family in each if isinstance(each, tuple) else (each,):
            if isinstance(family, Family):
                found.setdefault(family.name, family)
    return tuple(found.values())


ALL: Final = _all()


def write_kafka_page(page: Page, now: Snapshot, extra: Extra, *, before: Sequence[int] | None) -> None:
    """Write families A and B.

    Args:
        before: `Snapshot.apis` of some minutes ago, for the quantiles; None: since the start.
    """
    _write_brokers(page, now)
    _write_topics(page, now, extra)
    _write_requests(page, now, extra, before=before)
    _write_processes(page, now, extra)
    _write_exporter(page, now, extra)
    _write_groups(page, now, extra)


def _one(page: Page, family: Family, value: Value, *labels: str) -> None:
    page.begin(family)
    page.add(value, *labels)


def _write_brokers(page: Page, now: Snapshot) -> None:
    topology = now.topology
    brokers = sorted(topology.brokers)
    active = topology.controller_id if has_controller(now) else -1
    for family, value in (
        (ACTIVE_CONTROLLER, 1),
        (OFFLINE_PARTITIONS, now.offline_partitions),
        (GLOBAL_TOPICS, topology.topic_count),
        (GLOBAL_PARTITIONS, topology.partition_count),
        (IMBALANCE, sum(topology.not_preferred.values())),
    ):
        page.gauge(family, [(value if broker == active else 0, (str(broker),)) for broker in brokers])
    for family, counts in (
        (LEADERS, topology.leaders),
        (REPLICAS, topology.replicas),
        (UNDER_REPLICATED, topology.under_replicated),
        (UNDER_MIN_ISR, topology.under_min_isr),
        (AT_MIN_ISR, topology.at_min_isr),
        (CLUSTER_UNDER_MIN_ISR, topology.under_min_isr),
        (CLUSTER_AT_MIN_ISR, topology.at_min_isr),
    ):
        page.gauge(family, [(counts[broker], (str(broker),)) for broker in brokers])
    _one(page, ISR_SHRINKS, counted(now, RoleKind.CONTROLLER, "isr_shrinks"))
    _one(page, ISR_EXPANDS, counted(now, RoleKind.CONTROLLER, "isr_expansions"))
    _one(page, UNCLEAN_ELECTIONS, counted(now, RoleKind.CONTROLLER, "unclean_elections"))
    page.gauge(OFFLINE_DIRECTORIES, failed_directories(now))
    _one(page, UNCLEANABLE, shown(now, RoleKind.CLEANER, "uncleanable_partitions"))
    workers = now.of_kind(RoleKind.IOPROC)
    serving = {
        broker: all(
            each.usage.is_running and each.row.state is ProcessState.RUNNING
            for each in workers
            if each.role.slot == broker
        )
        for broker in brokers
    }
    page.gauge(
        BROKER_STATE,
        [(RUNNING if serving[broker] else NOT_RUNNING, (str(broker),)) for broker in brokers],
    )


def _write_topics(page: Page, now: Snapshot, extra: Extra) -> None:
    for family, column in _TOPIC_METRICS:
        page.begin(family)
        page.add_sum(now.head[column])
        for topic in now.topics:
            page.add(topic.total(column - BYTES_IN), topic.name)
    page.gauge(SEGMENTS, [(topic.segments, (topic.name,)) for topic in now.topics])
    if not extra.with_partitions:
        page.gauge(TOPIC_LOG_SIZE, [(topic.log_bytes, (topic.name,)) for topic in now.topics])
        return
    states = [(topic.name, topic.partitions) for topic in now.topics]
    for family, attribute in ((LOG_SIZE, "log_bytes"), (LOG_START, "log_start"), (LOG_END, "log_end")):
        page.begin(family)
        for name, partitions in states:
            for each in partitions:
                page.add(getattr(each, attribute), name, str(each.partition))


def _requests(now: Snapshot) -> list[tuple[str, int]]:
    """Return the APIs. Kafka shows Fetch twice, because followers send it, too. Here only consumers do."""
    return [
        (name, at)
        for api, at in used_apis(now)
        for name in (("Fetch", "FetchConsumer") if api == "Fetch" else (api,))
    ]


def _write_requests(page: Page, now: Snapshot, extra: Extra, *, before: Sequence[int] | None) -> None:
    _one(page, NETWORK_IDLE, extra.network_idle)
    _one(page, WORKER_IDLE, extra.worker_idle)
    page.gauge(
        CONNECTIONS,
        [
            (each.row.connections if each.usage.is_running else 0, (str(each.role.index),))
            for each in now.of_kind(RoleKind.NETPROC)
        ],
    )
    apis = _requests(now)
    page.gauge(REQUESTS_TOTAL, [(now.apis[at + REQUESTS], (api,)) for api, at in apis])
    page.gauge(ERRORS_TOTAL, [(count, (api, error)) for api, error, count in errors(now)])
    for family, histogram in ((TOTAL_TIME_MS, TOTAL_TIME), (SEND_TIME_MS, SEND_TIME)):
        _write_summaries(page, now, family, [((api,), at + histogram) for api, at in apis], before=before)
    for family, places in _STAGES:
        found = [((api,), STAGES_AT + places[api]) for api, _ in apis if api in places]
        _write_summaries(page, now, family, found, before=before)
    _write_summaries(page, now, FLUSH_TIME_MS, [((), STAGES_AT + FLUSH_TIME)], before=before)
    workers = [each for each in now.of_kind(RoleKind.IOPROC) if each.usage.is_running]
    _one(page, QUEUE_SIZE, sum(each.row.queue_depth for each in workers))
    page.gauge(
        PURGATORY,
        [
            (shown(now, RoleKind.PURGATORY, "waiting"), ("Fetch",)),
            (shown(now, RoleKind.PURGATORY, "held_answers"), ("Produce",)),
        ],
    )
    _one(page, GROUPS, shown(now, RoleKind.COORDINATOR, "groups"))


_STAGES: Final[tuple[tuple[Family, Mapping[str, int]], ...]] = (
    (QUEUE_TIME_MS, {"Produce": PRODUCE_QUEUE, "Fetch": FETCH_QUEUE, "FetchConsumer": FETCH_QUEUE}),
    (LOCAL_TIME_MS, {"Produce": PRODUCE_LOG, "Fetch": FETCH_LOG, "FetchConsumer": FETCH_LOG}),
    (REMOTE_TIME_MS, {"Produce": PRODUCE_REPLICATE}),
)
"""Name of a request → where the histogram begins in the page of a worker."""


def _write_summaries(
    page: Page,
    now: Snapshot,
    family: Family,
    found: Iterable[tuple[tuple[str, ...], int]],
    *,
    before: Sequence[int] | None,
) -> None:
    """Write one summary for each pair of labels and first word in `Snapshot.apis`."""
    page.begin(family)
    for labels, at in found:
        counts = recent = buckets(now, at)
        if before is not None:
            recent = [
                count - then
                for count, then in zip(counts, before[at + 1 : at + 1 + len(counts)], strict=True)
            ]
        page.summary(
            labels,
            quantiles=[(str(each), quantile(recent, each) / _NS_PER_MS) for each in QUANTILES],
            count=sum(counts),
            total=now.apis[at] / _NS_PER_MS,
        )


def quantile(counts: Sequence[int], share: float) -> float:
    """Return the duration in nanoseconds below which this share of observations is, from their buckets.

    Between two bounds it is interpolated, as Prometheus' `histogram_quantile` does; above the last it is that bound.
    Without observations it is 0, as in JMX.
    """
    total = sum(counts)
    if not total:
        return 0.0
    wanted, below, lower_ns = share * total, 0, 0
    for bound_ns, count in zip(BUCKETS_NS, counts, strict=False):
        if below + count >= wanted and count:
            return lower_ns + (bound_ns - lower_ns) * (wanted - below) / count
        below += count
        lower_ns = bound_ns
    return float(BUCKETS_NS[-1])


def _write_processes(page: Page, now: Snapshot, extra: Extra) -> None:
    """Write what clients for Prometheus say of their one process, summed over ours."""
    usages, shares = [each.usage for each in now.processes], extra.shares.values()
    _one(page, DISK_READ, sum(each.read_bytes for each in usages))
    _one(page, DISK_WRITTEN, sum(each.written_bytes for each in usages))
    _one(page, PROCESS_CPU, sum(each.cpu_seconds for each in usages))
    for family, sizes in (
        (PROCESS_MEMORY, [each.proportional_bytes for each in shares]),
        (PROCESS_FILES, [each.open_files for each in shares]),
    ):
        page.gauge(family, [(sum(sizes), ())] if sizes and min(sizes) >= 0 else [])


def _write_exporter(page: Page, now: Snapshot, extra: Extra) -> None:
    topology = now.topology
    _one(page, BROKERS, len(topology.brokers))
    page.gauge(
        BROKER_INFO,
        [(1, (str(broker), address)) for broker, address in sorted(topology.brokers.items())],
    )
    page.gauge(TOPIC_PARTITIONS, [(len(each.topic.rows), (each.name,)) for each in now.topics])
    if extra.with_partitions:
        _write_exporter_partitions(page, now)
        return
    columns = now.columns
    sums: tuple[tuple[tuple[Family, Family], Callable[[Topic], int]], ...] = (
        (CURRENT_OFFSET, lambda topic: topic.total(columns.high_watermark)),
        (OLDEST_OFFSET, lambda topic: topic.total(columns.log_start)),
        (IN_SYNC, lambda topic: topic.in_sync),
        (PARTITION_REPLICAS, lambda topic: topic.replicas),
        (PARTITION_UNDER_REPLICATED, lambda topic: topic.under_replicated),
    )
    for (_, by_topic), value in sums:
        page.gauge(by_topic, [(value(each.topic), (each.name,)) for each in now.topics])


def _write_exporter_partitions(page: Page, now: Snapshot) -> None:
    values: tuple[tuple[tuple[Family, Family], Callable[[PartitionState], int]], ...] = (
        (CURRENT_OFFSET, lambda each: each.high_watermark),
        (OLDEST_OFFSET, lambda each: each.log_start),
        (IN_SYNC, lambda each: each.in_sync),
        (PARTITION_REPLICAS, lambda each: each.replicas),
        (PARTITION_UNDER_REPLICATED, lambda each: int(each.in_sync < each.replicas)),
        (LEADER, lambda each: each.leader),
        (PREFERRED, lambda each: int(each.is_led_by_preferred)),
    )
    states = [(topic.name, topic.partitions) for topic in now.topics]
    for (by_partition, _), value in values:
        page.begin(by_partition)
        for name, partitions in states:
            for each in partitions:
                page.add(value(each), name, str(each.partition))


def _write_groups(page: Page, now: Snapshot, extra: Extra) -> None:
    behind = lags(now, extra.groups, {}, now_ms=extra.now_ms)
    offsets = [(sum(each.committed.values()), (each.group, each.topic)) for each in behind]
    records = [(sum(each.records.values()), (each.group, each.topic)) for each in behind]
    if extra.with_partitions:
        page.begin(GROUP_OFFSET)
        for each in behind:
            _by_partition(page, each.committed.items(), each.group, each.topic)
        page.begin(GROUP_LAG)
        for each in behind:
            _by_partition(page, each.records.items(), each.group, each.topic)
    else:
        page.gauge(GROUP_TOPIC_OFFSET, offsets)
        page.gauge(GROUP_TOPIC_LAG, records)
    page.gauge(GROUP_OFFSET_SUM, offsets)
    page.gauge(GROUP_LAG_SUM, records)
    page.gauge(GROUP_MEMBERS, [(each.members, (each.name,)) for each in extra.groups])


def _by_partition(page: Page, values: Iterable[tuple[int, int]], group: str, topic: str) -> None:
    for partition, value in sorted(values):
        page.add(value, group, topic, str(partition))
