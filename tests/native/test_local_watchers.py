"""What a hundred readers that wait for records cost the broker and themselves, in processor time.

Processor time does not depend on who else is on the machine. Where the system has no inotify left for one of them
(fs.inotify.max_user_instances, 128 by default), its lock on the state file counts all the same.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from appliance_client import Admin, Producer, TopicPartition
from appliance_client.local_reader import LocalReader
from tests.native.test_local_reader import local, make_broker, read_to, sleeps_of
from tests.support.broker import Appliance

WATCHERS = 100
RECORDS = 1_500
IDLE_S = 4.0
PATIENCE_S = 60.0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Appliance]:
    made = make_broker(tmp_path)
    made.start()
    yield made
    made.stop()


def processor_s(broker: Appliance, role: str | None = None) -> float:
    """What the broker's processes have used, or those of a role."""
    pids = [each.pid for each in broker.processes() if role in (None, each.role.split()[0])]
    return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in pids)


def write(broker: Appliance, topic: str) -> float:
    """Write one record after the other; the worker's processor time for each."""
    before_s = processor_s(broker, "ioproc")
    with Producer(bootstrap_servers=broker.address, linger_ms=0) as producer:
        for _ in range(RECORDS):
            producer.send(topic, b"x" * 100, partition=0).get(PATIENCE_S)
    return (processor_s(broker, "ioproc") - before_s) / RECORDS


def test_a_hundred_waiting_readers_cost_nothing_while_nothing_is_written_and_little_else(
    broker: Appliance,
) -> None:
    """Measured on two busy cores: 0 idle, and 2 µs of the worker for a reader and a record that it waits for."""
    with Admin(bootstrap_servers=broker.address) as admin:
        for name in ("watched", "other"):
            admin.create_topic(name, 1)
    write(broker, "other")
    alone_s = min(write(broker, "other"), write(broker, "watched"))
    with ExitStack() as stack:
        readers = [stack.enter_context(LocalReader(broker.data_dir, "watched", 0)) for _ in range(WATCHERS)]
        for reader in readers:
            read_to(reader, RECORDS)
            assert not reader.read()
        time.sleep(2)  # what the flush of the last records says
        before_s, ours_s = processor_s(broker), time.process_time()
        time.sleep(IDLE_S)
        assert processor_s(broker) - before_s < 0.05 * IDLE_S
        assert time.process_time() - ours_s < 0.05 * IDLE_S
        assert write(broker, "other") < alone_s + 0.000_3, "a partition without readers"
        assert write(broker, "watched") < alone_s + WATCHERS * 0.000_01
        for reader in readers:
            assert read_to(reader, 2 * RECORDS)


def test_a_consumer_of_a_hundred_quiet_partitions_sleeps(broker: Appliance) -> None:
    with Admin(bootstrap_servers=broker.address) as admin:
        admin.create_topic("quiet", WATCHERS)
    with Producer(bootstrap_servers=broker.address) as producer:
        for partition in range(WATCHERS):
            producer.send("quiet", b"%d" % partition, partition=partition)
        producer.flush(PATIENCE_S)
    with local(broker) as consumer:
        consumer.assign([TopicPartition("quiet", each) for each in range(WATCHERS)])
        found: set[bytes] = set()
        deadline_s = time.monotonic() + PATIENCE_S
        while len(found) < WATCHERS:
            assert time.monotonic() < deadline_s
            found |= {record.value for each in consumer.poll(200).values() for record in each}
        time.sleep(2)
        thread, ours_s = consumer._io._thread.native_id, time.process_time()
        sleeps = sleeps_of(thread)
        time.sleep(IDLE_S)
        assert sleeps_of(thread) - sleeps <= 6
        assert time.process_time() - ours_s < 0.05 * IDLE_S
