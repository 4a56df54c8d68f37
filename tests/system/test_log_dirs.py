"""Several log directories: partitions are spread, and a directory that fails takes its own offline and nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResult,
)
from appliance.protocol.apis.metadata import MetadataRequest
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, decode_records, encode_batch
from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.support.power_loss import layer_environment
from tests.support.raw_fetch import fetch
from tests.support.wire import WireSocket, free_ports
from tests.system.raw import Lines, ask, create_topic, generations, produce, wait_until

PARTITIONS: Final = 4


class Disks:
    """Two directories beside the data directory, and an appliance that keeps its logs in them."""

    def __init__(self, root: Path, **settings: object) -> None:
        self.a, self.b = root / "disk-a", root / "disk-b"
        self.broker = Appliance(
            root / "data", settings={"log.dirs": f"{self.a},{self.b}", "durability": "fsync"} | settings
        )

    def of(self, partition: int) -> Path:
        (home,) = [disk for disk in (self.a, self.b) if (disk / f"t-{partition}").is_dir()]
        return home

    def in_b(self) -> set[int]:
        return {number for number in range(PARTITIONS) if (self.b / f"t-{number}").is_dir()}

    def take_b_away(self) -> None:
        """In one step: what deletes file by file meets those that the broker writes meanwhile."""
        self.b.rename(self.b.with_name("taken-away"))

    def produce_all(self) -> dict[int, int]:
        """Partition → error of a record that says its number."""
        with WireSocket(self.broker.port) as connection:
            return {
                number: produce(
                    connection, "t", encode_batch([Record(b"%d" % number)]), partition=number
                ).error
                for number in range(PARTITIONS)
            }

    def first_value(self, partition: int) -> bytes | None:
        with WireSocket(self.broker.port) as connection:
            (record,) = decode_records(fetch(connection, "t", partition, offset=0)[: 1 << 20])
        return record.value

    def offline(self) -> set[int]:
        """Partitions that Metadata counts as offline."""
        with WireSocket(self.broker.port) as connection:
            metadata = ask(connection, ApiKey.METADATA, MetadataRequest((TopicSelector("t"),)))
        found = {
            p.partition_index: (p.error_code, p.leader_id, p.offline_replicas)
            for p in metadata.topics[0].partitions
        }
        told = {(0, 0, ()), (int(ErrorCode.LEADER_NOT_AVAILABLE), -1, (0,))}
        assert set(found.values()) <= told, found
        return {number for number, (error, _, _) in found.items() if error}


@pytest.fixture
def disks(tmp_path: Path) -> Iterator[Disks]:
    both = Disks(tmp_path)
    both.broker.start()
    try:
        assert create_topic(both.broker.port, "t", partitions=PARTITIONS) == 0
        assert set(both.produce_all().values()) == {0}
        yield both
        assert "Traceback" not in both.broker.output()
    finally:
        both.broker.stop()


def test_new_partitions_go_where_the_fewest_are_and_are_found_again(disks: Disks) -> None:
    assert len(disks.in_b()) == PARTITIONS // 2
    for how in (disks.broker.stop, disks.broker.kill):
        where = {number: disks.of(number) for number in range(PARTITIONS)}
        how()
        disks.broker.start()
        assert {number: disks.of(number) for number in range(PARTITIONS)} == where
        assert [disks.first_value(number) for number in range(PARTITIONS)] == [b"0", b"1", b"2", b"3"]


def test_a_directory_that_is_removed_takes_its_partitions_offline_and_nothing_else(disks: Disks) -> None:
    before, lost = generations(disks.broker), disks.in_b()
    said = Lines(disks.broker)
    disks.take_b_away()
    wait_until(lambda: disks.offline() == lost, "metadata says so", timeout_s=30)
    wait_until(
        lambda: bool(said.containing(f"log directory {disks.b} has failed")), "the log says so", timeout_s=30
    )
    told = disks.produce_all()
    assert {number for number, error in told.items() if error == ErrorCode.KAFKA_STORAGE_ERROR} == lost
    assert {number for number, error in told.items() if not error} == set(range(PARTITIONS)) - lost
    assert create_topic(disks.broker.port, "new", partitions=2) == 0
    assert (disks.a / "new-0").is_dir()
    assert (disks.a / "new-1").is_dir()
    assert generations(disks.broker) == before

    # An empty directory in its place is a disk that is not mounted: nothing is begun anew there.
    disks.broker.kill()
    disks.b.mkdir()
    disks.broker.start()
    wait_until(lambda: disks.offline() == lost, "still offline", timeout_s=30)
    assert "is its disk mounted?" in disks.broker.output()
    assert not any(disks.b.iterdir())
    for number in set(range(PARTITIONS)) - lost:
        assert disks.first_value(number) == b"%d" % number


def test_a_directory_that_comes_back_serves_again_with_what_it_held(disks: Disks) -> None:
    lost = disks.in_b()
    disks.broker.stop()
    away = disks.b.rename(disks.b.with_name("away"))
    disks.broker.start()
    wait_until(lambda: disks.offline() == lost, "offline", timeout_s=30)
    disks.broker.stop()
    away.rename(disks.b)
    disks.broker.start()
    assert disks.offline() == set()
    assert [disks.first_value(number) for number in range(PARTITIONS)] == [b"0", b"1", b"2", b"3"]


def test_a_disk_that_fails_takes_its_directory_offline_and_one_bad_file_its_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = tmp_path / "fail"
    for name, value in (layer_environment() | {"DISK_LAYER_FAULTS": str(trigger)}).items():
        monkeypatch.setenv(name, value)
    disks = Disks(tmp_path)
    disks.broker.start()
    try:
        assert create_topic(disks.broker.port, "t", partitions=PARTITIONS) == 0
        assert set(disks.produce_all().values()) == {0}
        lost = disks.in_b()
        (bad, *_) = set(range(PARTITIONS)) - lost
        trigger.write_text(f"/t-{bad}/")
        assert disks.produce_all()[bad] == ErrorCode.KAFKA_STORAGE_ERROR
        wait_until(lambda: disks.offline() == {bad}, "one partition", timeout_s=30)
        trigger.write_text("/disk-b/")
        disks.produce_all()
        wait_until(lambda: disks.offline() == {bad, *lost}, "a directory", timeout_s=30)
        trigger.unlink()
        told = disks.produce_all()
        assert {number for number, error in told.items() if error} == {bad, *lost}, "tried again"
    finally:
        disks.broker.stop()


def test_describe_log_dirs_says_what_lies_where_and_how_large_it_is(disks: Disks) -> None:
    found = described(disks.broker.port)
    for disk, partitions in ((disks.a, set(range(PARTITIONS)) - disks.in_b()), (disks.b, disks.in_b())):
        result = found[str(disk)]
        assert (result.error_code, result.is_cordoned) == (0, False)
        assert 0 < result.usable_bytes <= result.total_bytes
        (topic,) = result.topics
        assert {each.partition_index for each in topic.partitions} == partitions
        for each in topic.partitions:
            size_bytes = len(encode_batch([Record(b"%d" % each.partition_index)]))
            assert (each.partition_size, each.offset_lag, each.is_future_key) == (size_bytes, 0, False)
    (lone,) = disks.in_b() - {max(disks.in_b())}
    asked = (DescribableLogDirTopic("t", (lone, lone, 99)), DescribableLogDirTopic("unknown", (0,)))
    found = described(disks.broker.port, asked)
    assert found[str(disks.a)].topics == ()
    assert [each.partition_index for each in found[str(disks.b)].topics[0].partitions] == [lone]


def test_a_failed_directory_is_shown_by_describe_log_dirs_and_by_status(disks: Disks) -> None:
    lost = disks.in_b()
    disks.take_b_away()
    wait_until(lambda: described(disks.broker.port)[str(disks.b)].error_code != 0, "told", timeout_s=30)
    found = described(disks.broker.port)
    assert found[str(disks.b)].error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert found[str(disks.b)].topics == ()
    assert len(found[str(disks.a)].topics[0].partitions) == PARTITIONS - len(lost)
    told = appliance("status", "--data-dir", disks.broker.data_dir, "--json").succeeded()
    (worker,) = [each for each in json.loads(told.text)["processes"] if each["role"] == "ioproc 0.0"]
    assert worker["failed_log_dirs"] == [str(disks.b)]
    assert worker["offline_partitions"] == len(lost)
    errors = {each["path"]: each["error"] for each in json.loads(told.text)["log_dirs"]}
    assert errors[str(disks.a)] is None
    assert errors[str(disks.b)] == "No such file or directory"
    told = appliance("status", "--data-dir", disks.broker.data_dir).succeeded()
    assert f"log directory {disks.b} has failed" in told.text
    shown = appliance("log-dirs", "describe", "-b", disks.broker.address, "--json")
    assert shown.code == 1
    assert {each["log_dir"]: each["error"] for each in json.loads(shown.text)} == {
        str(disks.a): None,
        str(disks.b): "The log directory could not be read or written. (KAFKA_STORAGE_ERROR)",
    }


def described(
    port: int, topics: tuple[DescribableLogDirTopic, ...] | None = None
) -> dict[str, DescribeLogDirsResult]:
    """Path → what DescribeLogDirs says of the directory."""
    with WireSocket(port) as connection:
        response = ask(connection, ApiKey.DESCRIBE_LOG_DIRS, DescribeLogDirsRequest(topics))
    assert response.error_code == 0
    return {result.log_dir: result for result in response.results}


def test_without_any_directory_nothing_starts(tmp_path: Path) -> None:
    for name in ("disk-a", "disk-b"):
        (tmp_path / name).touch()
    assert "disk-a" in refusal(tmp_path, f"{tmp_path / 'disk-a'},{tmp_path / 'disk-b'}")


def test_a_directory_of_another_cluster_is_refused_whatever_the_others_say(tmp_path: Path) -> None:
    other = tmp_path / "disk-b"
    other.mkdir()
    (other / "meta.properties").write_text("version=1\ncluster.id=xyz\nnode.id=0\n")
    told = refusal(tmp_path, f"{tmp_path / 'disk-a'},{other}")
    assert "belongs to node 0 of cluster xyz" in told


def refusal(root: Path, log_dirs: str) -> str:
    """What `appliance serve` says when it ends by itself."""
    command = [sys.executable, "-m", "appliance", "serve", "--data-dir", str(root / "data")]
    command += ["--port", str(free_ports(1)), "--set", f"log.dirs={log_dirs}"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert told.returncode
    return told.stdout + told.stderr


@pytest.mark.parametrize("log_dirs", ["/x,/x", "/x,/y/../x", " , "])
def test_directories_that_are_one_are_refused(log_dirs: str, tmp_path: Path) -> None:
    assert "log.dirs" in refusal(tmp_path, log_dirs)
