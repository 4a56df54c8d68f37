"""Records streamed in at full rate, then streamed out again: librdkafka's client, its default batching."""

from benchmarks import proc
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.machine import GIB, forget, log_files

GB = 1e9


def _both_ways(
    bench: Bench, *, record_bytes: int, partitions: int, settings: tuple[str, ...] = ()
) -> Figures:
    payload = bench.scale.stream_bytes if record_bytes >= 1024 else bench.scale.stream_bytes // 2
    records = payload // record_bytes
    topic = bench.topic(partitions)
    address = bench.broker.address
    ceiling_mb_s = generators.plain_writes(bench.memory.folder, payload)
    with bench.measure() as into:
        sent = generators.stream_in(
            address,
            topic,
            records=records,
            record_bytes=record_bytes,
            partition=0 if partitions == 1 else None,
            settings=settings,
        )
    pss_bytes = proc.pss_bytes(bench.broker.pids())
    bench.check_records(topic, records, partitions=partitions)
    is_compressed = any(setting.startswith("compression.codec=") for setting in settings)
    with bench.measure() as out:
        read = generators.stream_out(
            address,
            topic,
            records=records,
            record_bytes=record_bytes,
            partitions=partitions,
            settings=generators.AT_ONCE if is_compressed else (),
            from_start=is_compressed,
        )
    figures = {
        "ceiling_mb_s": ceiling_mb_s,
        "in_mb_s": sent.mb_s,
        "in_records_s": sent.records_s,
        "in_cpu_s_per_gb": into.used.cpu_seconds / (sent.payload_bytes / GB),
        "in_cpu_s_per_million": into.used.cpu_seconds / records * 1e6,
        "in_both_cpu_s_per_gb": (into.used.cpu_seconds + sent.cpu_seconds) / (sent.payload_bytes / GB),
        "pss_mb": pss_bytes / 1e6,
        "in_switches_per_mb": into.used.context_switches / (sent.payload_bytes / 1e6),
        "in_generator_share": sent.generator_share,
        "out_mb_s": read.mb_s,
        "out_records_s": read.records_s,
        "out_cpu_s_per_gb": out.used.cpu_seconds / (read.payload_bytes / GB),
        "out_both_cpu_s_per_gb": (out.used.cpu_seconds + read.cpu_seconds) / (read.payload_bytes / GB),
        "out_switches_per_mb": out.used.context_switches / (read.payload_bytes / 1e6),
        "out_generator_share": read.generator_share,
    }
    if workers := [s for title, s in into.used.cpu_seconds_by_title.items() if title.startswith("ioproc")]:
        figures["in_worker_cpu_s_per_gb"] = sum(workers) / (sent.payload_bytes / GB)
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


def _backlog(bench: Bench, length_bytes: int, *, in_groups: bool = False) -> Figures:
    """Written once; read warm, then with its bytes out of the page cache, by one reader and by five, each in a group of
    its own where `in_groups`.

    Just before the first cold reading a plain loop reads the same bytes as cold. Its figure stands beside the
    reading's; and the memory that the cache takes for it is what the readings are given again, not some that the host
    has taken back (of one file, just so: 194 MB/s and 1.6 processor seconds per GB, then 1,557 and 0.08).
    """
    records = length_bytes // 1024
    topic = bench.topic()
    address = bench.broker.address
    generators.stream_in(address, topic, records=records, record_bytes=1024)
    bench.check_records(topic, records)
    figures: Figures = {}
    for name, readers in (("warm_1", 1), ("warm_5", 5), ("cold_1", 1), ("cold_5", 5)):
        if name.startswith("cold"):
            forget(bench.broker.data_dir)
        if name == "cold_1":
            figures["cold_ceiling_mb_s"] = generators.plain_reads(log_files(bench.broker.data_dir))
            forget(bench.broker.data_dir)
        with bench.measure() as broker:
            read = generators.streams_out(
                address, topic, readers=readers, records=records, record_bytes=1024, in_groups=in_groups
            )
        figures[f"{name}_mb_s"] = read.mb_s
        figures[f"{name}_cpu_s_per_gb"] = broker.used.cpu_seconds / (read.payload_bytes / GB)
        both_seconds = broker.used.cpu_seconds + read.cpu_seconds
        figures[f"{name}_both_cpu_s_per_gb"] = both_seconds / (read.payload_bytes / GB)
        figures[f"{name}_generator_share"] = read.generator_share
    return figures


def _stream(
    name: str,
    what: str,
    *,
    record_bytes: int = 1024,
    partitions: int = 1,
    settings: tuple[str, ...] = (),
    by_name: bool = False,
    beside_mock: bool = False,
    under: frozenset[str] = frozenset({""}),
    rounds: int = 99,
) -> Case:
    return Case(
        name,
        what,
        lambda bench: _both_ways(bench, record_bytes=record_bytes, partitions=partitions, settings=settings),
        lends_bytes=GIB,
        by_name=by_name,
        not_for=frozenset() if beside_mock else NOT_FOR_MOCK,
        settings=under,
        rounds=rounds,
    )


NOT_FOR_MOCK = frozenset({"mock"})
LZ4, ZSTD = ("compression.codec=lz4",), ("compression.codec=zstd",)
IDEMPOTENT = (generators.IDEMPOTENT,)
CASES = (
    _stream(
        "throughput_1k",
        "1 KiB records, 1 partition, acks=all, linger 5 ms",
        beside_mock=True,
        under=frozenset({"", "pinned", "fsync", "slots"}),
    ),
    _stream(
        "throughput_100",
        "100 B records, 1 partition, acks=all, linger 5 ms",
        record_bytes=100,
        beside_mock=True,
    ),
    _stream(
        "throughput_1k_16", "1 KiB records over 16 partitions, acks=all, linger 5 ms", partitions=16, rounds=2
    ),
    _stream(
        "throughput_100_16",
        "100 B records over 16 partitions, acks=all, linger 5 ms",
        record_bytes=100,
        partitions=16,
        rounds=2,
    ),
    _stream(
        "throughput_lz4",
        "1 KiB records, 1 partition, lz4 batches, passed through unopened",
        settings=LZ4,
        rounds=1,
    ),
    _stream(
        "throughput_zstd",
        "1 KiB records, 1 partition, zstd batches, passed through unopened",
        settings=ZSTD,
        rounds=1,
    ),
    _stream(
        "throughput_idempotent",
        "1 KiB records, 1 partition, idempotent producer",
        settings=IDEMPOTENT,
        rounds=1,
    ),
    Case(
        "backlog_5g",
        "5 GiB of 1 KiB records read back by one consumer group and by five, from the page cache and from the disk",
        lambda bench: _backlog(bench, 5 * bench.scale.backlog_bytes, in_groups=True),
        lends_bytes=4 * GIB,
        not_for=NOT_FOR_MOCK,
        rounds=1,
    ),
    Case(
        "backlog",
        "1 GiB of 1 KiB records read back by 1 and by 5 readers without a group",
        lambda bench: _backlog(bench, bench.scale.backlog_bytes),
        lends_bytes=2 * GIB,
        not_for=NOT_FOR_MOCK,
        rounds=1,
        by_name=True,
    ),
    Case(
        "batches_16k",
        "prebuilt batches of 16 KiB, 4 connections, 4 in flight on each",
        lambda bench: _raw_batches(bench, records=16, connections=4, depth=4),
        lends_bytes=4 * GIB,
        by_name=True,
    ),
    Case(
        "batches_1m",
        "prebuilt batches of 1 MB, 4 connections, 2 in flight on each",
        lambda bench: _raw_batches(bench, records=960, connections=4, depth=2),
        lends_bytes=4 * GIB,
        by_name=True,
    ),
)
