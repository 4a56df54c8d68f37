"""The records: the same ones in the appliance, in Apache Kafka and in Parquet, with a day's timestamps in order."""

import random
import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Producer

from benchmarks.void import Void

PARTITIONS = 4
DAY_MS = 86_400_000
FIRST_MS = int(time.time()) // 3600 * 3_600_000 - DAY_MS
"""A day ago: what is older than a week, a broker's retention deletes."""
KEYS = [b"key-%04d" % number for number in range(1000)]


@dataclass(frozen=True, slots=True)
class DataSet:
    """So many records of so many bytes, compressed by a codec or not."""

    name: str
    rows: int
    value_bytes: int
    codec: str

    @property
    def payload_bytes(self) -> int:
        return self.rows * self.value_bytes


def data_sets(payload_bytes: int) -> tuple[DataSet, ...]:
    """100 B and 1 KiB, plain and lz4."""
    return tuple(
        DataSet(f"{title}_{codec}", payload_bytes // size // PARTITIONS * PARTITIONS, size, codec)
        for title, size in (("100", 100), ("1k", 1024))
        for codec in ("none", "lz4")
    )


def values(data: DataSet) -> list[bytes]:
    """A few hundred different ones that compress about two to one, the same for every call."""
    chance = random.Random(7)
    half = data.value_bytes // 2
    return [chance.randbytes(half) + b"x" * (data.value_bytes - half) for _ in range(499)]


def timestamp_ms(data: DataSet, row: int) -> int:
    """The rows are spread over a day."""
    return FIRST_MS + row * DAY_MS // data.rows


def produce(data: DataSet, address: str) -> None:
    """All of it to the topic of its name, which is there. Raises Void."""
    producer = Producer(
        {
            "bootstrap.servers": address,
            "compression.type": data.codec,
            "linger.ms": 20,
            "batch.num.messages": 10_000,
            "queue.buffering.max.messages": 200_000,
        }
    )
    some = values(data)
    for row in range(data.rows):
        while True:
            try:
                producer.produce(
                    data.name,
                    some[row % len(some)],
                    KEYS[row * 7919 % len(KEYS)],
                    partition=row % PARTITIONS,
                    timestamp=timestamp_ms(data, row),
                )
                break
            except BufferError:
                producer.poll(0.05)
        if row % 10_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise Void(f"{data.name} was not acknowledged by {address}")


def write_parquet(data: DataSet, directory: Path) -> None:
    """One file a partition, uncompressed or lz4 as the records are."""
    directory.mkdir(parents=True)
    some = values(data)
    for partition in range(PARTITIONS):
        rows = range(partition, data.rows, PARTITIONS)
        table = pa.table(
            {
                "key": pa.array([KEYS[row * 7919 % len(KEYS)] for row in rows], pa.binary()),
                "value": pa.array([some[row % len(some)] for row in rows], pa.binary()),
                "topic": pa.array([data.name] * len(rows)),
                "partition": pa.array([partition] * len(rows), pa.int32()),
                "offset": pa.array(range(len(rows)), pa.int64()),
                "timestamp": pa.array(
                    [timestamp_ms(data, row) * 1000 for row in rows], pa.timestamp("us", tz="UTC")
                ),
                "timestampType": pa.array([0] * len(rows), pa.int32()),
            }
        )
        pq.write_table(
            table,
            directory / f"part-{partition}.parquet",
            compression=data.codec,
            use_dictionary=["key", "topic"],
        )


def settle() -> None:
    """The writers' pages reach the disk now, not during a measurement."""
    import os

    os.sync()
    time.sleep(1)
