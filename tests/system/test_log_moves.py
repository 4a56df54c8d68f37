"""A partition moves to another log directory while it is written to and read, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from appliance.log.file_names import MOVED_HERE
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirTopic,
)
from appliance.protocol.apis.describe_log_dirs import DescribeLogDirsPartition, DescribeLogDirsRequest
from appliance.protocol.errors import ErrorCode
from tests.cli.command import appliance
from tests.support.apache_kafka import compiled, java, tool
from tests.support.broker import Appliance
from tests.support.power_loss import layer_environment
from tests.support.wire import WireSocket
from tests.system.raw import ask, create_topic, wait_until
from tests.system.test_kafka_reads_our_files import dump_complaints

MOVE_LOG: Final = Path(__file__).with_name("java") / "MoveLog.java"
MIB: Final = 1 << 20


class Moving:
    """Two log directories and a topic of one partition, `t-0`, that begins in the first."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.paths = {"a": root / "disk-a", "b": root / "disk-b"}
        dirs = ",".join(map(str, self.paths.values()))
        self.broker = Appliance(root / "data", settings={"log.dirs": dirs} | settings)

    def alter(self, where: str, *, topic: str = "t", partition: int = 0) -> int:
        path = str(self.paths[where]) if where in self.paths else where
        body = AlterReplicaLogDirsRequest(
            (AlterReplicaLogDir(path, (AlterReplicaLogDirTopic(topic, (partition,)),)),)
        )
        with WireSocket(self.broker.port, timeout_s=30) as connection:
            response = ask(connection, ApiKey.ALTER_REPLICA_LOG_DIRS, body)
        (result,) = response.results
        error: int = result.partitions[0].error_code
        return error

    def described(self) -> dict[str, list[DescribeLogDirsPartition]]:
        with WireSocket(self.broker.port, timeout_s=30) as connection:
            response = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(None))
        names = {str(path): name for name, path in self.paths.items()}
        return {
            names[each.log_dir]: [one for topic in each.topics for one in topic.partitions]
            for each in response.results
        }

    def is_in(self, where: str) -> bool:
        """Whether the partition is there, and nowhere else, and nothing of a move is left."""
        other = self.paths["b" if where == "a" else "a"]
        there = self.paths[where] / "t-0"
        left = [p for path in self.paths.values() for p in path.glob("t-0.*")]
        return (
            there.is_dir() and not (other / "t-0").exists() and not left and not (there / MOVED_HERE).exists()
        )

    def fill(self, size_mib: int) -> int:
        """Produces so much; how many records."""
        producer = Producer({"bootstrap.servers": self.broker.address, "linger.ms": 5})
        count = size_mib * 1024
        for number in range(count):
            producer.produce("t", b"%08d" % number + bytes(1016), partition=0)
            producer.poll(0)
        assert producer.flush(60) == 0
        return count


class Writer:
    """Produces numbers until it is stopped, and keeps those that were acknowledged."""

    def __init__(self, broker: Appliance, first: int) -> None:
        self.acked: list[int] = []
        self._next = first
        self._producer = Producer(
            {
                "bootstrap.servers": broker.address,
                "linger.ms": 1,
                "enable.idempotence": True,
                "retry.backoff.ms": 20,
            }
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for _ in range(20):
                number = self._next
                self._next += 1

                def told(error: object, _message: object, number: int = number) -> None:
                    if error is None:
                        self.acked.append(number)

                self._producer.produce("t", b"%08d" % number + bytes(1016), partition=0, on_delivery=told)
            self._producer.poll(0.002)

    def stop(self) -> list[int]:
        self._stopped.set()
        self._thread.join()
        assert self._producer.flush(60) == 0
        return self.acked


def read_numbers(broker: Appliance, *, until: int) -> list[int]:
    """All records from the beginning on, until `until` of them have come."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[int] = []
    try:
        deadline = time.monotonic() + 120
        while len(found) < until:
            assert time.monotonic() < deadline, f"{len(found)} of {until}"
            messages = consumer.consume(1000, timeout=0.1)
            for message in messages:
                assert message.error() is None, message.error()
                value = message.value()
                assert isinstance(value, bytes)
                found.append(int(value[:8]))
    finally:
        consumer.close()
    return found


@pytest.fixture(params=["page-cache", "fsync"])
def moving(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Moving]:
    yield from started(tmp_path, durability=request.param)


def started(root: Path, **settings: object) -> Iterator[Moving]:
    found = Moving(root, **{"log.segment.bytes": 4 * MIB} | settings)
    found.broker.start()
    try:
        assert create_topic(found.broker.port, "t") == 0
        yield found
        assert "Traceback" not in found.broker.output()
    finally:
        found.broker.stop()


@pytest.fixture
def lone(tmp_path: Path) -> Iterator[Moving]:
    yield from started(tmp_path)


def test_a_partition_moves_there_and_back_while_it_is_written_to_and_read(moving: Moving) -> None:
    filled = moving.fill(20)
    writer = Writer(moving.broker, filled)
    for where in ("b", "a", "b"):
        assert moving.alter(where) == 0
        wait_until(lambda where=where: moving.is_in(where), f"moved to {where}", timeout_s=60)  # type: ignore[misc]
        read_numbers(moving.broker, until=filled)
    acked = writer.stop()
    assert acked
    numbers = read_numbers(moving.broker, until=filled + len(acked))
    assert numbers == list(range(len(numbers)))
    for how in (moving.broker.kill, moving.broker.stop):
        how()
        moving.broker.start()
        assert read_numbers(moving.broker, until=len(numbers)) == numbers
    assert moving.is_in("b")


@pytest.mark.slow
def test_a_killed_worker_goes_on_with_the_move_and_nothing_acknowledged_is_lost(moving: Moving) -> None:
    filled = moving.fill(60)
    writer = Writer(moving.broker, filled)
    where = "a"
    for _ in range(6):
        where = "b" if where == "a" else "a"
        begun = len(moving.broker.output())
        assert moving.alter(where) in (0, int(ErrorCode.REPLICA_NOT_AVAILABLE))
        (worker,) = [row for row in moving.broker.processes() if row.role == "ioproc 0.0"]
        wait_until(lambda: any(path.glob("t-0.*-future") for path in moving.paths.values()), "begun")
        os.kill(worker.pid, signal.SIGKILL)
        wait_until(
            lambda pid=worker.pid: any(  # type: ignore[misc]
                row.role == "ioproc 0.0" and row.pid != pid for row in moving.broker.processes()
            ),
            "restarted",
            timeout_s=30,
        )
        wait_until(
            lambda where=where: moving.alter(where) == 0 and moving.is_in(where),  # type: ignore[misc]
            f"moved to {where}: {moving.broker.output()[begun:]}",
            timeout_s=60,
        )
    acked = writer.stop()
    numbers = read_numbers(moving.broker, until=filled + len(set(acked)))
    assert set(acked) <= set(numbers)
    assert numbers == sorted(set(numbers))


def test_what_cannot_be_is_refused_with_kafka_s_codes(lone: Moving) -> None:
    where = "a" if (lone.paths["a"] / "t-0").is_dir() else "b"
    assert lone.alter("/nowhere") == ErrorCode.LOG_DIR_NOT_FOUND
    assert lone.alter(where) == 0
    assert lone.alter("b", topic="unknown") == ErrorCode.REPLICA_NOT_AVAILABLE
    assert lone.alter("b", partition=7) == ErrorCode.REPLICA_NOT_AVAILABLE
    assert create_topic(lone.broker.port, "x" * 240) == 0
    assert lone.alter("b", topic="x" * 240) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert lone.is_in(where)


def test_describe_log_dirs_shows_the_copy_and_a_move_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = tmp_path / "wait"
    for name, value in (layer_environment() | {"DISK_LAYER_WAITS": str(trigger)}).items():
        monkeypatch.setenv(name, value)
    for lone in started(tmp_path):
        trigger.write_text("-future/")
        count = lone.fill(100)
        assert lone.alter("b") == 0
        wait_until(lambda each=lone: bool(each.described()["b"]), "the copy is begun")  # type: ignore[misc]
        check_described(lone, trigger)
        assert read_numbers(lone.broker, until=count) == list(range(count))


def check_described(lone: Moving, trigger: Path) -> None:
    """The copy cannot end while `trigger` is there."""
    seen = [lone.described()["b"]]
    trigger.unlink()
    while seen[-1] and seen[-1][0].is_future_key:
        seen.append(lone.described()["b"])
    copies = [partition for (partition,) in seen if partition.is_future_key]
    assert copies
    assert copies[0].offset_lag > 0
    assert [each.offset_lag for each in copies] == sorted((e.offset_lag for e in copies), reverse=True)
    assert [each.partition_size for each in copies] == sorted(each.partition_size for each in copies)
    wait_until(lambda: lone.is_in("b"), "moved", timeout_s=60)

    assert lone.alter("a") == 0
    assert lone.alter("b") == 0  # back where it is
    wait_until(lambda: lone.is_in("b"), "taken back, or there and back", timeout_s=60)
    assert lone.described()["a"] == []


def test_records_deleted_and_topics_deleted_during_a_move_stay_deleted(lone: Moving) -> None:
    lone.fill(40)
    assert lone.alter("b") == 0
    told = appliance(
        "topics", "delete-records", "t", "--yes", "--before", "0=20000", "-b", lone.broker.address
    ).succeeded()
    assert "20000" in told.text
    wait_until(lambda: lone.is_in("b"), "moved", timeout_s=60)
    lone.broker.stop()
    lone.broker.start()
    assert first_offset(lone.broker) == 20000
    assert lone.alter("a") == 0
    appliance("topics", "delete", "--yes", "t", "-b", lone.broker.address).succeeded()
    wait_until(lambda: not [p for d in lone.paths.values() for p in d.glob("t-0*")], "gone", timeout_s=30)
    assert create_topic(lone.broker.port, "t") == 0
    assert first_offset(lone.broker) == 0


def first_offset(broker: Appliance) -> int:
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g"})
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=30)
    finally:
        consumer.close()
    return low


def test_a_target_that_fails_keeps_the_partition_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = tmp_path / "fail"
    for name, value in (layer_environment() | {"DISK_LAYER_FAULTS": str(trigger)}).items():
        monkeypatch.setenv(name, value)
    for moving in started(tmp_path):
        count = moving.fill(10)
        trigger.write_text("/disk-b/")
        assert moving.alter("b") in (0, ErrorCode.KAFKA_STORAGE_ERROR)
        wait_until(lambda m=moving: "move failed" in m.broker.output(), "given up", timeout_s=30)  # type: ignore[misc]
        assert (moving.paths["a"] / "t-0").is_dir()
        assert read_numbers(moving.broker, until=count) == list(range(count))
        trigger.unlink()
        assert moving.alter("b") == ErrorCode.KAFKA_STORAGE_ERROR, "the directory has failed for good"


def test_kafka_s_own_client_moves_a_partition_and_its_tools_find_it_whole(lone: Moving) -> None:
    filled = lone.fill(60)
    writer = Writer(lone.broker, filled)
    command = [*java("-Xmx256m", "-XX:TieredStopAtLevel=1", classes=compiled(MOVE_LOG)), "MoveLog"]
    arguments = [lone.broker.address, "t", str(lone.paths["b"])]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False, timeout=120)
    acked = writer.stop()
    assert done.returncode == 0, done.stderr
    refused, *looks = done.stdout.splitlines()
    assert refused == "refused LogDirNotFoundException"
    assert looks[-1].split()[1:3] == [str(lone.paths["b"]), "-"]
    told = tool(
        "org.apache.kafka.tools.LogDirsCommand", "--bootstrap-server", lone.broker.address, "--describe"
    )
    (described,) = json.loads(told.splitlines()[-1])["brokers"]
    found = {each["logDir"]: each["partitions"] for each in described["logDirs"]}
    assert found[str(lone.paths["a"])] == []
    assert [each["partition"] for each in found[str(lone.paths["b"])]] == ["t-0"]
    wait_until(lambda: lone.is_in("b"), "settled", timeout_s=30)
    assert read_numbers(lone.broker, until=filled + len(acked)) == list(range(filled + len(acked)))
    lone.broker.stop()
    assert dump_complaints([lone.paths["b"] / "t-0"]) == []
    lone.broker.start()
