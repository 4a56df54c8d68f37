"""A fetch that finds nothing waits once, however many partitions it names, and however often."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.raw_fetch import FETCH, PARTITION, REQUEST, VERSION
from tests.support.wire import ConnectionEnded, WireSocket, nullable_string
from tests.system.raw import create_topic, produce, wait_until

TOPIC = "wide"
RING_SLOTS = 64  # the fewest there may be
PARTITIONS = 5 * RING_SLOTS
WAIT_MS = 1000


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    appliance = Appliance(
        tmp_path_factory.mktemp("waits") / "data", settings={"network.ring.slots": RING_SLOTS}
    )
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC, partitions=PARTITIONS) == 0
        yield appliance
    finally:
        appliance.stop()


def ask_for(connection: WireSocket, partitions: Sequence[int], *, max_wait_ms: int) -> None:
    """Sends one Fetch from offset 0 of `partitions`, of at least one byte."""
    wanted = b"".join(PARTITION.pack(partition, 0, 1 << 20) for partition in partitions)
    topics = struct.pack(">i", 1) + nullable_string(TOPIC) + struct.pack(">i", len(partitions)) + wanted
    body = REQUEST.pack(-1, max_wait_ms, 1, 1 << 26, 0) + topics
    connection.send_request(FETCH, VERSION, body, flexible=False)


def waited_ms(connection: WireSocket, partitions: Sequence[int]) -> float:
    began = time.monotonic()
    ask_for(connection, partitions, max_wait_ms=WAIT_MS)
    connection.read_frame()
    return (time.monotonic() - began) * 1000


def test_fetch_of_more_partitions_than_a_ring_has_slots_waits(broker: Appliance) -> None:
    with WireSocket(broker.port, timeout_s=30) as connection:
        assert waited_ms(connection, range(1, PARTITIONS)) >= WAIT_MS
        assert waited_ms(connection, range(1, PARTITIONS)) >= WAIT_MS


def test_record_in_its_last_partition_ends_the_wait(broker: Appliance) -> None:
    with WireSocket(broker.port, timeout_s=30) as connection, WireSocket(broker.port) as producer:
        ask_for(connection, range(1, PARTITIONS), max_wait_ms=120_000)  # longer than we do
        batch = encode_batch([Record(b"the one that all wait for")])
        assert produce(producer, TOPIC, batch, partition=PARTITIONS - 1).error == 0
        assert b"the one that all wait for" in connection.read_frame()


def test_who_leaves_in_the_middle_of_a_wide_wait_disturbs_nobody(broker: Appliance) -> None:
    for _ in range(20):
        with WireSocket(broker.port, timeout_s=30) as connection:
            ask_for(connection, range(1, PARTITIONS - 1), max_wait_ms=120_000)
    with WireSocket(broker.port, timeout_s=30) as connection:
        assert waited_ms(connection, range(1, PARTITIONS - 1)) >= WAIT_MS
    assert not [line for line in broker.output().splitlines() if "ERROR" in line]


def test_partition_that_is_named_twice_is_waited_for(broker: Appliance) -> None:
    with WireSocket(broker.port, timeout_s=30) as connection:
        assert waited_ms(connection, [0, 0, 1]) >= WAIT_MS
    assert not [line for line in broker.output().splitlines() if "ERROR" in line]


def registrations(broker: Appliance) -> int:
    """How many fetches have waited in the purgatory since it started."""
    command = [sys.executable, "-m", "appliance", "status", "--data-dir", str(broker.data_dir), "--json"]
    status = json.loads(subprocess.check_output(command))
    return sum(row["requests"] for row in status["processes"] if row["role"] == "purgatory")


def test_stop_answers_who_waits(tmp_path: Path) -> None:
    appliance = Appliance(tmp_path / "data")
    appliance.start()
    try:
        assert create_topic(appliance.port, TOPIC) == 0
        with WireSocket(appliance.port, timeout_s=30) as connection:
            ask_for(connection, [0], max_wait_ms=600_000)
            wait_until(lambda: registrations(appliance) > 0, "the fetch waits")
            os.kill(appliance.pid, signal.SIGINT)
            connection.read_frame()
            with pytest.raises(ConnectionEnded):
                connection.read_frame()
        # Whoever waits holds nobody up: no process is killed for being late.
        assert appliance.wait(30) == 0
    finally:
        appliance.stop()
