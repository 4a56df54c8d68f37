"""Topics that several clients have written to a real broker, and their records as consumers and as readers get them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import TopicPartition

from appliance.channels import runtime_directory
from appliance.protocol.columns.chunk import Corruption
from spark_connector.batch_query import plan_batch
from spark_connector.directory import Directories
from spark_connector.errors import NotReadable, UnknownTopic
from spark_connector.options import COLUMNS, HEADERS_COLUMN, read_options
from spark_connector.record_batches import record_batches
from tests.clients.adapters.aiokafka import AiokafkaClient
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.client import CODECS, Client, Received, Record
from tests.support.broker import Appliance

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITIONS: Final = 2
PATIENCE_S: Final = 30.0
SETTINGS: Final = {
    "segment.bytes": "1048576",
    "index.interval.bytes": "1024",
    "retention.ms": "-1",  # the records are of a fixed day, long ago
}
LARGE_BYTES: Final = 100_000
BEGAN_MS: Final = 1_700_000_000_000


def until(holds: Callable[[], bool], what: str, *, patience_s: float = PATIENCE_S) -> None:
    """Returns when it holds.

    Raises:
        AssertionError: it did not in time.
    """
    deadline_s = time.monotonic() + patience_s
    while not holds():
        assert time.monotonic() < deadline_s, f"{what}: not within {patience_s:.0f} s"
        time.sleep(0.02)


def end(broker: Appliance) -> None:
    """Kills a broker that is not wanted any more, and removes what the next start would have removed."""
    broker.kill()
    runtime_directory.remove(broker.data_dir)


def write_by_several_clients(address: str, topic: str, *, rounds: int = 1) -> None:
    """A topic of small segments: every codec, by two clients, with null and empty keys and values, and headers."""
    ConfluentClient(address).create_topic(topic, PARTITIONS, settings=SETTINGS)
    write_more(address, topic, rounds=rounds)


def write_more(address: str, topic: str, *, rounds: int = 1) -> None:
    """The same once more, into the topic that is there."""
    clients: list[Client] = [ConfluentClient(address), AiokafkaClient(address)]
    for turn in range(rounds):
        for client in clients:
            for codec in CODECS:
                client.produce(topic, _records(f"{client.name} {codec} {turn}"), codec=codec)
    for client in clients:
        client.close()


def _records(text: str) -> list[Record]:
    bodies = [text.encode() + b" %d " % number * (number % 7) for number in range(60)]
    source = random.Random(text)
    bodies += [source.randbytes(LARGE_BYTES) for _ in range(2 * PARTITIONS)]
    return [
        Record(
            key=(None, b"", b"key %d" % number)[number % 3],
            value=None if number % 12 == 4 else body,
            headers=(("trace", b"%d" % number), ("empty", b"")) if number % 5 == 0 else (),
            timestamp_ms=BEGAN_MS + 1000 * number,
            partition=number % PARTITIONS,
        )
        for number, body in enumerate(bodies)
    ]


def delete_below(address: str, topic: str, offset: int) -> None:
    """DeleteRecords in partition 0."""
    admin = ConfluentClient(address)._admin
    wanted = TopicPartition(topic, 0, offset)
    for answer in admin.delete_records([wanted]).values():
        answer.result(PATIENCE_S)


def consumed(client: Client, topic: str) -> list[Received]:
    """Every record, as a client's consumer hands it out, by partition and offset."""
    found = []
    for partition in range(PARTITIONS):
        start, end = client.offset_range(topic, partition)
        while start < end:
            more = client.consume(topic, partition, start=start, count=1 if end - start == 1 else end - start)
            found += more
            start = more[-1].offset + 1
    return found


def wait_for_state(data_dir: Path, client: Client, topic: str, *, partitions: int = PARTITIONS) -> None:
    """Returns when the files say what the broker says."""

    def agree() -> bool:
        directories = Directories([data_dir])
        for partition in range(partitions):
            try:
                view = directories.partition(topic, partition)
            except (NotReadable, UnknownTopic):
                return False
            if (view.log_start_offset, view.high_watermark) != client.offset_range(topic, partition):
                return False
        return True

    until(agree, f"{topic}: the files say what the broker says")


def read_files(
    data_dir: Path,
    topic: str,
    options: Mapping[str, str] | None = None,
    *,
    corrupt: list[Corruption] | None = None,
) -> list[Received]:
    """Every record, as the connector reads it, by partition and offset. Without Spark."""
    given = {"path": str(data_dir), "subscribe": topic, **(options or {})}
    columns = (*COLUMNS, HEADERS_COLUMN)
    found = []
    for task in plan_batch(read_options(given, streaming=False)).tasks:
        for batch in record_batches(task, columns, corrupt=corrupt):
            times = batch.column("timestamp").cast("int64").to_pylist()
            rows = batch.drop_columns(["timestamp"]).to_pylist()
            found += [received(row, time_us // 1000) for row, time_us in zip(rows, times, strict=True)]
    return sorted(found, key=lambda each: (each.partition, each.offset))


def collected(frame: DataFrame) -> list[Received]:
    """Every row of a frame with all columns, by partition and offset."""
    rows = frame.selectExpr(
        "key", "value", "partition", "offset", "headers", "unix_millis(timestamp) as ms"
    ).collect()
    found = [received(row.asDict(recursive=True), row["ms"]) for row in rows]
    return sorted(found, key=lambda each: (each.partition, each.offset))


def received(row: Mapping[str, Any], timestamp_ms: int) -> Received:
    """A row of the source as a consumer would hand it out."""
    return Received(
        row["partition"],
        row["offset"],
        timestamp_ms,
        _bytes(row["key"]),
        _bytes(row["value"]),
        tuple((header["key"], _bytes(header["value"])) for header in row["headers"] or ()),
    )


def _bytes(content: bytes | bytearray | None) -> bytes | None:
    return None if content is None else bytes(content)


def gaps(found: list[Received]) -> Iterator[tuple[int, int]]:
    """Partitions and offsets that are missing between the first and the last."""
    for one, other in pairwise(found):
        if one.partition == other.partition and other.offset != one.offset + 1:
            yield one.partition, one.offset + 1
