"""One record a request: how long one takes, and how many a second go over many connections."""

from collections.abc import Callable

from benchmarks import proc
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.load.generators import FixedRate, Requests
from benchmarks.proc import Used
from benchmarks.void import Void


def times(asked: Requests) -> Figures:
    """What a generator of requests tells."""
    return {
        "p50_us": asked.p50_us,
        "p99_us": asked.p99_us,
        "p999_us": asked.p999_us,
        "requests_s": asked.requests_s,
        "generator_share": asked.cpu_share,
    }


def _latency(bench: Bench) -> Figures:
    topic = bench.topic()
    asked = generators.one_record("latency", bench.broker.address, topic=topic, seconds=bench.scale.seconds)
    bench.check_records(topic, asked.acked_records)
    return times(asked)


def _client_latency(bench: Bench) -> Figures:
    topic = bench.topic()
    asked = generators.client_latency(bench.broker.address, topic, seconds=bench.scale.seconds)
    bench.check_records(topic, asked.acked_records)
    return times(asked)


def _requests(connections: int, partitions: int = 1, depth: int = 1) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        topic = bench.topic(partitions)
        with bench.measure() as broker:
            asked = generators.one_record(
                "produce",
                bench.broker.address,
                topic=topic,
                seconds=bench.scale.seconds,
                connections=connections,
                partitions=partitions,
                depth=depth,
            )
        bench.check_records(topic, asked.acked_records, partitions=partitions)
        figures = {**times(asked), **_cpu(broker.used, asked.acked_requests)}
        figures["pss_mb"] = proc.pss_bytes(bench.broker.pids()) / 1e6
        if bench.broker.keeps_on_disk:
            # A batch of one 100 B record is about 170 bytes: what is written more is the file system's.
            figures["disk_bytes_per_record"] = broker.used.written_bytes / asked.acked_records
        return figures

    return run


def _fetches(connections: int) -> Callable[[Bench], Figures]:
    def run(bench: Bench) -> Figures:
        topic = bench.topic()
        generators.one_record("produce", bench.broker.address, topic=topic, seconds=1, warmup_ms=0)
        with bench.measure() as broker:
            asked = generators.one_record(
                "fetch",
                bench.broker.address,
                topic=topic,
                seconds=bench.scale.seconds,
                connections=connections,
                max_bytes=150,  # below two records: each answer carries one batch
            )
        if asked.records_read < asked.requests - connections:  # so many were under way when counting began
            raise Void(f"{asked.records_read} records came in {asked.requests} answers")
        return {**times(asked), **_cpu(broker.used, asked.acked_requests)}

    return run


def _cpu(used: Used, requests: int) -> Figures:
    # µs a request and seconds a million requests are the same number.
    figures = {
        "cpu_us_per_request": used.cpu_seconds / requests * 1e6,
        "switches_per_request": used.context_switches / requests,
    }
    for title, seconds in used.cpu_seconds_by_title.items():
        figures[f"cpu_us_per_request {title}"] = seconds / requests * 1e6
    return figures


def _fixed_rate(bench: Bench) -> Figures:
    topic = bench.topic(16)
    with bench.measure() as broker:
        told = generators.fixed_rate(
            bench.broker.address, [topic], partitions=16, records_s=10_000, seconds=bench.scale.seconds * 2
        )
    bench.check_records(topic, told.records, partitions=16)
    return fixed_rate_figures(told, broker.used.cpu_seconds)


def fixed_rate_figures(told: FixedRate, cpu_seconds: float) -> Figures:
    """Both times, and the broker's processor share meanwhile."""
    return {
        "produce_p50_us": told.produce_p50_us,
        "produce_p99_us": told.produce_p99_us,
        "produce_p999_us": told.produce_p999_us,
        "end_p50_us": told.end_p50_us,
        "end_p99_us": told.end_p99_us,
        "end_p999_us": told.end_p999_us,
        "cpu_percent": cpu_seconds / (told.first_round_seconds + told.whole_seconds) * 100,
        "generator_share": told.cpu_share,
    }


NOT_FOR_MOCK = frozenset({"mock"})
EVERYWHERE = frozenset({"", "pinned", "fsync"})
CASES = (
    Case(
        "latency",
        "one 100 B record at a time, acks=1, bare socket, cores kept awake",
        _latency,
        awake=True,
        settings=EVERYWHERE,
    ),
    Case(
        "latency_asleep",
        "the same, cores as they are between two requests",
        _latency,
        not_for=NOT_FOR_MOCK,
    ),
    Case(
        "latency_client",
        "one 100 B record at a time, acks=1, linger 0, through librdkafka, cores kept awake",
        _client_latency,
        awake=True,
        not_for=NOT_FOR_MOCK,
        rounds=2,
    ),
    Case("requests_1", "one-record requests, 1 connection", _requests(1), by_name=True),
    Case("requests_50", "one-record requests, 50 connections", _requests(50), rounds=2),
    Case("requests_64", "one-record requests, 64 connections", _requests(64), settings=EVERYWHERE),
    Case("requests_200", "one-record requests, 200 connections", _requests(200), by_name=True),
    Case("requests_500", "one-record requests, 500 connections", _requests(500), rounds=2),
    Case(
        "requests_50_16",
        "one-record requests, 50 connections over 16 partitions",
        _requests(50, partitions=16),
        by_name=True,
    ),
    Case(
        "requests_pipelined",
        "one-record requests, 4 connections with 16 in flight",
        _requests(4, depth=16),
        by_name=True,
    ),
    Case("fetches_64", "one-record fetches, 64 connections", _fetches(64), not_for=NOT_FOR_MOCK, rounds=2),
    Case("fetches_50", "one-record fetches, 50 connections", _fetches(50), by_name=True),
    Case(
        "rate_10k",
        "10,000 records of 1 KiB a second over 16 partitions, acks=all, linger 5 ms, written and read by librdkafka",
        _fixed_rate,
        not_for=NOT_FOR_MOCK,
        rounds=2,
    ),
)
