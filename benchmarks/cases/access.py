"""What TLS, SASL and ACLs cost: beside plain TCP on the same broker, and beside Apache Kafka.

| figure | of what |
|---|---|
| `plain_…`, `tls_…` | the same requests of one program over two listeners of the same broker, in turns |
| `handshakes_s` | full handshakes of TLS 1.3, RSA of 2,048 bits, one after the other, from one client |
| `acls_N_…` | one record a request over plain TCP, with an authorizer and N ACLs that are about something else |
| `kb_per_connection` | memory that a connection takes that has authenticated and says nothing more |
"""

import time
from collections.abc import Callable

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from benchmarks import proc
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.void import Void

NOT_FOR_MOCK = frozenset({"mock"})
SETTING = frozenset({"secure"})
ACLS = (0, 100, 10_000)
ACLS_AT_ONCE = 500
IDLE_CONNECTIONS = 2000
SETTLE_SECONDS = 0.5
PATIENCE_SECONDS = 60.0
CONNECTIONS = 64


def _both_ways(mode: str, acknowledged: str) -> Callable[[Bench], Figures]:
    """`load/secure.py` in a mode, over plain TCP and TLS; `acknowledged` names its count of records in the log."""

    def run(bench: Bench) -> Figures:
        topic, doors = bench.topic(), bench.broker.doors()
        told = generators.secure(
            mode,
            topic,
            seconds=bench.scale.seconds,
            pids=bench.broker.pids(),
            plain=bench.broker.address,
            tls=doors["tls"],
            ca=doors["ca"],
        )
        bench.check_records(topic, int(told.pop("all")[acknowledged]))
        return {f"{way}_{name}": value for way, figures in told.items() for name, value in figures.items()}

    return run


def _handshakes(bench: Bench) -> Figures:
    doors = bench.broker.doors()
    told = generators.secure(
        "handshakes",
        "-",
        seconds=bench.scale.seconds,
        pids=bench.broker.pids(),
        tls=doors["tls"],
        ca=doors["ca"],
    )
    return told["tls"]


def _idle(bench: Bench) -> Figures:
    doors = bench.broker.doors()
    figures: Figures = {}
    for way in ("sasl", "sasl_tls"):
        # A first wave, so that what is grown once and kept is not counted as the price of a connection.
        generators.AuthenticatedConnections(way, doors[way], doors["ca"], IDLE_CONNECTIONS // 10).close()
        time.sleep(SETTLE_SECONDS)
        before = proc.pss_bytes(bench.broker.pids())
        held = generators.AuthenticatedConnections(way, doors[way], doors["ca"], IDLE_CONNECTIONS)
        try:
            time.sleep(SETTLE_SECONDS)
            grown = proc.pss_bytes(bench.broker.pids()) - before
        finally:
            held.close()
        figures[f"{way}_kb_per_connection"] = grown / IDLE_CONNECTIONS / 1e3
    return figures


def _acls(bench: Bench) -> Figures:
    admin = AdminClient({"bootstrap.servers": bench.broker.address})
    _allow_everything(admin)
    topic, figures, made = bench.topic(), Figures(), 0
    generators.one_record("produce", bench.broker.address, topic=topic, seconds=1, warmup_ms=0)
    for wanted in ACLS:
        _add_acls(admin, made, wanted)
        made = wanted
        time.sleep(SETTLE_SECONDS)
        with bench.measure() as broker:
            asked = generators.one_record(
                "produce",
                bench.broker.address,
                topic=topic,
                seconds=bench.scale.seconds,
                connections=CONNECTIONS,
            )
        figures[f"acls_{wanted}_requests_s"] = asked.requests_s
        figures[f"acls_{wanted}_cpu_us_per_request"] = broker.used.cpu_seconds / asked.acked_requests * 1e6
    return figures


def _binding(kind: ResourceType, name: str, pattern: ResourcePatternType, principal: str) -> AclBinding:
    return AclBinding(kind, name, pattern, principal, "*", AclOperation.ALL, AclPermissionType.ALLOW)


def _allow_everything(admin: AdminClient) -> None:
    literal = ResourcePatternType.LITERAL
    bindings = [
        _binding(ResourceType.TOPIC, "*", literal, "User:ANONYMOUS"),
        _binding(ResourceType.GROUP, "*", literal, "User:ANONYMOUS"),
        _binding(ResourceType.BROKER, "kafka-cluster", literal, "User:ANONYMOUS"),
    ]
    _create(admin, bindings)


def _add_acls(admin: AdminClient, first: int, end: int) -> None:
    """Half of them literal, half prefixed, of a thousand users."""
    patterns = (ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED)
    for begin in range(first, end, ACLS_AT_ONCE):
        numbers = range(begin, min(begin + ACLS_AT_ONCE, end))
        _create(
            admin,
            [
                _binding(ResourceType.TOPIC, f"other-{n}", patterns[n % 2], f"User:user-{n % 1000}")
                for n in numbers
            ],
        )


def _create(admin: AdminClient, bindings: list[AclBinding]) -> None:
    for future in admin.create_acls(bindings, request_timeout=PATIENCE_SECONDS).values():
        try:
            future.result(PATIENCE_SECONDS)
        except Exception as error:
            raise Void(f"an ACL was not created: {error}") from error


def _case(name: str, what: str, run: Callable[[Bench], Figures], *, rounds: int = 3) -> Case:
    return Case(name, what, run, not_for=NOT_FOR_MOCK, settings=SETTING, rounds=rounds, by_name=True)


CASES = (
    _case(
        "tls_latency",
        "one record of 100 B a request, acks=1, over plain TCP and over TLS 1.3 in turns",
        _both_ways("latency", "acknowledged"),
    ),
    _case(
        "tls_throughput_1k",
        "batches of a megabyte of 1 KiB records in and out over one connection, plain and TLS 1.3 in turns",
        _both_ways("stream", "records"),
    ),
    _case("tls_handshakes", "full handshakes, one after the other", _handshakes),
    _case(
        "idle_authenticated",
        "2,000 connections that have authenticated by PLAIN, in plain text and over TLS",
        _idle,
    ),
    _case(
        "acls",
        "one record a request over 64 connections with an authorizer and 0, 100 and 10,000 ACLs",
        _acls,
    ),
)
