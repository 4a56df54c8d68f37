"""The page `/metrics`: the names of `families.py`, from one snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from appliance.build import build
from appliance.channels.roles import Role, RoleKind
from appliance.channels.supervision import MemoryShare
from appliance.channels.traffic_table import (
    ANSWER_TIME,
    API_WORDS,
    APIS,
    BYTES_IN,
    BYTES_OUT,
    CODES,
    FETCH_ERRORS,
    FETCH_LOG,
    FETCH_QUEUE,
    FIRST_CODE,
    OTHER_API,
    PRODUCE_ERRORS,
    PRODUCE_LOG,
    PRODUCE_QUEUE,
    PRODUCE_REPLICATE,
    RECEIVE_TIME,
    RECORDS_IN,
    REQUEST_BYTES,
    REQUESTS,
    SEND_TIME,
    TOTAL_TIME,
)
from appliance.channels.worker_counters import directories_of
from appliance.ipc import process_table
from appliance.ipc.process_table import ProcessState
from appliance.metrics import families as names
from appliance.metrics.ages import Ages
from appliance.metrics.client_metrics import ClientMetrics
from appliance.metrics.exposition import Family, FamilyWriter, Value
from appliance.metrics.group_lag import Lag, lags
from appliance.metrics.groups import Group
from appliance.metrics.service_pages import write_console, write_guards, write_services
from appliance.metrics.snapshot import STAGES_AT, Process, Snapshot, TopicState
from appliance.metrics.writing import (
    BUCKETS,
    MS_PER_S,
    NS_PER_S,
    counted,
    shown,
    write_histogram,
    write_one,
)
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.errors import ErrorCode
from appliance.version import VERSION

Sample = tuple[Value, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system of a log directory."""

    broker: int
    directory: str
    free_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Extra:
    """What a page shows beside the snapshot."""

    groups: Sequence[Group]
    groups_without_series: int
    groups_age_seconds: float | None
    """Since the round began that has found them; None before the first whole round."""
    disks: Sequence[Disk]
    network_idle: float
    worker_idle: float
    page_seconds: float
    with_partitions: bool
    ages: Ages
    now_ms: int
    """Wall clock; ages are counted to it."""
    shares: Mapping[Role, MemoryShare]
    """What the supervisor has said of the memory of each process."""
    clients: ClientMetrics | None = None
    """What clients have pushed, where they may."""
    sends_otlp: bool = False
    """Whether a collector gets the metrics, too."""


def api_name(key: int) -> str:
    """Return an API's name as Kafka's metrics spell it: `Produce`, `OffsetCommit`."""
    try:
        return "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
    except ValueError:
        return "Other"


API_NAMES: Final = tuple("Other" if key == OTHER_API else api_name(key) for key in range(APIS))


def error_name(code: int) -> str:
    """Return the name of an error code, such as NOT_LEADER_OR_FOLLOWER."""
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def write_own_page(page: FamilyWriter, now: Snapshot, extra: Extra) -> None:
    """Write every family of `families.ALL` that this configuration has samples of."""
    _write_appliance(page, now)
    _write_traffic(page, now)
    _write_requests(page, now)
    _write_replication(page, now)
    _write_logs(page, now, extra)
    _write_waiting(page, now)
    _write_groups(page, now, extra)
    write_guards(page, now)
    write_services(page, now)
    write_console(page, now)
    _write_processes(page, now, extra)
    _write_topics(page, now)
    if extra.with_partitions:
        _write_partitions(page, now)
    if extra.clients is not None:
        _write_clients(page, now, extra.clients)
    _write_itself(page, now, extra)


def _write_appliance(page: FamilyWriter, now: Snapshot) -> None:
    topology = now.topology
    write_one(page, names.BUILD_INFO, 1, VERSION, build(), topology.cluster_id)
    write_one(page, names.READY, int(is_ready(now)))
    write_one(page, names.CONTROLLER_ACTIVE, int(has_controller(now)))
    write_one(page, names.BROKERS, len(topology.brokers))
    write_one(page, names.TOPICS, topology.topic_count)
    write_one(page, names.TOPICS_WITHOUT_SERIES, topology.topic_count - len(topology.topics))


def has_controller(now: Snapshot) -> bool:
    """Return whether a controller runs that has published an image."""
    return now.topology.version > 0 and any(
        each.usage.is_running and each.row.state is ProcessState.RUNNING
        for each in now.of_kind(RoleKind.CONTROLLER)
    )


def is_ready(now: Snapshot) -> bool:
    """Return whether requests are answered: an image, an acceptor, and every led partition served."""
    acceptors = now.of_kind(RoleKind.ACCEPTOR)
    return (
        now.topology.version > 0
        and now.served
        and all(each.usage.is_running and each.row.state is ProcessState.RUNNING for each in acceptors)
    )


def _write_traffic(page: FamilyWriter, now: Snapshot) -> None:
    network = now.of_kind(RoleKind.NETPROC)
    write_one(page, names.NETWORK_RECEIVED, sum(each.totals[process_table.BYTES_IN] for each in network))
    write_one(page, names.NETWORK_SENT, sum(each.totals[process_table.BYTES_OUT] for each in network))
    write_one(page, names.PRODUCED_BYTES, now.head[BYTES_IN])
    write_one(page, names.PRODUCED_RECORDS, now.head[RECORDS_IN])
    write_one(page, names.FETCHED_BYTES, now.head[BYTES_OUT])
    page.gauge(
        names.CONNECTIONS,
        [(each.row.connections if each.usage.is_running else 0, (each.name,)) for each in network],
    )
    page.gauge(
        names.CONNECTION_ERRORS, [(each.totals[process_table.ERRORS], (each.name,)) for each in network]
    )


def used_apis(now: Snapshot) -> list[tuple[str, int]]:
    """Return name and first word in `Snapshot.apis` of each API that was used."""
    return [(API_NAMES[key], key * API_WORDS) for key in range(APIS) if now.apis[key * API_WORDS + REQUESTS]]


def errors(now: Snapshot) -> list[tuple[str, str, int]]:
    """Return API, error and how often it was answered, of those that were."""
    return [
        (api, error_name(code + FIRST_CODE), now.head[at + code])
        for api, at in (("Produce", PRODUCE_ERRORS), ("Fetch", FETCH_ERRORS))
        for code in range(CODES)
        if now.head[at + code]
    ]


def _write_requests(page: FamilyWriter, now: Snapshot) -> None:
    apis = used_apis(now)
    page.gauge(names.REQUESTS, [(now.apis[at + REQUESTS], (api,)) for api, at in apis])
    page.gauge(names.REQUEST_BYTES, [(now.apis[at + REQUEST_BYTES], (api,)) for api, at in apis])
    page.gauge(names.PARTITION_ERRORS, [(count, (api, error)) for api, error, count in errors(now)])
    page.begin(names.REQUEST_DURATION)
    for api, at in apis:
        _histogram(page, now, at + TOTAL_TIME, api)
    page.begin(names.STAGE_DURATION)
    for api, at in apis:
        _histogram(page, now, at + RECEIVE_TIME, api, "receive")
        _histogram(page, now, at + ANSWER_TIME, api, "answer")
        _histogram(page, now, at + SEND_TIME, api, "send")
    used = {api for api, _ in apis}
    for api, stage, at in WORKER_STAGES:
        if api in used:
            _histogram(page, now, STAGES_AT + at, api, stage)


WORKER_STAGES: Final = (
    ("Produce", "queue", PRODUCE_QUEUE),
    ("Produce", "log", PRODUCE_LOG),
    ("Produce", "replicate", PRODUCE_REPLICATE),
    ("Fetch", "queue", FETCH_QUEUE),
    ("Fetch", "log", FETCH_LOG),
)
"""API, stage, and where its histogram begins in the page of a worker (`channels.traffic_table`)."""


def buckets(now: Snapshot, at: int) -> list[int]:
    """Return the counts of a histogram whose first word is `at`."""
    return now.apis[at + 1 : at + 1 + BUCKETS]


def _histogram(page: FamilyWriter, now: Snapshot, at: int, *labels: str) -> None:
    write_histogram(page, now.apis[at : at + 1 + BUCKETS], *labels)


def _write_replication(page: FamilyWriter, now: Snapshot) -> None:
    topology = now.topology
    brokers = sorted(topology.brokers)
    for family, counts in (
        (names.LED_PARTITIONS, topology.leaders),
        (names.REPLICAS, topology.replicas),
        (names.UNDER_REPLICATED, topology.under_replicated),
        (names.UNDER_MIN_ISR, topology.under_min_isr),
        (names.AT_MIN_ISR, topology.at_min_isr),
        (names.NOT_PREFERRED, topology.not_preferred),
    ):
        page.gauge(family, [(counts[broker], (str(broker),)) for broker in brokers])
    write_one(page, names.OFFLINE_PARTITIONS, now.offline_partitions)
    write_one(page, names.ISR_SHRINKS, counted(now, RoleKind.CONTROLLER, "isr_shrinks"))
    write_one(page, names.ISR_EXPANSIONS, counted(now, RoleKind.CONTROLLER, "isr_expansions"))
    write_one(page, names.UNCLEAN_ELECTIONS, counted(now, RoleKind.CONTROLLER, "unclean_elections"))
    write_one(page, names.PENDING_CHANGES, shown(now, RoleKind.CONTROLLER, "pending_changes"))


def by_slot(
    processes: Iterable[Process], value: Callable[[Process], int], brokers: Iterable[int]
) -> list[tuple[int, tuple[str]]]:
    """Return one sample a broker slot: the sum over its processes."""
    sums = dict.fromkeys(brokers, 0)
    for each in processes:
        sums[each.role.slot] = sums.get(each.role.slot, 0) + value(each)
    return [(total, (str(slot),)) for slot, total in sorted(sums.items())]


def failed_directories(now: Snapshot) -> list[tuple[int, tuple[str]]]:
    """Return how many log directories of each slot have failed. Workers of one slot share them."""
    bits = dict.fromkeys(now.topology.brokers, 0)
    for each in now.of_kind(RoleKind.IOPROC):
        bits[each.role.slot] = bits.get(each.role.slot, 0) | each.counters["failed_log_dirs_bits"]
    return [(len(directories_of(found)), (str(slot),)) for slot, found in sorted(bits.items())]


def _write_logs(page: FamilyWriter, now: Snapshot, extra: Extra) -> None:
    workers, brokers = now.of_kind(RoleKind.IOPROC), now.topology.brokers
    page.gauge(names.LOG_BYTES, [(size, (str(slot),)) for slot, size in sorted(now.log_bytes.items())])
    page.gauge(names.LOG_SEGMENTS, [(count, (str(slot),)) for slot, count in sorted(now.segments.items())])
    page.begin(names.FLUSH_DURATION)
    for slot, words in sorted(now.flushes.items()):
        write_histogram(page, words, str(slot))
    page.gauge(names.FAILED_DIRECTORIES, failed_directories(now))
    page.gauge(
        names.DISK_FREE, [(each.free_bytes, (str(each.broker), each.directory)) for each in extra.disks]
    )
    page.gauge(
        names.DISK_SIZE, [(each.size_bytes, (str(each.broker), each.directory)) for each in extra.disks]
    )
    for family, name in (
        (names.MOVING_PARTITIONS, "moving_partitions"),
        (names.PRODUCER_IDS, "producer_ids"),
    ):
        page.gauge(family, by_slot(workers, _now(name), brokers))
    for family, name in (
        (names.LOST_PARTITIONS, "lost_partitions"),
        (names.REPAIRED_BATCHES, "repaired_batches"),
        (names.FORGOTTEN_PRODUCER_IDS, "forgotten_producer_ids"),
    ):
        page.gauge(family, by_slot(workers, _ever(name), brokers))
    cleaner = RoleKind.CLEANER
    write_one(page, names.CLEANER_LOGS, shown(now, cleaner, "compacted_logs"))
    write_one(page, names.CLEANER_UNCLEANABLE, shown(now, cleaner, "uncleanable_partitions"))
    write_one(page, names.CLEANER_ROUNDS, counted(now, cleaner, "rounds"))
    write_one(page, names.CLEANER_FREED, counted(now, cleaner, "freed_bytes"))


def _now(name: str) -> Callable[[Process], int]:
    return lambda process: process.counters[name] if process.usage.is_running else 0


def _ever(name: str) -> Callable[[Process], int]:
    return lambda process: process.counted[name]


def _write_waiting(page: FamilyWriter, now: Snapshot) -> None:
    purgatory = RoleKind.PURGATORY
    write_one(page, names.PURGATORY_WAITING, shown(now, purgatory, "waiting"))
    write_one(page, names.PURGATORY_KEYS, shown(now, purgatory, "watched_keys"))
    write_one(page, names.PURGATORY_HELD, shown(now, purgatory, "held_answers"))
    page.gauge(
        names.PURGATORY_ENDED,
        [(counted(now, purgatory, outcome), (outcome,)) for outcome in ("satisfied", "expired", "cancelled")],
    )
    write_one(page, names.PURGATORY_EXPIRED_ANSWERS, counted(now, purgatory, "expired_answers"))
    write_one(page, names.EARLY_FETCHES, counted(now, RoleKind.NETPROC, "fetches_answered_early"))


def _add_partitions(page: FamilyWriter, lag: Lag, values: Mapping[int, Value]) -> None:
    for partition, value in sorted(values.items()):
        page.add(value, lag.group, lag.topic, str(partition))


def _write_groups(page: FamilyWriter, now: Snapshot, extra: Extra) -> None:
    coordinator = RoleKind.COORDINATOR
    write_one(page, names.GROUPS, shown(now, coordinator, "groups"))
    page.gauge(names.GROUP_MEMBERS, [(each.members, (each.name,)) for each in extra.groups])
    behind = lags(now, extra.groups, extra.ages, now_ms=extra.now_ms)
    page.gauge(names.GROUP_LAG, [(sum(each.records.values()), (each.group, each.topic)) for each in behind])
    page.gauge(
        names.GROUP_STABLE_LAG,
        [(sum(each.stable_records.values()), (each.group, each.topic)) for each in behind],
    )
    for family, oldest in (
        (names.GROUP_LAG_SECONDS, [each.seconds for each in behind]),
        (names.GROUP_STABLE_LAG_SECONDS, [each.stable_seconds for each in behind]),
        (names.GROUP_LAST_COMMIT, [each.commit_seconds for each in behind]),
    ):
        page.gauge(
            family,
            [
                (max(values.values()), (each.group, each.topic))
                for each, values in zip(behind, oldest, strict=True)
                if values
            ],
        )
    write_one(page, names.GROUP_LOOKS, counted(now, RoleKind.METRICS, "age_looks"))
    if extra.with_partitions:
        page.begin(names.GROUP_PARTITION_LAG_SECONDS)
        for each in behind:
            _add_partitions(page, each, each.seconds)
        page.begin(names.GROUP_PARTITION_COMMIT)
        for each in behind:
            _add_partitions(page, each, each.commit_seconds)
        page.begin(names.GROUP_PARTITION_LAG)
        for each in behind:
            _add_partitions(page, each, each.records)
        page.begin(names.GROUP_COMMITTED)
        for each in behind:
            _add_partitions(page, each, each.committed)
    write_one(page, names.GROUPS_WITHOUT_SERIES, extra.groups_without_series)
    for family, name in (
        (names.OFFSET_COMMITS, "commits"),
        (names.COORDINATOR_APPENDS, "appends"),
        (names.DROPPED_REQUESTS, "dropped_requests"),
        (names.REFUSED_GROUPS, "refused_groups"),
        (names.REFUSED_MEMBERS, "refused_members"),
        (names.FORGOTTEN_MEMBERS, "forgotten_member_ids"),
        (names.MARKERS, "markers"),
        (names.REFUSED_TRANSACTIONAL_IDS, "refused_transactional_ids"),
    ):
        write_one(page, family, counted(now, coordinator, name))
    write_one(page, names.GROUP_MEMBER_BYTES, shown(now, coordinator, "member_bytes"))
    write_one(page, names.TRANSACTIONAL_IDS, shown(now, coordinator, "transactional_ids"))
    write_one(page, names.OPEN_TRANSACTIONS, shown(now, coordinator, "open_transactions"))
    write_one(page, names.TIMED_OUT_TRANSACTIONS, counted(now, coordinator, "timed_out_transactions"))
    write_one(page, names.PENDING_TRANSACTIONS, shown(now, coordinator, "owed_transactions"))


def _write_processes(page: FamilyWriter, now: Snapshot, extra: Extra) -> None:
    def write(family: Family, value: Callable[[Process], Value]) -> None:
        page.gauge(family, [(value(each), (each.name,)) for each in now.processes])

    write(names.PROCESS_UP, lambda each: int(each.usage.is_running))
    write(names.PROCESS_RESTARTS, lambda each: max(0, each.generation - 1))
    write(names.PROCESS_START, lambda each: each.row.started_ms / MS_PER_S)
    write(names.PROCESS_CPU, lambda each: each.usage.cpu_seconds)
    write(names.PROCESS_RESIDENT, lambda each: each.usage.resident_bytes)
    shares = sorted((str(role), share) for role, share in extra.shares.items())
    for family, attribute in (
        (names.PROCESS_PROPORTIONAL, "proportional_bytes"),
        (names.PROCESS_OPEN_FILES, "open_files"),
    ):
        sizes = [(getattr(share, attribute), (name,)) for name, share in shares]
        page.gauge(family, [each for each in sizes if each[0] >= 0])
    write(names.PROCESS_DISK_READ, lambda each: each.usage.read_bytes)
    write(names.PROCESS_DISK_WRITTEN, lambda each: each.usage.written_bytes)
    write(names.PROCESS_BUSY, lambda each: each.totals[process_table.BUSY_NS] / NS_PER_S)
    write(names.PROCESS_IDLE, lambda each: each.idle_ns / NS_PER_S)
    write(names.PROCESS_LOOPS, lambda each: each.totals[process_table.LOOPS])
    write(names.PROCESS_QUEUE, lambda each: each.row.queue_depth if each.usage.is_running else 0)
    write(names.PROCESS_REQUESTS, lambda each: each.totals[process_table.REQUESTS])
    write_one(page, names.NETWORK_IDLE, extra.network_idle)
    write_one(page, names.WORKER_IDLE, extra.worker_idle)


_TOPIC_COLUMNS: Final = (
    names.TOPIC_PRODUCED_BYTES,
    names.TOPIC_PRODUCED_RECORDS,
    names.TOPIC_FETCHED_BYTES,
    names.TOPIC_PRODUCES,
    names.TOPIC_FETCHES,
    names.TOPIC_FAILED_PRODUCES,
    names.TOPIC_FAILED_FETCHES,
)
"""In the order of the columns of a partition's row."""


def _write_topics(page: FamilyWriter, now: Snapshot) -> None:
    topics = [(topic, (topic.name,)) for topic in now.topics]

    def write(family: Family, value: Callable[[TopicState], int]) -> None:
        page.gauge(family, [(value(topic), name) for topic, name in topics])

    write(names.TOPIC_PARTITIONS, lambda topic: len(topic.topic.rows))
    for counts, family in zip(now.columns.counts, _TOPIC_COLUMNS, strict=True):
        page.gauge(family, [(topic.topic.total(counts), name) for topic, name in topics])
    write(names.TOPIC_LOG_BYTES, lambda topic: topic.log_bytes)
    write(names.TOPIC_LOG_SEGMENTS, lambda topic: topic.segments)
    write(names.TOPIC_RECORDS, lambda topic: topic.records)


def _write_partitions(page: FamilyWriter, now: Snapshot) -> None:
    states = [(topic.name, topic.partitions) for topic in now.topics]
    for family, attribute in (
        (names.PARTITION_LOG_START, "log_start"),
        (names.PARTITION_HIGH_WATERMARK, "high_watermark"),
        (names.PARTITION_LAST_STABLE, "last_stable_offset"),
        (names.PARTITION_LOG_END, "log_end"),
        (names.PARTITION_LOG_BYTES, "log_bytes"),
        (names.PARTITION_IN_SYNC, "in_sync"),
        (names.PARTITION_REPLICAS, "replicas"),
        (names.PARTITION_LEADER, "leader"),
    ):
        page.begin(family)
        for name, partitions in states:
            for each in partitions:
                page.add(getattr(each, attribute), name, str(each.partition))


def _write_clients(page: FamilyWriter, now: Snapshot, clients: ClientMetrics) -> None:
    network, metrics = RoleKind.NETPROC, RoleKind.METRICS
    clients.expire()
    write_one(page, names.CLIENTS, len(clients))
    page.gauge(
        names.CLIENT_PUSHES,
        [
            (counted(now, metrics, "read_client_pushes"), ("read",)),
            (counted(now, metrics, "unreadable_client_pushes"), ("unreadable",)),
            (counted(now, network, "refused_client_pushes"), ("refused",)),
            (counted(now, network, "lost_client_pushes"), ("lost",)),
        ],
    )
    write_one(page, names.DROPPED_CLIENT_SERIES, counted(now, metrics, "dropped_client_series"))
    page.begin(names.CLIENT_METRIC)
    for value, labels in clients.samples():
        page.add(value, *labels)


def _write_itself(page: FamilyWriter, now: Snapshot, extra: Extra) -> None:
    kind = RoleKind.METRICS
    write_one(page, names.PAGES, sum(each.totals[process_table.REQUESTS] for each in now.of_kind(kind)))
    write_one(page, names.REFUSED_PAGES, counted(now, kind, "refused_requests"))
    write_one(page, names.ENDED_READERS, counted(now, kind, "ended_connections"))
    write_one(page, names.PAGE_SECONDS, extra.page_seconds)
    page.gauge(
        names.GROUP_ROUNDS,
        [
            (counted(now, kind, "group_rounds"), ("whole",)),
            (counted(now, kind, "failed_group_rounds"), ("failed",)),
        ],
    )
    if extra.sends_otlp:
        page.gauge(
            names.OTLP_REQUESTS,
            [
                (counted(now, kind, "sent_otlp_requests"), ("sent",)),
                (counted(now, kind, "failed_otlp_requests"), ("failed",)),
            ],
        )
    age_seconds = extra.groups_age_seconds
    page.gauge(names.GROUP_ROUND_AGE, [] if age_seconds is None else [(age_seconds, ())])
