"""Out of descriptors: readers are told what they try again, nothing goes offline, and one line says what to raise."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.raw_fetch import ask_for, parse_batches, read_records
from tests.support.wire import WireSocket
from tests.system.raw import Lines, create_topic, generations, produce

TOPIC, OTHER = "t", "other"
SEGMENT_BYTES: Final = 1 << 20
BATCH: Final = encode_batch([Record(bytes(100_000))])
BATCHES: Final = 25  # of two segments and a piece
ASKED: Final = 5


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    appliance = Appliance(tmp_path / "data")
    appliance.start()
    try:
        for topic in (TOPIC, OTHER):
            assert create_topic(appliance.port, topic, configs={"segment.bytes": str(SEGMENT_BYTES)}) == 0
            with WireSocket(appliance.port) as producer:
                for _ in range(BATCHES):
                    assert produce(producer, topic, BATCH).error == 0
        yield appliance
    finally:
        appliance.stop()


@contextmanager
def no_descriptor_left(broker: Appliance, role: str) -> Iterator[None]:
    """The processes of that role get no more than they have."""
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in broker.pids(role)}
    try:
        for pid, (_, hard) in limits.items():
            held = {int(entry) for entry in os.listdir(f"/proc/{pid}/fd")}
            lowest_free = min(set(range(len(held) + 1)) - held)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (lowest_free, hard))
        yield
    finally:
        for pid, limit in limits.items():
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limit)


def fetched(connection: WireSocket, topic: str) -> tuple[int, int]:
    """Error code, and how many batches came, of a fetch from the beginning."""
    ask_for(connection, topic, 0, max_bytes=3 * len(BATCH))
    error, records = read_records(connection)
    return error, len(list(parse_batches(records)))


def test_a_network_process_without_descriptors_says_storage_error(broker: Appliance) -> None:
    lines, before = Lines(broker), generations(broker)
    with WireSocket(broker.port) as connection:
        assert fetched(connection, "unknown")[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION  # it is accepted
        with no_descriptor_left(broker, "netproc"):
            answers = [fetched(connection, TOPIC) for _ in range(ASKED)]
        assert answers == [(ErrorCode.KAFKA_STORAGE_ERROR, 0)] * ASKED
        assert fetched(connection, TOPIC) == (0, 3)
    assert len(lines.containing("LimitNOFILE")) == 1
    assert not lines.containing("offline")
    assert generations(broker) == before


def test_what_nobody_reads_is_given_back_first(broker: Appliance) -> None:
    with WireSocket(broker.port) as connection:
        assert fetched(connection, OTHER) == (0, 3)
        with no_descriptor_left(broker, "netproc"):
            for topic in (TOPIC, OTHER, TOPIC):
                assert fetched(connection, topic) == (0, 3)


def test_a_worker_without_descriptors_says_storage_error_and_serves_on(broker: Appliance) -> None:
    broker.stop()
    broker.start()
    lines, before = Lines(broker), generations(broker)
    with WireSocket(broker.port) as connection:
        with no_descriptor_left(broker, "ioproc"):
            answers = [fetched(connection, TOPIC) for _ in range(ASKED)]
        assert answers[0] == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
        assert fetched(connection, TOPIC) == (0, 3)
    assert lines.containing("LimitNOFILE")
    assert not lines.containing("offline")
    assert generations(broker) == before
