"""Records streamed in at full rate, then streamed out again: librdkafka's client, its default batching."""

from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.machine import GIB

GB = 1e9


def _both_ways(
    bench: Bench, *, record_bytes: int, partitions: int, settings: tuple[str, ...] = ()
) -> Figures:
    payload = bench.scale.stream_bytes if record_bytes >= 1024 else bench.scale.stream_bytes // 2
    records = payload // record_bytes
    topic = bench.topic(partitions)
    address = bench.broker.address
    with bench.measure() as into:
        sent = generators.stream_in(
            address,
            topic,
            records=records,
            record_bytes=record_bytes,
            partition=0 if partitions == 1 else None,
            settings=settings,
        )
    bench.check_records(topic, records, partitions=partitions)
    with bench.measure() as out:
        read = generators.stream_out(
            address, topic, records=records, record_bytes=record_bytes, partitions=partitions
        )
    figures = {
        "in_mb_s": sent.mb_s,
        "in_records_s": sent.records_s,
        "in_cpu_s_per_gb": into.used.cpu_seconds / (sent.payload_bytes / GB),
        "in_switches_per_mb": into.used.context_switches / (sent.payload_bytes / 1e6),
        "in_generator_share": sent.generator_share,
        "out_mb_s": read.mb_s,
        "out_records_s": read.records_s,
        "out_cpu_s_per_gb": out.used.cpu_seconds / (read.payload_bytes / GB),
        "out_switches_per_mb": out.used.context_switches / (read.payload_bytes / 1e6),
        "out_generator_share": read.generator_share,
    }
    if bench.broker.keeps_on_disk:
        figures["disk_bytes_per_byte"] = into.used.written_bytes / sent.payload_bytes
    for title, seconds in into.used.cpu_seconds_by_title.items():
        figures[f"in_cpu_s {title}"] = seconds
    for title, seconds in out.used.cpu_seconds_by_title.items():
        figures[f"out_cpu_s {title}"] = seconds
    return figures


def _raw_batches(bench: Bench, *, records: int, connections: int, depth: int) -> Figures:
    """Prebuilt batches from our own generator: what the broker can take when the client costs nothing."""
    topic = bench.topic()
    with bench.measure() as broker:
        sent = generators.one_record(
            "produce",
            bench.broker.address,
            topic=topic,
            seconds=1,
            connections=connections,
            depth=depth,
            records=records,
            record_bytes=1024,
        )
    bench.check_records(topic, sent.acked_records)
    return {
        "in_mb_s": sent.requests_s * records * 1024 / 1e6,
        "requests_s": sent.requests_s,
        "in_cpu_s_per_gb": broker.used.cpu_seconds / (sent.acked_records * 1024 / GB),
        "generator_share": sent.cpu_share,
    }


CASES = (
    Case(
        "throughput_1k",
        "1 KiB records, 1 partition, acks=all, linger 5 ms",
        lambda bench: _both_ways(bench, record_bytes=1024, partitions=1),
        lends_bytes=2 * GIB,
    ),
    Case(
        "throughput_100",
        "100 B records, 1 partition, acks=all, linger 5 ms",
        lambda bench: _both_ways(bench, record_bytes=100, partitions=1),
        lends_bytes=2 * GIB,
    ),
    Case(
        "throughput_1k_16",
        "1 KiB records over 16 partitions, acks=all, linger 5 ms",
        lambda bench: _both_ways(bench, record_bytes=1024, partitions=16),
        lends_bytes=2 * GIB,
    ),
    Case(
        "throughput_100_16",
        "100 B records over 16 partitions, acks=all, linger 5 ms",
        lambda bench: _both_ways(bench, record_bytes=100, partitions=16),
        lends_bytes=2 * GIB,
    ),
    Case(
        "throughput_lz4",
        "1 KiB records, 1 partition, lz4 batches, passed through unopened",
        lambda bench: _both_ways(bench, record_bytes=1024, partitions=1, settings=("compression.codec=lz4",)),
        lends_bytes=2 * GIB,
    ),
    Case(
        "throughput_idempotent",
        "1 KiB records, 1 partition, idempotent producer",
        lambda bench: _both_ways(
            bench, record_bytes=1024, partitions=1, settings=("enable.idempotence=true",)
        ),
        lends_bytes=2 * GIB,
    ),
    Case(
        "batches_16k",
        "prebuilt batches of 16 KiB, 4 connections, 4 in flight on each",
        lambda bench: _raw_batches(bench, records=16, connections=4, depth=4),
        lends_bytes=4 * GIB,
    ),
    Case(
        "batches_1m",
        "prebuilt batches of 1 MB, 4 connections, 2 in flight on each",
        lambda bench: _raw_batches(bench, records=960, connections=4, depth=2),
        lends_bytes=4 * GIB,
    ),
)
