"""Which figures make rows of the page, in which unit, which way is better, and what was set as a goal."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum


class Better(Enum):
    """Which way a figure should go."""

    MORE = "more"
    LESS = "less"


@dataclass(frozen=True, slots=True)
class Goal:
    """At most or at least `bound`: of the figure itself, or of its ratio to the broker `beside`."""

    bound: float
    beside: str | None = None

    def text(self, better: Better) -> str:
        sign = "≥" if better is Better.MORE else "≤"
        return f"{sign} {self.bound:g}" + (f"× {self.beside}" if self.beside else "")

    def reached(self, better: Better, *, value: float, ratios: dict[str, float]) -> bool | None:
        """None when the broker beside it has no figure."""
        if self.beside is not None and self.beside not in ratios:
            return None
        measured = value if self.beside is None else ratios[self.beside]
        return measured >= self.bound if better is Better.MORE else measured <= self.bound


@dataclass(frozen=True, slots=True)
class Figure:
    """One row: `key` is CASE.NAME."""

    key: str
    title: str
    unit: str
    better: Better
    goals: tuple[Goal, ...] = ()
    quotient: tuple[str, str] | None = None
    """Keys of the two figures whose quotient it is, round by round; None: it was taken."""

    def of(self, taken: Mapping[str, float]) -> float | None:
        """What it is in a round; None when the round has no figure for it."""
        if self.quotient is None:
            return taken.get(self.key)
        above, below = (taken.get(key) for key in self.quotient)
        return above / below if above is not None and below else None

    @property
    def case(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    @property
    def is_beside_the_mock(self) -> bool:
        """Not where the mock's is next to nothing because it is one process, which hands over to nobody."""
        return "switches" not in self.key

    @property
    def is_of_the_machine(self) -> bool:
        """A plain loop or a copying program beside the broker, or the generator's share: no broker's to make better."""
        return self.key.endswith(("ceiling_mb_s", "generator_share")) or self.name.startswith(
            ("cp_", "rsync_")
        )


MORE, LESS = Better.MORE, Better.LESS
MOCK_90, MOCK_40, KAFKA_AHEAD = Goal(0.9, "mock"), Goal(0.4, "mock"), Goal(1.0, "kafka")
KAFKA_FIFTH, KAFKA_QUARTER, KAFKA_30 = Goal(0.2, "kafka"), Goal(0.25, "kafka"), Goal(0.3, "kafka")
KAFKA_HALF, KAFKA_DOUBLE = Goal(0.5, "kafka"), Goal(2.0, "kafka")


def _stream(case: str, title: str, *goals: Goal) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.in_mb_s", f"in, {title}", "MB/s", MORE, goals),
        Figure(f"{case}.ceiling_mb_s", f"in, {title}: a plain pwrite loop just before", "MB/s", MORE),
        Figure(f"{case}.in_records_s", f"in, {title}", "records/s", MORE),
        Figure(f"{case}.in_generator_share", f"in, {title}: the generator's processor", "of a core", LESS),
        Figure(
            f"{case}.in_cpu_s_per_gb", f"in, {title}: broker's processor", "CPU s/GB", LESS, (KAFKA_HALF,)
        ),
        Figure(
            f"{case}.in_cpu_s_per_million", f"in, {title}: broker's processor", "CPU s/million records", LESS
        ),
        Figure(
            f"{case}.in_both_cpu_s_per_gb", f"in, {title}: broker's and client's processor", "CPU s/GB", LESS
        ),
        Figure(f"{case}.pss_mb", f"in, {title}: memory (PSS) afterwards", "MB", LESS),
        Figure(f"{case}.in_switches_per_mb", f"in, {title}: context switches", "/MB", LESS),
        Figure(f"{case}.disk_bytes_per_byte", f"in, {title}: disk bytes a byte", "B/B", LESS),
        Figure(f"{case}.out_mb_s", f"out, {title}", "MB/s", MORE, goals),
        Figure(f"{case}.out_records_s", f"out, {title}", "records/s", MORE),
        Figure(f"{case}.out_generator_share", f"out, {title}: the generator's processor", "of a core", LESS),
        Figure(
            f"{case}.out_cpu_s_per_gb", f"out, {title}: broker's processor", "CPU s/GB", LESS, (KAFKA_HALF,)
        ),
        Figure(
            f"{case}.out_both_cpu_s_per_gb",
            f"out, {title}: broker's and client's processor",
            "CPU s/GB",
            LESS,
        ),
        Figure(f"{case}.out_switches_per_mb", f"out, {title}: context switches", "/MB", LESS),
    )


def _requests(case: str, title: str, *goals: Goal) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.requests_s", title, "requests/s", MORE, goals),
        Figure(f"{case}.generator_share", f"{title}: the generator's processor", "of a core", LESS),
        Figure(f"{case}.p50_us", f"{title}: p50", "µs", LESS),
        Figure(f"{case}.p99_us", f"{title}: p99", "µs", LESS),
        Figure(f"{case}.p999_us", f"{title}: p99.9", "µs", LESS),
        Figure(f"{case}.cpu_us_per_request", f"{title}: broker's processor", "CPU s/million", LESS),
        Figure(f"{case}.switches_per_request", f"{title}: context switches", "/request", LESS),
        Figure(f"{case}.pss_mb", f"{title}: memory (PSS) afterwards", "MB", LESS),
        Figure(f"{case}.disk_bytes_per_record", f"{title}: disk bytes a record", "B", LESS),
    )


def _latency(case: str, title: str, *goals: Goal) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.p50_us", f"{title}: p50", "µs", LESS, (*goals, KAFKA_FIFTH)),
        Figure(f"{case}.p99_us", f"{title}: p99", "µs", LESS, (KAFKA_FIFTH,)),
        Figure(f"{case}.p999_us", f"{title}: p99.9", "µs", LESS),
    )


def _rate(case: str, title: str) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.produce_p50_us", f"{title}, acknowledged: p50", "µs", LESS),
        Figure(f"{case}.produce_p99_us", f"{title}, acknowledged: p99", "µs", LESS),
        Figure(f"{case}.produce_p999_us", f"{title}, acknowledged: p99.9", "µs", LESS),
        Figure(f"{case}.end_p50_us", f"{title}, end to end: p50", "µs", LESS),
        Figure(f"{case}.end_p99_us", f"{title}, end to end: p99", "µs", LESS),
        Figure(f"{case}.end_p999_us", f"{title}, end to end: p99.9", "µs", LESS),
        Figure(f"{case}.cpu_percent", f"{title}: broker's processor", "% of a core", LESS),
    )


def _backlog(case: str, title: str, reader: str) -> Iterator[Figure]:
    for name, what in (
        ("warm_1", f"page cache, 1 {reader}"),
        ("warm_5", f"page cache, 5 {reader}s"),
        ("cold_1", f"disk, 1 {reader}"),
        ("cold_5", f"disk, 5 {reader}s"),
    ):
        yield Figure(f"{case}.{name}_mb_s", f"{title}, {what}", "MB/s", MORE)
        if name == "cold_1":
            plain = f"{title}, disk: a plain read loop just before, as cold"
            yield Figure(f"{case}.cold_ceiling_mb_s", plain, "MB/s", MORE)
        yield Figure(
            f"{case}.{name}_cpu_s_per_gb",
            f"{title}, {what}: broker's processor",
            "CPU s/GB",
            LESS,
            (KAFKA_HALF,),
        )
        both = f"{title}, {what}: broker's and client's processor"
        yield Figure(f"{case}.{name}_both_cpu_s_per_gb", both, "CPU s/GB", LESS)


def _commits(case: str, title: str) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.commits_s", title, "commits/s", MORE),
        Figure(f"{case}.p50_us", f"{title}: p50", "µs", LESS),
        Figure(f"{case}.p99_us", f"{title}: p99", "µs", LESS),
        Figure(f"{case}.cpu_us_per_commit", f"{title}: broker's processor", "CPU s/million", LESS),
    )


def _transactions(case: str, title: str) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.commits_s", title, "commits/s", MORE, (KAFKA_AHEAD,)),
        Figure(f"{case}.commit_p50_us", f"{title}: commit, p50", "µs", LESS, (KAFKA_HALF,)),
        Figure(f"{case}.commit_p99_us", f"{title}: commit, p99", "µs", LESS, (KAFKA_AHEAD,)),
        Figure(
            f"{case}.transaction_p50_us", f"{title}: from begin to commit, p50", "µs", LESS, (KAFKA_AHEAD,)
        ),
        Figure(f"{case}.transaction_p99_us", f"{title}: from begin to commit, p99", "µs", LESS),
        Figure(f"{case}.cpu_us_per_commit", f"{title}: broker's processor", "CPU s/million", LESS),
        Figure(f"{case}.generator_share", f"{title}: the generator's processor", "of a core", LESS),
    )


WAYS = {"tcp": "TCP", "zeromq": "ZeroMQ ipc", "lane": "shared memory"}


def _lane_latency(case: str) -> Iterator[Figure]:
    title = "one record at a time"
    for way, named in WAYS.items():
        beside = (KAFKA_AHEAD,) if way == "tcp" else ()
        yield Figure(f"{case}.{way}_p50_us", f"{title}, {named}: p50", "µs", LESS, beside)
        yield Figure(f"{case}.{way}_p99_us", f"{title}, {named}: p99", "µs", LESS, beside)
        yield Figure(
            f"{case}.{way}_cpu_us_per_request", f"{title}, {named}: broker's processor", "CPU s/million", LESS
        )
    for floor, named in (("echo", "a bare ZeroMQ echo"), ("ping_pong", "a bare eventfd ping-pong")):
        yield Figure(f"{case}.{floor}_p50_us", f"floor, {named}: p50", "µs", LESS)
        yield Figure(f"{case}.{floor}_p99_us", f"floor, {named}: p99", "µs", LESS)
    fastest = f"{title}, the fastest way (ours: shared memory, Kafka's: TCP)"
    yield Figure(f"{case}.fastest_p50_us", f"{fastest}: p50", "µs", LESS, (KAFKA_QUARTER,))
    yield Figure(f"{case}.fastest_p99_us", f"{fastest}: p99", "µs", LESS)
    yield _quotient(case, "lane_p50_us", "tcp_p50_us", f"{title}, shared memory beside TCP: p50", Goal(0.5))
    yield _quotient(
        case, "zeromq_p50_us", "echo_p50_us", f"{title}, ZeroMQ beside a bare echo: p50", Goal(1.4)
    )


def _quotient(case: str, above: str, below: str, title: str, goal: Goal, *, better: Better = LESS) -> Figure:
    """Two figures of one case; with a setting before them they are found by `_under`."""
    keys = (f"{case}.{above}", f"{case}.{below}")
    return Figure(f"{case}.{above}_of_{below}", title, "×", better, (goal,), quotient=keys)


def _lane_frames(case: str) -> Iterator[Figure]:
    for suffix, how in (("", "one in flight"), ("_4", "four in flight")):
        for way, named in WAYS.items():
            title = f"batches of 1 MB out, {how}, {named}"
            goals = (Goal(2000),) if way == "zeromq" else ()
            yield Figure(f"{case}.{way}{suffix}_mb_s", title, "MB/s", MORE, goals)
            yield Figure(
                f"{case}.{way}{suffix}_cpu_s_per_gb", f"{title}: broker's processor", "CPU s/GB", LESS
            )


def _lane_throughput(case: str, size: str) -> Iterator[Figure]:
    clients = [(f"arrow_{way}", f"native, Arrow, {named}") for way, named in WAYS.items()]
    clients += [(f"native_{way}", f"native, per record, {named}") for way, named in WAYS.items()]
    clients += [
        ("confluent", "confluent-kafka"),
        ("kafka_python", "kafka-python"),
        ("aiokafka", "aiokafka"),
    ]
    for way in ("in", "out"):
        for client, named in clients:
            title = f"{way}, {size}, {named}"
            yield Figure(f"{case}.{client}_{way}_records_s", title, "records/s", MORE)
            yield Figure(f"{case}.{client}_{way}_mb_s", title, "MB/s", MORE)
            yield Figure(
                f"{case}.{client}_{way}_cpu_s_per_gb", f"{title}: broker's processor", "CPU s/GB", LESS
            )
        for client, named in clients[:6]:
            yield _quotient(
                case,
                f"{client}_{way}_records_s",
                f"confluent_{way}_records_s",
                f"{way}, {size}, {named}, beside confluent-kafka",
                Goal(5.0 if client.startswith("arrow") else 0.8),
                better=MORE,
            )


def _local_reading(case: str) -> Iterator[Figure]:
    for name, what in (("16k", "batches of 16 KiB"), ("1m", "batches of 1 MB")):
        title = f"files read by `shm://`, {what}"
        yield Figure(f"{case}.{name}_mb_s", title, "MB/s", MORE, (Goal(2000),))
        yield Figure(
            f"{case}.{name}_cpu_s_per_gb", f"{title}: broker's processor", "CPU s/GB", LESS, (Goal(0.001),)
        )
        yield Figure(f"{case}.{name}_reader_cpu_s_per_gb", f"{title}: reader's processor", "CPU s/GB", LESS)


def _observed() -> Iterator[Figure]:
    """What the message audit and traces cost a stream."""
    for way, title in (
        ("plain", "no audit, no trace"),
        ("audit", "audit"),
        ("ids", "audit with ids"),
        ("trace", "trace of 1 in 100 keys"),
    ):
        yield Figure(f"observed_1k.{way}_in_mb_s", f"1 KiB records in, {title}", "MB/s", MORE)
        yield Figure(
            f"observed_1k.{way}_services_cpu_s_per_gb",
            f"1 KiB records in, {title}: services process",
            "CPU s/GB",
            LESS,
        )
        yield Figure(
            f"observed_1k.{way}_services_s_per_stream_s",
            f"1 KiB records in, {title}: services process reads on after the stream",
            "× its time",
            LESS,
        )
        if way != "plain":
            yield Figure(f"observed_1k.{way}_cost", f"1 KiB records in: cost of {title}", "share", LESS)


def _secure() -> Iterator[Figure]:
    """What TLS, SASL and ACLs cost."""
    for way, title in (("plain", "plain TCP"), ("tls", "TLS 1.3")):
        more = (Goal(1, beside="kafka"),) if way == "tls" else ()
        ahead = (KAFKA_AHEAD,) if way == "tls" else ()
        yield Figure(f"tls_latency.{way}_p50_us", f"one record, {title}: p50", "µs", LESS, ahead)
        for to in ("in", "out"):
            title_of, case = f"1 KiB records {to}, {title}", "tls_throughput_1k"
            yield Figure(f"{case}.{way}_{to}_mb_s", title_of, "MB/s", MORE, more)
            yield Figure(
                f"{case}.{way}_{to}_cpu_s_per_gb", f"{title_of}: broker's processor", "CPU s/GB", LESS
            )
    yield Figure("tls_handshakes.handshakes_s", "full TLS handshakes", "1/s", MORE)
    yield Figure(
        "tls_handshakes.broker_cpu_us", "a full TLS handshake: broker's processor", "CPU s/million", LESS
    )
    for way, title in (("sasl", "SASL"), ("sasl_tls", "SASL over TLS")):
        yield Figure(
            f"idle_authenticated.{way}_kb_per_connection",
            f"idle connection that has authenticated, {title}",
            "KB",
            LESS,
            (Goal(60),),
        )
    for acls in (0, 100, 10_000):
        title = f"one record a request, 64 connections, {acls:,} ACLs"
        yield Figure(f"acls.acls_{acls}_requests_s", title, "1/s", MORE)
        yield Figure(
            f"acls.acls_{acls}_cpu_us_per_request", f"{title}: broker's processor", "CPU s/million", LESS
        )


def _rebalance(case: str, title: str) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.all_join_s", f"{title}: all join at once", "s", LESS),
        Figure(f"{case}.one_leaves_s", f"{title}: one leaves", "s", LESS),
        Figure(f"{case}.one_joins_s", f"{title}: one joins", "s", LESS),
        Figure(f"{case}.cpu_s", f"{title}: broker's processor", "CPU s", LESS),
    )


def _delayed() -> Iterator[Figure]:
    """Delayed records. Beside Kafka runs a delay service as a user writes it."""
    for name, title in (("1", "1"), ("10k", "10,000"), ("100k", "100,000")):
        for key, percentile in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")):
            yield Figure(
                f"delayed_late_{name}.late_{key}_ms",
                f"delayed records, {title} due a second: lateness {percentile}",
                "ms",
                LESS,
            )
    for mode in ("levels", "exact"):
        for way in ("in", "out"):
            yield Figure(
                f"delayed_{mode}.{way}_records_s", f"delayed records, {mode}: {way}", "records/s", MORE
            )
    yield Figure("delayed_waiting.grown_mb", "10 million delayed records: memory", "MB", LESS)
    yield Figure(
        "delayed_waiting.idle_cpu_ms_s", "10 million delayed records, none due: processor", "ms/s", LESS
    )
    yield Figure(
        "delayed_waiting.first_after_kill_s",
        "10 million delayed records: kill, to the first delivery",
        "s",
        LESS,
    )


def _backup() -> Iterator[Figure]:
    """Backup and restore, beside copies of the data directory."""
    names = (("appliance", "`appliance backup`"), ("cp", "`cp -r`"), ("rsync", "`rsync -a`"))
    for name, title in names:
        yield Figure(f"backup.{name}_mb_s", f"backup of 1 GiB, to the disk: {title}", "MB/s", MORE)
    for what, text in (("again", "nothing new"), ("more", "1/16 more records")):
        for name, title in names[::2]:
            yield Figure(f"backup.{name}_{what}_s", f"backup again, {text}: {title}", "s", LESS)
    yield Figure("backup.verify_mb_s", "`appliance backup verify`", "MB/s", MORE)
    for name, title in (("appliance", "`appliance restore`"), *names[1:]):
        yield Figure(f"backup.{name}_restore_mb_s", f"restore of it, to the disk: {title}", "MB/s", MORE)


def _under(setting: str, title: str, figures: Iterable[Figure], *, mock: bool) -> Iterator[Figure]:
    """The same rows under another setting. Where the mock has no part, since it knows no disk and no replicas, neither
    has what was set beside it, or for an acknowledgement out of memory."""
    for figure in figures:
        goals = figure.goals if mock else tuple(goal for goal in figure.goals if goal.beside == "kafka")
        of = figure.quotient
        yield replace(
            figure,
            key=f"{setting}/{figure.key}",
            title=f"{title}: {figure.title}" if title else figure.title,
            goals=goals,
            quotient=(f"{setting}/{of[0]}", f"{setting}/{of[1]}") if of else None,
        )


FAILOVER = tuple(
    Figure(
        f"failover_{partitions}.all_acked_ms",
        f"failover of a slot that leads {partitions:,}: kill to a record in each",
        "ms",
        LESS,
        (Goal(within_ms), *beside),
    )
    for partitions, within_ms, beside in (
        (1, 200, ()),
        (100, 500, (Goal(0.1, "kafka"),)),
        (1000, 2000, ()),
    )
)
CATCH_UP = (
    Figure(
        "catch_up.mb_s",
        "a slot that was stopped catches up with 1 GiB: from serving to in sync",
        "MB/s",
        MORE,
    ),
    Figure("catch_up.in_sync_seconds", "the same, from the order to start it", "s", LESS),
)
LATENCY_ALL = tuple(
    Figure(
        f"latency_client_all.{key}_us",
        f"one record at a time, acks=all, librdkafka: {title}",
        "µs",
        LESS,
        goals,
    )
    for key, title, goals in (
        ("p50", "p50", (Goal(1000), KAFKA_30)),
        ("p99", "p99", (KAFKA_30,)),
        ("p999", "p99.9", ()),
    )
)
LATENCY = _latency("latency", "one record at a time", Goal(60))
REQUESTS_64 = _requests("requests_64", "one-record requests, 64 connections", MOCK_40, KAFKA_DOUBLE)
THROUGHPUT_1K = _stream("throughput_1k", "1 KiB", MOCK_90, KAFKA_AHEAD)
THROUGHPUT_100 = _stream("throughput_100", "100 B", MOCK_90, KAFKA_AHEAD)

FIGURES: tuple[Figure, ...] = (
    Figure("start.first_ack_ms", "start to first acknowledged record", "ms", LESS, (Goal(1000), KAFKA_FIFTH)),
    Figure("start_1000.first_ack_ms", "the same with 1,000 partitions", "ms", LESS, (KAFKA_FIFTH,)),
    Figure("recovery_1g.first_ack_ms", "the same after kill -9 with 1 GiB of log", "ms", LESS, (KAFKA_30,)),
    Figure("recovery_10g.first_ack_ms", "the same after kill -9 with 10 GiB of log", "ms", LESS, (KAFKA_30,)),
    Figure("idle.pss_mb", "idle: memory (PSS)", "MB", LESS, (Goal(150), KAFKA_QUARTER)),
    Figure("idle.cpu_percent", "idle: processor", "% of a core", LESS, (Goal(0.5),)),
    Figure("idle.switches_s", "idle: context switches", "/s", LESS),
    Figure("start_1000.kb_per_partition", "partition: memory", "KB", LESS, (KAFKA_QUARTER,)),
    Figure("start_1000.create_ms_per_partition", "partition: creation", "ms", LESS),
    Figure("start_1000.cpu_percent", "1,000 idle partitions: processor", "% of a core", LESS, (Goal(0.5),)),
    Figure("topics_1000.kb_per_topic", "topic of one partition: memory", "KB", LESS, (KAFKA_QUARTER,)),
    Figure("topics_1000.create_ms_per_topic", "topic of one partition: creation", "ms", LESS),
    Figure(
        "topics_1000.first_round_seconds", "1,000 topics: clients know all, one record in each", "s", LESS
    ),
    Figure("topics_1000.made_seconds", "1,000 topics: from their creation to one record in each", "s", LESS),
    Figure("idle_connections.kb_per_connection", "idle connection: memory", "KB", LESS, (KAFKA_QUARTER,)),
    Figure(
        "idle_connections.cpu_percent", "5,000 idle connections: processor", "% of a core", LESS, (Goal(0.5),)
    ),
    Figure("idle_connections.connects_s", "connections accepted", "/s", MORE),
    *LATENCY,
    *_latency("latency_asleep", "one record at a time, cores as they are", Goal(60)),
    *_latency("latency_client", "one record at a time, librdkafka"),
    *_requests("requests_1", "one-record requests, 1 connection"),
    *_requests("requests_50", "one-record requests, 50 connections", MOCK_40, KAFKA_DOUBLE),
    *REQUESTS_64,
    *_requests("requests_200", "one-record requests, 200 connections", MOCK_40, KAFKA_DOUBLE),
    *_requests("requests_500", "one-record requests, 500 connections", MOCK_40, KAFKA_DOUBLE),
    *_requests("requests_50_16", "one-record requests, 50 connections, 16 partitions"),
    *_requests("requests_pipelined", "one-record requests, 4 connections, 16 in flight"),
    *_requests("fetches_50", "one-record fetches, 50 connections"),
    *_requests("fetches_64", "one-record fetches, 64 connections"),
    *_rate("rate_10k", "10,000 records/s, 16 partitions"),
    *_rate("topics_1000", "1,000 records/s, 1,000 topics"),
    *THROUGHPUT_1K,
    *THROUGHPUT_100,
    *_stream("throughput_1k_16", "1 KiB, 16 partitions", KAFKA_AHEAD),
    *_stream("throughput_100_16", "100 B, 16 partitions", KAFKA_AHEAD),
    *_stream("throughput_lz4", "1 KiB, lz4"),
    *_stream("throughput_zstd", "1 KiB, zstd"),
    *_stream("throughput_idempotent", "1 KiB, idempotent", KAFKA_AHEAD),
    *_backlog("backlog_5g", "5 GiB read back", "group"),
    *_backlog("backlog", "1 GiB read back", "reader"),
    Figure("batches_16k.in_mb_s", "prebuilt 16 KiB batches", "MB/s", MORE),
    Figure("batches_1m.in_mb_s", "prebuilt 1 MB batches", "MB/s", MORE),
    *_commits("commits_1", "offset commits, 1 member"),
    *_commits("commits_50", "offset commits, 50 members"),
    *_transactions("transactions_1", "transactions of 1 record"),
    *_transactions("transactions_1_v2", "transactions of 1 record, version 2"),
    *_transactions("transactions_100", "transactions of 100 records"),
    *_transactions("transactions_100_v2", "transactions of 100 records, version 2"),
    *_transactions("transactions_10000", "transactions of 10,000 records"),
    *_transactions("transactions_50", "transactions of 1 record, 50 producers"),
    *_transactions("transactions_50_v2", "transactions of 1 record, 50 producers, version 2"),
    *_transactions("transactions_client", "transactions of 1 record, librdkafka"),
    *_transactions("transactions_java", "transactions of 1 record, Kafka's Java client, version 2"),
    Figure(
        "transactions_read.records_s",
        "transactions read back, read committed",
        "records/s",
        MORE,
        (KAFKA_AHEAD,),
    ),
    Figure(
        "transactions_read.cpu_s_per_million",
        "transactions read back, read committed: broker's processor",
        "CPU s/million records",
        LESS,
    ),
    Figure("transactions_copy.records_s", "consume, transform, produce", "records/s", MORE, (KAFKA_AHEAD,)),
    Figure("transactions_ids.ids_s", "transactional ids initialized", "/s", MORE, (KAFKA_AHEAD,)),
    Figure("transactions_ids.bytes_per_id", "transactional id: memory", "B", LESS, (KAFKA_AHEAD,)),
    Figure(
        "transactions_killed.first_commit_ms",
        "10,000 open transactions: kill of the coordinator to the first commit",
        "ms",
        LESS,
        (KAFKA_AHEAD,),
    ),
    *_rebalance("rebalance_50", "50 members, 200 partitions"),
    *_rebalance("rebalance_50_consumer", "50 members, 200 partitions, consumer protocol"),
    Figure("groups_10000.offsets_s", "10,000 groups: offsets committed, 100 a request", "offsets/s", MORE),
    Figure("groups_10000.kb_per_group", "group of 100 offsets: memory", "KB", LESS, (KAFKA_QUARTER,)),
    Figure("groups_10000.bytes_per_offset", "committed offset: memory", "B", LESS),
    Figure(
        "groups_10000.coordinator_back_s",
        "10,000 groups: kill of the coordinator, to all served",
        "s",
        LESS,
        (Goal(3),),
    ),
    Figure("groups_10000.all_back_s", "10,000 groups: start after kill -9, to all served", "s", LESS),
    *_under("pinned", "pinned", (*LATENCY, *REQUESTS_64, *THROUGHPUT_1K, *THROUGHPUT_100), mock=True),
    *_under("fsync", "fsync", (*LATENCY, *REQUESTS_64, *THROUGHPUT_1K), mock=False),
    *_under("slots", "3 slots", (*LATENCY_ALL, *FAILOVER, *CATCH_UP), mock=True),
    *_under("slots", "3 slots", THROUGHPUT_1K, mock=False),
    *_under(
        "lanes",
        "",
        (
            *_lane_latency("lane_latency"),
            *_lane_frames("lane_frames"),
            *_lane_throughput("lane_throughput_1k", "1 KiB"),
            *_lane_throughput("lane_throughput_100", "100 B"),
            *_local_reading("local_reading"),
        ),
        mock=True,
    ),
    *_under("delayed", "", _observed(), mock=True),
    *_under("secure", "", _secure(), mock=True),
    *_under("delayed", "", _delayed(), mock=True),
    *_backup(),
    Figure(
        "slots/throughput_1k.in_of_one_slot",
        "3 slots: in, 1 KiB, acks=all, three replicas: beside acks=1 on one slot",
        "×",
        MORE,
        (Goal(0.5),),
        quotient=("slots/throughput_1k.in_mb_s", "throughput_1k.in_mb_s"),
    ),
)
BY_KEY: dict[str, Figure] = {figure.key: figure for figure in FIGURES}
