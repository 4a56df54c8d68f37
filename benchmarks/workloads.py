"""The workloads W1 to W12 that users choose by, each with its cases."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    name: str
    what: str
    cases: tuple[str, ...]


WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "W1",
        "streams in and out, 1 KiB, acks=all; 1 and 16 partitions",
        ("throughput_1k", "throughput_1k_16"),
    ),
    Workload("W2", "the same with 100 B", ("throughput_100", "throughput_100_16")),
    Workload("W3", "10,000 records a second over 16 partitions: p50, p99, p99.9", ("rate_10k",)),
    Workload(
        "W4",
        "one record a request, 64 and 500 connections; alone",
        ("requests_64", "requests_500", "latency"),
    ),
    Workload("W5", "5 GiB of backlog, warm and cold, by one consumer group and by five", ("backlog_5g",)),
    Workload("W6", "compressed batches, lz4 and zstd", ("throughput_lz4", "throughput_zstd")),
    Workload("W7", "idempotent producer", ("throughput_idempotent",)),
    Workload(
        "W7",
        "transactions of 1, 100 and 10,000 records; 50 producers; read committed; copying; many ids; a kill",
        (
            "transactions_1",
            "transactions_1_v2",
            "transactions_100",
            "transactions_100_v2",
            "transactions_10000",
            "transactions_50",
            "transactions_50_v2",
            "transactions_client",
            "transactions_java",
            "transactions_read",
            "transactions_copy",
            "transactions_ids",
            "transactions_killed",
        ),
    ),
    Workload("W8", "50 members join and leave", ("rebalance_50", "rebalance_50_consumer")),
    Workload("W9", "1,000 topics, a trickle to each", ("topics_1000",)),
    Workload("W10", "5,000 idle connections", ("idle_connections",)),
    Workload("W11", "kill -9 with 10 GiB of log", ("recovery_10g",)),
    Workload("W12", "produce over TLS", ("tls_throughput_1k",)),
)
