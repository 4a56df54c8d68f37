"""Which figures make rows of the page, in which unit, which way is better, and what was set as a goal."""

from dataclasses import dataclass
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

    @property
    def case(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]


MORE, LESS = Better.MORE, Better.LESS
MOCK_90, MOCK_40, KAFKA_AHEAD = Goal(0.9, "mock"), Goal(0.4, "mock"), Goal(1.0, "kafka")
KAFKA_FIFTH, KAFKA_HALF, KAFKA_DOUBLE = Goal(0.2, "kafka"), Goal(0.5, "kafka"), Goal(2.0, "kafka")


def _stream(case: str, title: str, *goals: Goal) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.in_mb_s", f"in, {title}", "MB/s", MORE, goals),
        Figure(f"{case}.in_records_s", f"in, {title}", "records/s", MORE),
        Figure(f"{case}.in_cpu_s_per_gb", f"in, {title}: broker", "CPU s/GB", LESS, (KAFKA_HALF,)),
        Figure(f"{case}.in_switches_per_mb", f"in, {title}: context switches", "/MB", LESS),
        Figure(f"{case}.disk_bytes_per_byte", f"in, {title}: disk bytes a byte", "B/B", LESS),
        Figure(f"{case}.out_mb_s", f"out, {title}", "MB/s", MORE, goals),
        Figure(f"{case}.out_records_s", f"out, {title}", "records/s", MORE),
        Figure(f"{case}.out_cpu_s_per_gb", f"out, {title}: broker", "CPU s/GB", LESS, (KAFKA_HALF,)),
        Figure(f"{case}.out_switches_per_mb", f"out, {title}: context switches", "/MB", LESS),
    )


def _requests(case: str, title: str, *goals: Goal) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.requests_s", title, "requests/s", MORE, goals),
        Figure(f"{case}.p50_us", f"{title}: p50", "µs", LESS),
        Figure(f"{case}.p99_us", f"{title}: p99", "µs", LESS),
        Figure(f"{case}.cpu_us_per_request", f"{title}: broker", "CPU µs", LESS),
    )


def _latency(case: str, title: str, *goals: Goal) -> tuple[Figure, ...]:
    return (
        Figure(f"{case}.p50_us", f"{title}: p50", "µs", LESS, (*goals, KAFKA_FIFTH)),
        Figure(f"{case}.p99_us", f"{title}: p99", "µs", LESS, (KAFKA_FIFTH,)),
        Figure(f"{case}.p999_us", f"{title}: p99.9", "µs", LESS),
    )


FIGURES: tuple[Figure, ...] = (
    Figure("start.first_ack_ms", "start to first acknowledged record", "ms", LESS, (Goal(1000), KAFKA_FIFTH)),
    Figure("idle.pss_mb", "idle: memory (PSS)", "MB", LESS, (Goal(150), Goal(0.25, "kafka"))),
    Figure("idle.cpu_percent", "idle: processor", "% of a core", LESS, (Goal(0.5),)),
    Figure("idle.switches_s", "idle: context switches", "/s", LESS),
    Figure(
        "idle_connections.kb_per_connection", "idle connection: memory", "KB", LESS, (Goal(0.25, "kafka"),)
    ),
    Figure("idle_connections.connects_s", "connections accepted", "/s", MORE),
    *_latency("latency", "one record at a time", Goal(60)),
    *_latency("latency_asleep", "one record at a time, cores halting"),
    *_latency("latency_client", "one record at a time, librdkafka"),
    *_requests("requests_1", "one-record requests, 1 connection"),
    *_requests("requests_50", "one-record requests, 50 connections", MOCK_40, KAFKA_DOUBLE),
    *_requests("requests_200", "one-record requests, 200 connections", KAFKA_DOUBLE),
    *_requests("requests_50_16", "one-record requests, 50 connections, 16 partitions"),
    *_requests("requests_pipelined", "one-record requests, 4 connections, 16 in flight"),
    *_requests("fetches_50", "one-record fetches, 50 connections"),
    *_stream("throughput_1k", "1 KiB", MOCK_90, KAFKA_AHEAD),
    *_stream("throughput_100", "100 B", MOCK_90, KAFKA_AHEAD),
    *_stream("throughput_1k_16", "1 KiB, 16 partitions", KAFKA_AHEAD),
    *_stream("throughput_100_16", "100 B, 16 partitions", KAFKA_AHEAD),
    *_stream("throughput_lz4", "1 KiB, lz4"),
    *_stream("throughput_idempotent", "1 KiB, idempotent"),
    Figure("batches_16k.in_mb_s", "prebuilt 16 KiB batches", "MB/s", MORE),
    Figure("batches_1m.in_mb_s", "prebuilt 1 MB batches", "MB/s", MORE),
)
BY_KEY: dict[str, Figure] = {figure.key: figure for figure in FIGURES}
