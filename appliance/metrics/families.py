"""Every name of the page `/metrics`, with its type, labels, unit and sentence; docs/metrics.md is written from this.

A name, once released, keeps its meaning. Times are in seconds, sizes in bytes, and counters end with `_total`. A
counter counts since the start of the appliance and never falls while it runs, also when processes die.
"""

from __future__ import annotations

from typing import Final

from appliance.metrics.exposition import Family, Kind

_C: Final = Kind.COUNTER
_G: Final = Kind.GAUGE
_H: Final = Kind.HISTOGRAM

_BROKER: Final = ("broker",)
_TOPIC: Final = ("topic",)
_PROCESS: Final = ("process",)
_PARTITION: Final = ("topic", "partition")
_GROUP: Final = ("group", "topic")
_GROUP_PARTITION: Final = ("group", "topic", "partition")


def _counter(name: str, help: str, labels: tuple[str, ...] = (), unit: str = "") -> Family:
    return Family(f"appliance_{name}_total", _C, help, labels, unit)


def _gauge(name: str, help: str, labels: tuple[str, ...] = (), unit: str = "") -> Family:
    return Family(f"appliance_{name}", _G, help, labels, unit)


# The appliance

BUILD_INFO = _gauge(
    "build_info",
    "Always 1. The labels show the version, the build and the cluster id.",
    ("version", "build", "cluster_id"),
)
READY = _gauge("ready", "1 if every partition with a leader is served, as /readyz answers.")
CONTROLLER_ACTIVE = _gauge("controller_active", "1 if a controller runs and has published metadata.")
BROKERS = _gauge("brokers", "Broker slots that are registered.")
TOPICS = _gauge("topics", "Topics, including internal topics.")
TOPICS_WITHOUT_SERIES = _gauge(
    "topics_without_series", "Topics above metrics.topics.max, which have no own series."
)

# Traffic

NETWORK_RECEIVED = _counter("network_received_bytes", "Bytes that clients have sent.", (), "bytes")
NETWORK_SENT = _counter("network_sent_bytes", "Bytes that the broker has sent to clients.", (), "bytes")
PRODUCED_BYTES = _counter("produced_bytes", "Bytes of batches that clients have produced.", (), "bytes")
PRODUCED_RECORDS = _counter("produced_records", "Records that clients have produced.")
FETCHED_BYTES = _counter("fetched_bytes", "Bytes of batches that clients have fetched.", (), "bytes")
CONNECTIONS = _gauge("connections", "Open connections of clients.", _PROCESS)
CONNECTION_ERRORS = _counter(
    "connection_errors",
    "Connections that the broker has closed because of invalid data from the client.",
    _PROCESS,
)

# Requests

REQUESTS = _counter("requests", "Requests that clients have sent.", ("api",))
REQUEST_BYTES = _counter("request_bytes", "Bytes of the requests that clients have sent.", ("api",), "bytes")
PARTITION_ERRORS = _counter(
    "partition_errors",
    "Partitions of Produce and Fetch requests that were answered with an error.",
    ("api", "error"),
)
REQUEST_DURATION = Family(
    "appliance_request_duration_seconds",
    _H,
    "Time from a request's arrival to the last byte of its answer. For Produce and Fetch, the broker "
    "measures one request in 16.",
    ("api",),
    "seconds",
)
STAGE_DURATION = Family(
    "appliance_request_stage_duration_seconds",
    _H,
    "Time of the stages of a request: receive, queue, log, replicate, answer, send (see Rules).",
    ("api", "stage"),
    "seconds",
)

# Replication and partitions

LED_PARTITIONS = _gauge("led_partitions", "Partitions that a broker slot leads.", _BROKER)
REPLICAS = _gauge("replicas", "Replicas of a broker slot, including those that it leads.", _BROKER)
UNDER_REPLICATED = _gauge(
    "under_replicated_partitions",
    "Partitions that a broker slot leads with fewer in-sync replicas than replicas.",
    _BROKER,
)
UNDER_MIN_ISR = _gauge(
    "under_min_isr_partitions",
    "Partitions that a broker slot leads with fewer in-sync replicas than min.insync.replicas.",
    _BROKER,
)
AT_MIN_ISR = _gauge(
    "at_min_isr_partitions",
    "Partitions that a broker slot leads with as many in-sync replicas as min.insync.replicas.",
    _BROKER,
)
NOT_PREFERRED = _gauge(
    "not_preferred_leader_partitions",
    "Partitions whose preferred leader is this broker slot, and that another slot leads.",
    _BROKER,
)
OFFLINE_PARTITIONS = _gauge(
    "offline_partitions", "Partitions without a leader, or whose leader's storage has failed."
)
ISR_SHRINKS = _counter("isr_shrinks", "Replicas that have left a set of in-sync replicas.")
ISR_EXPANSIONS = _counter("isr_expansions", "Replicas that have joined a set of in-sync replicas.")
UNCLEAN_ELECTIONS = _counter(
    "unclean_leader_elections",
    "Elections of leaders that were not in sync, so that records may be lost.",
)
PENDING_CHANGES = _gauge(
    "controller_pending_changes", ("Changes that the controller has started and not finished.")
)

# Logs

LOG_BYTES = _gauge(
    "log_bytes", "Bytes of the logs that a broker slot leads, at most 5 s old.", _BROKER, "bytes"
)
LOG_SEGMENTS = _gauge("log_segments", "Segments of the logs that a broker slot leads.", _BROKER)
FLUSH_DURATION = Family(
    "appliance_log_flush_duration_seconds",
    _H,
    "Time of flushes to the disk by the workers of a broker slot.",
    _BROKER,
    "seconds",
)
FAILED_DIRECTORIES = _gauge(
    "failed_log_directories", "Log directories of a broker slot that have failed.", _BROKER
)
DISK_FREE = _gauge(
    "disk_free_bytes",
    "Free bytes in the file system of a log directory that the appliance may use.",
    ("broker", "directory"),
    "bytes",
)
DISK_SIZE = _gauge(
    "disk_size_bytes", "Size of the file system of a log directory.", ("broker", "directory"), "bytes"
)
MOVING_PARTITIONS = _gauge(
    "moving_partitions", "Partitions that are moving to another log directory of the broker slot.", _BROKER
)
LOST_PARTITIONS = _counter(
    "lost_partitions",
    "Partitions that have lost records, because every in-sync replica was damaged.",
    _BROKER,
)
REPAIRED_BATCHES = _counter(
    "repaired_batches", "Damaged batches that were repaired from another replica.", _BROKER
)
PRODUCER_IDS = _gauge("producer_ids", "Producer ids that a broker slot's logs remember.", _BROKER)
FORGOTTEN_PRODUCER_IDS = _counter(
    "forgotten_producer_ids",
    "Producer ids that partitions have forgotten, because there were too many.",
    _BROKER,
)
CLEANER_LOGS = _gauge(
    "cleaner_logs", ("Logs that are compacted, as counted in the last round of the cleaner.")
)
CLEANER_UNCLEANABLE = _gauge("cleaner_uncleanable_partitions", "Partitions that the cleaner cannot compact.")
CLEANER_ROUNDS = _counter("cleaner_rounds", "Rounds of the cleaner.")
CLEANER_FREED = _counter("cleaner_freed_bytes", "Bytes that compaction has freed.", (), "bytes")

# Waiting

PURGATORY_WAITING = _gauge("purgatory_waiting_fetches", "Fetch requests that wait for records.")
PURGATORY_KEYS = _gauge("purgatory_watched_partitions", "Partitions for which fetch requests wait.")
PURGATORY_HELD = _gauge(
    "purgatory_held_answers",
    (
        "Waiting answers whose deadline the purgatory keeps, such as answers to produce requests with "
        "acks=all."
    ),
)
PURGATORY_ENDED = _counter(
    "purgatory_ended_fetches",
    "Fetch requests that have left the purgatory: satisfied, expired or cancelled.",
    ("outcome",),
)
PURGATORY_EXPIRED_ANSWERS = _counter("purgatory_expired_answers", "Answers that have reached their deadline.")
EARLY_FETCHES = _counter(
    "early_fetches", ("Fetch requests that the broker has answered early, because too many waited.")
)

# Groups and transactions

GROUPS = _gauge("groups", "Consumer groups.")
GROUP_MEMBERS = _gauge("group_members", "Members of a consumer group.", ("group",))
GROUP_LAG = _gauge(
    "group_lag_records",
    "High watermark minus committed offset in the last round, summed over the partitions of a topic.",
    _GROUP,
)
GROUP_STABLE_LAG = _gauge(
    "group_stable_lag_records",
    "Last stable offset minus committed offset. A consumer with read_committed cannot read further while a "
    "transaction is open.",
    _GROUP,
)
GROUP_PARTITION_LAG = _gauge(
    "group_partition_lag_records",
    "As appliance_group_lag_records, with metrics.partitions.",
    ("group", "topic", "partition"),
)
GROUP_COMMITTED = _gauge(
    "group_committed_offset", "Committed offset, with metrics.partitions.", ("group", "topic", "partition")
)
GROUP_LAG_SECONDS = _gauge(
    "group_lag_seconds",
    "Age of the next record that the group will read, the maximum of a topic's partitions. 0 if the group "
    "has read all records.",
    _GROUP,
    "seconds",
)
GROUP_STABLE_LAG_SECONDS = _gauge(
    "group_stable_lag_seconds",
    "As appliance_group_lag_seconds, for a consumer with read_committed: 0 if the group has read all "
    "records below the last stable offset.",
    _GROUP,
    "seconds",
)
GROUP_PARTITION_LAG_SECONDS = _gauge(
    "group_partition_lag_seconds",
    "As appliance_group_lag_seconds, with metrics.partitions.",
    _GROUP_PARTITION,
    "seconds",
)
GROUP_LAST_COMMIT = _gauge(
    "group_last_commit_timestamp_seconds",
    "Time of the group's last commit in the topic, in seconds since 1970.",
    _GROUP,
    "seconds",
)
GROUP_PARTITION_COMMIT = _gauge(
    "group_partition_commit_timestamp_seconds",
    "Time of the group's last commit in the partition, with metrics.partitions.",
    _GROUP_PARTITION,
    "seconds",
)
GROUP_LOOKS = _counter("group_age_looks", "Readings of batch headers for the ages of groups.")
GROUPS_WITHOUT_SERIES = _gauge(
    "groups_without_series",
    "Groups without own series: above metrics.groups.max, or with a name that is too long for a request to "
    "the coordinators.",
)
OFFSET_COMMITS = _counter("offset_commits", "Commits of offsets.")
COORDINATOR_APPENDS = _counter("coordinator_appends", "Batches that coordinators have written.")
DROPPED_REQUESTS = _counter(
    "coordinator_dropped_requests", "Requests that coordinators have dropped, because their client had left."
)
GROUP_MEMBER_BYTES = _gauge(
    "group_member_bytes", "Memory of the coordinators for the members of groups.", (), "bytes"
)
REFUSED_GROUPS = _counter(
    "refused_groups", ("New groups that coordinators have rejected: see group.max.count.")
)
REFUSED_MEMBERS = _counter(
    "refused_members", ("Requests of members that coordinators have rejected: see group.members.max.")
)
FORGOTTEN_MEMBERS = _counter(
    "forgotten_member_ids",
    "Forgotten ids of members that had not joined: see group.pending.members.max.",
)
TRANSACTIONAL_IDS = _gauge("transactional_ids", "Transactional ids that coordinators remember.")
OPEN_TRANSACTIONS = _gauge("open_transactions", "Transactions that are open and can time out.")
TIMED_OUT_TRANSACTIONS = _counter(
    "timed_out_transactions", "Transactions that were aborted because they have timed out."
)
PENDING_TRANSACTIONS = _gauge(
    "transactions_without_markers",
    "Transactions that are decided, and whose markers are not all written.",
)
MARKERS = _counter("transaction_markers", "Transaction markers that were written.")
REFUSED_TRANSACTIONAL_IDS = _counter(
    "refused_transactional_ids",
    ("Transactional ids that coordinators have rejected: see transactional.id.max.count."),
)

# Quotas, audit, keys

THROTTLED_ANSWERS = _counter("throttled_answers", "Answers with a throttle time, because of a quota.")
THROTTLE_TIME = _counter("throttle_seconds", "Sum of the throttle times in answers.", (), "seconds")
THROTTLED_SESSIONS = _gauge("throttled_sessions", "Sessions that are throttled now.")
FORGOTTEN_BUDGETS = _counter("forgotten_budgets", "Discarded counts of quotas: see docs/quotas.md.")
AUDIT_ENTRIES = _counter("audit_entries", "Entries of the audit journal that were written.", ("to",))
LOST_AUDIT_ENTRIES = _counter("lost_audit_entries", "Entries of the audit journal that were lost.")
IDENTITY_KEYS = _gauge("identity_keys", "Keys of the identity provider that are in use.")
IDENTITY_KEY_FETCHES = _counter(
    "identity_key_fetches", ("Attempts to fetch the keys of the identity provider."), ("outcome",)
)
UNKNOWN_IDENTITY_KEYS = _counter("unknown_identity_keys", "Tokens that were signed with an unknown key.")

# Processes

PROCESS_UP = _gauge("process_up", "1 if the process runs.", _PROCESS)
PROCESS_RESTARTS = _counter(
    "process_restarts", "Number of times that the supervisor has restarted the process.", _PROCESS
)
PROCESS_START = _gauge(
    "process_start_time_seconds", "Start time of the process, in seconds since 1970.", _PROCESS, "seconds"
)
PROCESS_CPU = _counter("process_cpu_seconds", "Processor time, user and system.", _PROCESS, "seconds")
PROCESS_RESIDENT = _gauge(
    "process_resident_bytes",
    "Resident memory. Each process that uses shared memory counts this memory.",
    _PROCESS,
    "bytes",
)
PROCESS_PROPORTIONAL = _gauge(
    "process_proportional_bytes",
    "Memory of the process (PSS): the size of each page is divided by the number of processes that use it. "
    "At most 30 s old.",
    _PROCESS,
    "bytes",
)
PROCESS_OPEN_FILES = _gauge(
    "process_open_files", "Open descriptors of the process, at most 30 s old.", _PROCESS
)
PROCESS_DISK_READ = _counter(
    "process_disk_read_bytes",
    "Bytes that disks have read for the process, at most 30 s old. Bytes from the page cache do not count.",
    _PROCESS,
    "bytes",
)
PROCESS_DISK_WRITTEN = _counter(
    "process_disk_written_bytes",
    "Bytes that the process has written to files in the page cache, at most 30 s old.",
    _PROCESS,
    "bytes",
)
PROCESS_BUSY = _counter(
    "process_busy_seconds", "Time in which the process's loop had work.", _PROCESS, "seconds"
)
PROCESS_IDLE = _counter(
    "process_idle_seconds", "Time in which the process's loop slept.", _PROCESS, "seconds"
)
PROCESS_LOOPS = _counter("process_loops", "Turns of the process's loop.", _PROCESS)
PROCESS_QUEUE = _gauge("process_queue_depth", "Requests in the queues of the process.", _PROCESS)
PROCESS_REQUESTS = _counter(
    "process_requests", "Requests or messages that the process has handled.", _PROCESS
)
NETWORK_IDLE = _gauge(
    "network_idle_ratio",
    "Share of the last minute in which network processes slept, 0 to 1. Below 0.3, use more network "
    "processes.",
)
WORKER_IDLE = _gauge(
    "worker_idle_ratio",
    "Share of the last minute in which I/O workers slept, 0 to 1. Below 0.3, use more I/O workers.",
)

# Series of topics

TOPIC_PARTITIONS = _gauge("topic_partitions", "Partitions of a topic.", _TOPIC)
TOPIC_PRODUCED_BYTES = _counter(
    "topic_produced_bytes", "Bytes of batches that clients have produced.", _TOPIC, "bytes"
)
TOPIC_PRODUCED_RECORDS = _counter("topic_produced_records", "Records that clients have produced.", _TOPIC)
TOPIC_FETCHED_BYTES = _counter(
    "topic_fetched_bytes", "Bytes of batches that clients have fetched.", _TOPIC, "bytes"
)
TOPIC_PRODUCES = _counter("topic_produce_requests", "Batches that clients have sent.", _TOPIC)
TOPIC_FETCHES = _counter(
    "topic_fetch_requests", "Partitions of Fetch requests that were answered with records.", _TOPIC
)
TOPIC_FAILED_PRODUCES = _counter("topic_failed_produce_requests", "Batches that were refused.", _TOPIC)
TOPIC_FAILED_FETCHES = _counter(
    "topic_failed_fetch_requests", "Partitions of Fetch requests that have failed.", _TOPIC
)
TOPIC_LOG_BYTES = _gauge("topic_log_bytes", "Bytes of the leaders' logs, at most 5 s old.", _TOPIC, "bytes")
TOPIC_LOG_SEGMENTS = _gauge("topic_log_segments", "Segments of the leaders' logs.", _TOPIC)
TOPIC_RECORDS = _gauge("topic_offsets", "Offsets between log start and high watermark.", _TOPIC)

# Series of partitions, with metrics.partitions

PARTITION_LOG_START = _gauge("partition_log_start_offset", "Log start offset.", _PARTITION)
PARTITION_HIGH_WATERMARK = _gauge("partition_high_watermark", "High watermark.", _PARTITION)
PARTITION_LAST_STABLE = _gauge("partition_last_stable_offset", "Last stable offset.", _PARTITION)
PARTITION_LOG_END = _gauge("partition_log_end_offset", "Log end offset of the leader.", _PARTITION)
PARTITION_LOG_BYTES = _gauge("partition_log_bytes", "Bytes of the leader's log.", _PARTITION, "bytes")
PARTITION_IN_SYNC = _gauge("partition_in_sync_replicas", "In-sync replicas.", _PARTITION)
PARTITION_REPLICAS = _gauge("partition_replicas", "Replicas.", _PARTITION)
PARTITION_LEADER = _gauge(
    "partition_leader", ("Broker slot that leads the partition. -1 if there is no leader."), _PARTITION
)

# What clients push, with metrics.client.telemetry

CLIENTS = _gauge("client_telemetry_clients", "Clients that have pushed metrics in the last three intervals.")
CLIENT_PUSHES = _counter(
    "client_telemetry_pushes",
    "Pushes of metrics by clients: read, unreadable (not OTLP, or too large), refused (too early, or "
    "another subscription), or lost (no time to read them).",
    ("outcome",),
)
DROPPED_CLIENT_SERIES = _counter(
    "client_telemetry_dropped_series", "Dropped series of clients: see metrics.client.telemetry.series.max."
)
CLIENT_METRIC = _gauge(
    "client_metric",
    "A metric that a client has pushed. Sums count from the client's start.",
    ("metric", "client_id", "instance", "software", "attributes"),
)

# Services: delayed delivery, retries, message audit, message trace

DELAYED_STORED = _counter(
    "delayed_stored_records",
    "Delayed records that the broker has stored, including retried records.",
)
DELAYED_DELIVERED = _counter(
    "delayed_delivered_records", "Delayed records that were appended to their topics."
)
DELAYED_LATENESS = Family(
    "appliance_delayed_lateness_seconds",
    _H,
    "Lateness of delivered records: the time from the due time of a delayed record until it was in its "
    "topic.",
    (),
    "seconds",
)
DELAYED_WAITING = _gauge(
    "delayed_waiting_records",
    "Delayed records that wait for their delivery, including those of open transactions.",
)
DELAYED_OVERDUE = _gauge(
    "delayed_overdue_seconds",
    "Longest time for which an undelivered record has been due. 0 if no record is due.",
    (),
    "seconds",
)
DELAYED_OPEN = _gauge(
    "delayed_open_deliveries", ("Batches of delayed records that are being appended to their topics.")
)
DELAYED_CANCELLED = _counter("delayed_cancelled_records", "Delayed records that a producer has cancelled.")
DELAYED_DROPPED = _counter(
    "delayed_dropped_records",
    "Delayed records that could not be delivered, because their topic was deleted or rejects them.",
)
DELAYED_REPEATED = _counter(
    "delayed_repeated_records",
    ("Repeated delayed records of producers that the broker has recognized and dropped."),
)
HANDED_BACK = _counter(
    "retry_handed_back_records",
    "Records that the broker delivers again after a hand-back or a replay.",
)
DEAD_LETTERS = _counter("retry_dead_letters", "Records that have become dead letters.")
AUDITED_RECORDS = _counter("message_audit_records", "Records that the message audit has counted.")
UNAUDITED_COMMITS = _counter(
    "message_audit_missed_commits",
    "Commits of offsets that the message audit has not counted, because a partition has too many groups.",
)
LOST_OBSERVATIONS = _counter(
    "message_audit_lost_observations",
    "Observations of network processes that were lost before the audit and the trace could read them.",
)
TRACED_RECORDS = _counter("trace_records", "Records that the broker has traced.")
UNTRACED_RECORDS = _counter(
    "trace_untraced_records",
    (
        "Records with a requested trace that the broker has not traced, because there were too many in a "
        "second."
    ),
)
DROPPED_STEPS = _counter("trace_dropped_steps", "Steps of traces that were not sent to trace.otlp.endpoint.")

# The console

CONSOLE_SESSIONS = _gauge("console_sessions", "Users who are logged in to the console.")
CONSOLE_STREAMS = _gauge("console_streams", "Open streams of live charts and records.")
CONSOLE_REQUESTS = _counter("console_requests", "Requests to the console.")
CONSOLE_REFUSED = _counter("console_refused_requests", "Requests to the console that were refused.")
CONSOLE_REFUSED_LOGINS = _counter("console_refused_logins", "Logins to the console that were refused.")
CONSOLE_ENDED = _counter(
    "console_ended_connections",
    ("Connections to the console that it has closed, because they were too slow or too many."),
)

# The metrics process itself

OTLP_REQUESTS = _counter(
    "metrics_otlp_requests", "Requests to metrics.otlp.endpoint: sent, or failed.", ("outcome",)
)

PAGES = _counter("metrics_requests", "Requests to the metrics process.")
REFUSED_PAGES = _counter("metrics_refused_requests", "Requests to the metrics process that were refused.")
ENDED_READERS = _counter(
    "metrics_ended_connections",
    ("Connections to the metrics process that it has closed, because they were too slow or too many."),
)
PAGE_SECONDS = _gauge("metrics_page_seconds", "Time to build the previous page.", (), "seconds")
GROUP_ROUNDS = _counter(
    "metrics_group_rounds", "Rounds of requests to the coordinators about groups.", ("outcome",)
)
GROUP_ROUND_AGE = _gauge(
    "metrics_group_round_age_seconds",
    "Time since the start of the last complete round about groups: the age of members, committed offsets "
    "and lags.",
    (),
    "seconds",
)

ALL: Final[tuple[Family, ...]] = tuple(each for each in globals().values() if isinstance(each, Family))
"""In the order of the page."""
