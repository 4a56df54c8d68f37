"""One record a request: how long one takes, and how many a second go over many connections."""

from collections.abc import Callable

from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.load.generators import Requests


def _times(asked: Requests) -> Figures:
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
    return _times(asked)


def _client_latency(bench: Bench) -> Figures:
    topic = bench.topic()
    asked = generators.client_latency(bench.broker.address, topic, seconds=bench.scale.seconds)
    bench.check_records(topic, asked.acked_records)
    return _times(asked)


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
        return {**_times(asked), **_cpu(broker.used.cpu_seconds_by_title, asked.acked_requests)}

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
        return {**_times(asked), **_cpu(broker.used.cpu_seconds_by_title, asked.acked_requests)}

    return run


def _cpu(by_title: dict[str, float], requests: int) -> Figures:
    figures = {"cpu_us_per_request": sum(by_title.values()) / requests * 1e6}
    for title, seconds in by_title.items():
        figures[f"cpu_us_per_request {title}"] = seconds / requests * 1e6
    return figures


CASES = (
    Case(
        "latency", "one 100 B record at a time, acks=1, bare socket, cores kept awake", _latency, awake=True
    ),
    Case("latency_asleep", "the same, cores left to halt between requests", _latency),
    Case(
        "latency_client",
        "one 100 B record at a time, acks=1, linger 0, through librdkafka, cores kept awake",
        _client_latency,
        awake=True,
    ),
    Case("requests_1", "one-record requests, 1 connection", _requests(1)),
    Case("requests_50", "one-record requests, 50 connections", _requests(50)),
    Case("requests_200", "one-record requests, 200 connections", _requests(200)),
    Case(
        "requests_50_16",
        "one-record requests, 50 connections over 16 partitions",
        _requests(50, partitions=16),
    ),
    Case(
        "requests_pipelined", "one-record requests, 4 connections with 16 in flight", _requests(4, depth=16)
    ),
    Case("fetches_50", "one-record fetches, 50 connections", _fetches(50)),
)
