"""Record batches as they left the broker: Fetch v4 by hand, and the fields of a batch header.

For tests that ask what really lies in the log, such as the codec of a batch: a client that was told too little
about the broker sends uncompressed without a word.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.support.judge import SLOTS
from tests.support.wire import WireSocket, nullable_string

FETCH: Final = 1
VERSION: Final = 4  # the oldest that Kafka 4 serves, and the last one without sessions
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

# Fetch request v4: replica id, max wait ms, min bytes, max bytes, isolation level, topics [name, partitions
# [partition, fetch offset, partition max bytes]].
REQUEST: Final = struct.Struct(">iiiib")
PARTITION: Final = struct.Struct(">iqi")

# Fetch response v4, one topic, one partition: throttle ms, topics [name, partitions [partition, error, high
# watermark, last stable offset, aborted transactions, records]].
PARTITION_HEAD: Final = struct.Struct(">ihqqi")

# Batch header v2: base offset 0, length 8, leader epoch 12, magic 16, crc 17, attributes 21, last offset delta
# 23, base timestamp 27, max timestamp 35, producer id 43, producer epoch 51, base sequence 53, count 57.
BATCH_HEAD: Final = struct.Struct(">qiibIhiqqqhii")
BATCH_LENGTH_END: Final = 12


@dataclass(frozen=True, slots=True)
class FetchedBatch:
    """Header of a batch and its length on the wire."""

    base_offset: int
    last_offset: int
    codec: str
    producer_id: int
    records: int
    length_bytes: int


def fetched_batches(address: str, topic: str, partition: int) -> list[FetchedBatch]:
    """Headers of all batches of a partition, from offset 0 to its end."""
    batches: list[FetchedBatch] = []
    with WireSocket(_leader_port(address, topic, partition)) as connection:
        while True:
            offset = batches[-1].last_offset + 1 if batches else 0
            fetched = list(parse_batches(fetch(connection, topic, partition, offset=offset)))
            if not fetched:
                return batches
            batches += fetched


def is_served(address: str, topic: str, partitions: int) -> bool:
    """True when the leader of each partition answers a fetch."""
    unserved = set(range(partitions))
    for port in _ports(address):
        with WireSocket(port) as connection:
            unserved = {partition for partition in unserved if _ask(connection, topic, partition)[0]}
    return not unserved


def _ports(address: str) -> range:
    """Of all slots; `address` is the first one's."""
    first = int(address.rsplit(":", 1)[1])
    return range(first, first + SLOTS)


def _leader_port(address: str, topic: str, partition: int) -> int:
    """That of the slot which answers a fetch without an error, the first one's where none does."""
    ports = _ports(address)
    for port in ports:
        with WireSocket(port) as connection:
            if _ask(connection, topic, partition)[0] == 0:
                return port
    return ports[0]


def fetch(
    connection: WireSocket,
    topic: str,
    partition: int,
    *,
    offset: int,
    max_bytes: int = 1 << 20,
    min_bytes: int = 0,
    max_wait_ms: int = 0,
    isolation: int = 0,
) -> bytes:
    """The records field of one partition's answer.

    Raises:
        AssertionError: the partition was answered with an error.
    """
    ask_for(
        connection,
        topic,
        partition,
        offset=offset,
        max_bytes=max_bytes,
        min_bytes=min_bytes,
        max_wait_ms=max_wait_ms,
        isolation=isolation,
    )
    error, records = read_records(connection)
    assert error == 0, f"Fetch of {topic}-{partition} at {offset}: error {error}"
    return records


def _ask(connection: WireSocket, topic: str, partition: int) -> tuple[int, bytes]:
    """Error code and records field of what lies at the beginning of a partition."""
    ask_for(connection, topic, partition)
    return read_records(connection)


def ask_for(
    connection: WireSocket,
    topic: str,
    partition: int,
    *,
    offset: int = 0,
    max_bytes: int = 1 << 20,
    min_bytes: int = 0,
    max_wait_ms: int = 0,
    isolation: int = 0,
    answer_max_bytes: int = 1 << 26,
) -> None:
    """Sends a fetch of one partition; `isolation` is 1 for read_committed."""
    wanted = PARTITION.pack(partition, offset, max_bytes)
    topics = struct.pack(">i", 1) + nullable_string(topic) + struct.pack(">i", 1) + wanted
    body = REQUEST.pack(-1, max_wait_ms, min_bytes, answer_max_bytes, isolation) + topics
    connection.send_request(FETCH, VERSION, body, flexible=False)


def read_records(connection: WireSocket) -> tuple[int, bytes]:
    """Error code and records field of the answer to `ask_for`."""
    answer = connection.read_frame()
    name_length = struct.unpack_from(">h", answer, 12)[0]  # after correlation id, throttle, topic count
    position = 14 + name_length + 4
    _, error, _, _, aborted = PARTITION_HEAD.unpack_from(answer, position)
    position += PARTITION_HEAD.size + 16 * max(0, aborted)
    length = struct.unpack_from(">i", answer, position)[0]
    return error, answer[position + 4 : position + 4 + max(0, length)]


def parse_batches(records: bytes) -> Iterator[FetchedBatch]:
    """Headers of the whole batches in a records field; a last, cut one is left out."""
    position = 0
    while position + BATCH_HEAD.size <= len(records):
        base, length, _, magic, _, attributes, last, _, _, producer_id, _, _, count = BATCH_HEAD.unpack_from(
            records, position
        )
        assert magic == 2, f"magic {magic}"
        if position + BATCH_LENGTH_END + length > len(records):
            return
        yield FetchedBatch(
            base_offset=base,
            last_offset=base + last,
            codec=CODEC_NAMES[attributes & 7],
            producer_id=producer_id,
            records=count,
            length_bytes=BATCH_LENGTH_END + length,
        )
        position += BATCH_LENGTH_END + length
