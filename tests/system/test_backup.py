"""`appliance backup` and `restore`: one moment of a running appliance, under traffic, and only what is new."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.control.backup.manifest import BACKUPS, DATA
from appliance.control.backup.target import open_target
from appliance.control.supervisor.main import EXIT_REFUSED
from appliance.protocol.records.record import Record, encode_batch
from tests.cli.command import appliance, environment
from tests.support.broker import Appliance
from tests.support.s3 import CREDENTIALS, s3_server
from tests.support.wire import WireSocket, free_ports
from tests.system.raw import create_topic, new_producer_id, produce
from tests.system.test_kafka_reads_our_files import COMPLAINTS, FIRST_OF_A_SEGMENT, dump

SEGMENT_BYTES: Final = 1 << 20
VALUE: Final = b"v" * 1000
GROUP: Final = "readers"
LEASES: Final = "slot-0/*/.readers/backup-*"
PAIRED: Final = ("left", "right")


class Traffic:
    """Clients at work: a producer of numbers, a group that commits what it has read, and transactions over two topics.

    Each transaction writes its number to both topics of PAIRED.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._ended = threading.Event()
        self.errors: list[Exception] = []
        self.acknowledged = self.commits = 0
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,))
            for work in (self._write, self._read, self._pair)
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(60)
        assert not self.errors, self.errors

    def _guarded(self, work: Any) -> None:
        try:
            work()
        except Exception as error:
            self.errors.append(error)

    def _acked(self, error: object, _: object) -> None:
        if error is not None:
            self.errors.append(RuntimeError(str(error)))
        self.acknowledged += 1

    def _write(self) -> None:
        producer = Producer({"bootstrap.servers": self._address, "enable.idempotence": True, "linger.ms": 5})
        number = 0
        while not self._ended.is_set():
            producer.produce("numbers", key=b"%d" % number, value=VALUE, on_delivery=self._acked)
            number += 1
            producer.poll(0)
            if number % 50 == 0:
                time.sleep(0.02)
        assert producer.flush(30) == 0

    def _read(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._address,
                "group.id": GROUP,
                "session.timeout.ms": 6000,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe(["numbers"])
        while not self._ended.is_set():
            if consumer.consume(200, 0.2):
                consumer.commit(asynchronous=False)
                self.commits += 1
        consumer.close()

    def _pair(self) -> None:
        producer = Producer({"bootstrap.servers": self._address, "transactional.id": "pairs", "linger.ms": 0})
        producer.init_transactions(30)
        number = 0
        while not self._ended.is_set():
            producer.begin_transaction()
            for topic in PAIRED:
                producer.produce(topic, b"%d" % number)
            if number % 7 == 6:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
            number += 1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    at = tmp_path_factory.mktemp("backed-up")
    settings = {"metadata.store": "embedded", "log.segment.bytes": SEGMENT_BYTES}
    started = Appliance(at / "data", settings=settings, output_to=at / "log")
    started.start()
    admin = AdminClient({"bootstrap.servers": started.address})
    topics = [NewTopic("numbers", 2, 1, config={"retention.ms": "86400000"})]
    topics += [NewTopic(name, 1, 1) for name in PAIRED]
    topics += [NewTopic("latest", 1, 1, config={"cleanup.policy": "compact"})]
    for future in admin.create_topics(topics).values():
        future.result(30)
    yield started
    started.stop()


def take(broker: Appliance, target: object, *more: object, **how: Any) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        appliance("backup", broker.data_dir, target, "--json", *more, **how).succeeded().text
    )
    return told


def everything(
    address: str, topic: str, partitions: int = 1, isolation: str = "read_uncommitted"
) -> list[tuple[int, int, bytes, bytes]]:
    """(partition, offset, key, value) of all records of a topic."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "everything",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, each, 0) for each in range(partitions)])
    found: list[tuple[int, int, bytes, bytes]] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + 60
    while len(ended) < partitions:
        assert time.monotonic() < deadline
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            ended.add(message.partition())
            continue
        found.append(
            (message.partition() or 0, message.offset() or 0, message.key() or b"", message.value() or b"")
        )
    consumer.close()
    return sorted(found)


def committed(address: str, topic: str, partitions: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": GROUP})
    found = consumer.committed([TopicPartition(topic, each) for each in range(partitions)], 30)
    consumer.close()
    return [each.offset for each in found]


def files(target: Path) -> list[Path]:
    return sorted(each for each in (target / DATA).rglob("*") if each.is_file() and each.suffix != ".part")


def test_backup_under_traffic_is_one_moment_and_the_restored_appliance_goes_on(
    broker: Appliance, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    appliance(
        "quotas", "set", "--client-id", "slow", "producer_byte_rate=1000000", "-b", broker.address
    ).succeeded()
    with WireSocket(broker.port) as wire:
        producer_id, epoch = new_producer_id(broker.port)
        assert create_topic(broker.port, "sequences") == 0
        batches = [
            encode_batch(
                [Record(timestamp_ms=int(time.time() * 1000), value=b"%d" % number)],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=number,
            )
            for number in range(3)
        ]
        for number in range(2):
            assert produce(wire, "sequences", batches[number]).error == 0
    with Traffic(broker.address) as traffic:
        deadline = time.monotonic() + 20
        while traffic.acknowledged < 3000 or traffic.commits < 5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        told = [take(broker, target) for _ in range(3)]
        acknowledged = traffic.acknowledged
    assert appliance("backup", "verify", target).succeeded().text.endswith("no file is damaged\n")
    restored = Appliance(
        tmp_path / "restored", settings={"metadata.store": "embedded"}, output_to=tmp_path / "log"
    )
    appliance("restore", target, restored.data_dir).succeeded()
    dumped = sorted((restored.data_dir / "slot-0" / "numbers-0").glob("*.log"))
    assert len(dumped) > 1, "the test means to have a closed segment"
    # Some records in each; to print all takes the tool most of a minute.
    said = dump("--deep-iteration", "--max-bytes", "50000", "--files", ",".join(map(str, dumped)))
    assert not COMPLAINTS.search(FIRST_OF_A_SEGMENT.sub("", said))
    restored.start()
    try:
        now, then = everything(broker.address, "numbers", 2), everything(restored.address, "numbers", 2)
        assert len(then) > 1000
        assert len(then) <= acknowledged
        assert set(then) <= set(now)
        ends = [max(offset for partition, offset, *_ in then if partition == each) + 1 for each in range(2)]
        assert then == [each for each in now if each[1] < ends[each[0]]], (
            "the records of one moment, none left out"
        )
        for offset, end in zip(committed(restored.address, "numbers", 2), ends, strict=True):
            assert 0 < offset <= end, "the group has read no more than there is"
        pairs = [
            {value for *_, value in everything(restored.address, topic, isolation="read_committed")}
            for topic in PAIRED
        ]
        assert pairs[0] == pairs[1], "no transaction is torn"
        assert len(pairs[0]) > 10
        assert (
            "86400000" in appliance("topics", "describe", "numbers", "-b", restored.address).succeeded().text
        )
        assert "1000000" in appliance("quotas", "list", "-b", restored.address).succeeded().text
        with WireSocket(restored.port) as wire:
            again, further = produce(wire, "sequences", batches[1]), produce(wire, "sequences", batches[2])
        assert (again.error, again.base_offset) == (0, 1), "recognized as a duplicate"
        assert (further.error, further.base_offset) == (0, 2)
        with Traffic(restored.address) as traffic:
            deadline = time.monotonic() + 20
            while not (traffic.acknowledged and traffic.commits):
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        restored.stop()
    assert told[0]["cluster_id"] == told[2]["cluster_id"]
    assert told[2]["copied_bytes"] < told[2]["bytes"] / 2, "the last one stored what was new"


def test_later_backup_stores_only_new_bytes(broker: Appliance, tmp_path: Path) -> None:
    target = tmp_path / "target"
    producer = Producer({"bootstrap.servers": broker.address})
    for _ in range(3000):
        producer.produce("numbers", VALUE, partition=0)
    producer.flush()
    first = take(broker, target)
    second = take(broker, target)
    assert second["copied_bytes"] < 200_000, "metadata and commits at most"
    for _ in range(100):
        producer.produce("numbers", VALUE, partition=0)
    producer.flush()
    metrics = tmp_path / "backup.prom"
    third = take(broker, target, "--metrics", metrics)
    said = metrics.read_text()
    assert f'appliance_backup_copied_bytes{{target="{target}"}} {third["copied_bytes"]}\n' in said
    assert f'appliance_backup_size_bytes{{target="{target}"}} {third["bytes"]}\n' in said
    assert f'appliance_backup_succeeded{{target="{target}"}} 1\n' in said
    assert 100_000 < third["copied_bytes"] - second["copied_bytes"] < 300_000
    assert first["bytes"] < third["bytes"]
    out = tmp_path / "restored"
    appliance("restore", target, out, "--backup", first["id"]).succeeded()
    pruned = json.loads(
        appliance("backup", "prune", target, "--keep", "1", "--yes", "--json").succeeded().text
    )
    assert pruned["removed"] == [first["id"], second["id"]]
    appliance("backup", "verify", target).succeeded()


def test_killed_backup_leaves_the_last_one_usable(broker: Appliance, tmp_path: Path) -> None:
    target = tmp_path / "target"
    told = take(broker, target)
    shutil.copytree(target, slow := tmp_path / "slow")
    for manifest in (slow / BACKUPS).iterdir():
        manifest.unlink()  # so that everything is copied again
    before = len(files(slow))
    command = [sys.executable, "-m", "appliance", "backup", str(broker.data_dir), str(slow)]
    running = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE)
    deadline = time.monotonic() + 30
    while len(files(slow)) == before and running.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.0005)
    running.send_signal(signal.SIGKILL)
    running.wait(30)
    assert running.returncode == -signal.SIGKILL, "it was killed in the middle"
    assert not list((slow / BACKUPS).iterdir())
    shutil.copy2(target / BACKUPS / f"{told['id']}.json", slow / BACKUPS)
    appliance("backup", "verify", slow).succeeded()
    after = take(broker, slow)
    listed = json.loads(appliance("backup", "list", slow, "--json").succeeded().text)
    assert [each["id"] for each in listed] == [told["id"], after["id"]]
    pruned = json.loads(appliance("backup", "prune", slow, "--keep", "2", "--yes", "--json").succeeded().text)
    assert pruned["files"] > 0, "what the killed one left is removed"
    appliance("backup", "verify", slow).succeeded()


def test_full_target_is_a_clear_error_and_the_broker_goes_on(broker: Appliance, tmp_path: Path) -> None:
    target = tmp_path / "target"
    told = take(broker, target)
    leases = set(broker.data_dir.glob(LEASES))
    producer = Producer({"bootstrap.servers": broker.address})
    for _ in range(1000):
        producer.produce("numbers", VALUE, partition=1)
    producer.flush()
    done = subprocess.run(
        [sys.executable, "-m", "appliance", "backup", str(broker.data_dir), str(target)],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        # The kernel refuses to write beyond it, as a full disk does.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    )
    assert done.returncode == 1
    assert str(target) in done.stderr
    assert "Traceback" not in done.stderr
    appliance("backup", "verify", target).succeeded()
    assert [path.stem for path in (target / BACKUPS).iterdir()] == [told["id"]]
    assert not list(target.rglob("*.part"))
    assert not set(broker.data_dir.glob(LEASES)) - leases
    producer.produce("numbers", VALUE)
    assert producer.flush(30) == 0


def test_damaged_backup_is_named_by_file_and_not_restored(broker: Appliance, tmp_path: Path) -> None:
    target = tmp_path / "target"
    take(broker, target)
    victim = max(
        (each for each in files(target) if ".log." in each.name), key=lambda each: each.stat().st_size
    )
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    name = str(victim.relative_to(target))
    outcome = appliance("backup", "verify", target)
    assert outcome.code == 1
    assert name in outcome.errors
    assert "SHA-256" in outcome.errors
    out = tmp_path / "restored"
    outcome = appliance("restore", target, out)
    assert outcome.code == 1
    assert name in outcome.errors
    refused = appliance("serve", "--data-dir", out, "--port", free_ports())
    assert refused.code == EXIT_REFUSED
    assert "restore" in refused.errors
    victim.unlink()
    outcome = appliance("backup", "verify", target)
    assert outcome.code == 1
    assert "is missing" in outcome.errors
    (manifest,) = (target / BACKUPS).iterdir()
    manifest.write_bytes(manifest.read_bytes()[:-100])
    outcome = appliance("backup", "verify", target)
    assert outcome.code == 1
    assert manifest.name in outcome.errors


def test_refusals(broker: Appliance, tmp_path: Path) -> None:
    inside = appliance("backup", broker.data_dir, broker.data_dir / "backups")
    assert inside.code == 1
    assert "inside" in inside.errors
    assert not (broker.data_dir / "backups").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("mine")
    assert "not a directory of backups" in appliance("backup", broker.data_dir, tmp_path / "mine").errors
    assert "no data directory" in appliance("backup", tmp_path / "mine", tmp_path / "target").errors
    target = tmp_path / "other"
    take(broker, target)
    refused = appliance("restore", target, tmp_path / "mine")
    assert refused.code == 1
    assert "not empty" in refused.errors
    assert [each.name for each in (tmp_path / "mine").iterdir()] == ["file"]
    assert (
        "has no backup"
        in appliance("restore", target, tmp_path / "new", "--backup", "20200101T000000.000Z").errors
    )


def test_by_bootstrap_to_an_object_store_and_back(
    broker: Appliance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with s3_server(tmp_path) as server:
        urlopen(Request(f"http://{server}/backups", method="PUT"), timeout=30).close()
        place = f"s3://backups/here?endpoint_override={server}&scheme=http&region=here"
        first = json.loads(
            appliance("backup", "-b", broker.address, place, "--json", more=CREDENTIALS).succeeded().text
        )
        second = take(broker, place, more=CREDENTIALS)
        assert second["copied_bytes"] < first["copied_bytes"] / 2
        holder = open_target(place, writes=True)
        try:
            for command in (("backup", broker.data_dir, place), ("backup", "prune", place, "--keep=1", "-y")):
                refused = appliance(*command, more=CREDENTIALS)
                assert refused.code == 1
                assert f"process {os.getpid()} on host" in refused.errors
        finally:
            holder.close()
        appliance("backup", "verify", place, more=CREDENTIALS).succeeded()
        appliance("restore", place, tmp_path / "restored", more=CREDENTIALS).succeeded()
        pruned = appliance("backup", "prune", place, "--keep", "1", "--yes", more=CREDENTIALS).succeeded()
        assert "removed 1 backups" in pruned.text
    restored = Appliance(
        tmp_path / "restored", settings={"metadata.store": "embedded"}, output_to=tmp_path / "log"
    )
    restored.start()
    try:
        assert everything(restored.address, "numbers", 2) == everything(broker.address, "numbers", 2)
    finally:
        restored.stop()
