"""`serve` looks before it writes: into a directory of others, or with fewer slots than there are, it does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cluster import CONSUMER_OFFSETS
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.delete_topics import DeleteTopicsRequest
from appliance.protocol.apis.offset_commit import (
    OffsetCommitPartition,
    OffsetCommitRequest,
    OffsetCommitTopic,
)
from appliance.protocol.apis.topic_selector import TopicSelector
from appliance.protocol.errors import ErrorCode
from tests.cli.command import Outcome, appliance
from tests.support.broker import Appliance
from tests.support.wire import WireSocket, free_ports
from tests.system.offsets import SETTINGS, commit, committed, find
from tests.system.raw import ask, create_topic


def tree(directory: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
    }


def served(directory: Path, *arguments: str) -> Outcome:
    """`appliance serve` there, which must refuse and change nothing."""
    before = tree(directory)
    outcome = appliance("serve", "--data-dir", directory, "--port", free_ports(3), *arguments)
    assert outcome.code == 2, outcome
    assert tree(directory) == before
    assert "Traceback" not in outcome.errors
    assert "ready" not in outcome.text
    return outcome


def kafkas_directory(directory: Path, *names: str) -> Path:
    for name in names:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            b"version=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\nnode.id=1\n" if "meta" in name else b""
        )
    return directory


@pytest.mark.parametrize(
    "names",
    [
        ("meta.properties", "__cluster_metadata-0/00000000000000000000.log"),
        ("meta.properties", "orders-0/00000000000000000000.log", ".lock"),
        ("orders-0/00000000000000000000.log",),
    ],
)
def test_log_directory_of_apache_kafka_is_refused_and_adopt_is_named(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    directory = kafkas_directory(tmp_path / "kafka", *names)
    refusal = served(directory)
    assert "Apache Kafka" in refusal.errors
    assert f"appliance adopt {directory}" in refusal.errors


@pytest.mark.parametrize("name", ["notes.txt", "src/main.c", ".git/HEAD"])
def test_directory_of_something_else_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / "other" / name
    path.parent.mkdir(parents=True)
    path.write_text("not yours")
    assert "is not empty" in served(tmp_path / "other").errors


def test_empty_directory_and_one_of_a_killed_first_start_are_taken(tmp_path: Path) -> None:
    for number, names in enumerate([(), (".lock", "run.json", "lost+found", "disk-0/meta")]):
        directory = tmp_path / str(number)
        directory.mkdir()
        for name in names:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            (directory / name).touch()
        broker = Appliance(directory, settings={"log.dirs": "disk-{slot}"})
        broker.start()
        broker.stop()


@pytest.mark.parametrize("log_dirs", [None, "disk-{slot}-a,disk-{slot}-b"])
def test_fewer_slots_than_have_partitions_are_refused_unless_it_is_meant(
    tmp_path: Path, log_dirs: str | None
) -> None:
    settings: dict[str, object] = {} if log_dirs is None else {"log.dirs": log_dirs}
    broker = Appliance(tmp_path / "data", slots=3, settings=settings)
    broker.start()
    assert create_topic(broker.port, "orders", partitions=6) == 0
    broker.stop()
    flags = [] if log_dirs is None else ["--set", f"log.dirs={log_dirs}"]
    for slots, missing in (("1", "slots 1, 2"), ("2", "slot 2")):
        refusal = served(broker.data_dir, "--slots", slots, *flags).errors
        assert missing in refusal
        assert "orders-" in refusal
        assert "--slots 3" in refusal
        assert "slots.removed.ok=true" in refusal
    fewer = Appliance(broker.data_dir, settings={**settings, "slots.removed.ok": True})
    fewer.start()
    fewer.stop()
    broker.start()
    broker.stop()


def test_slot_without_partitions_may_go(tmp_path: Path) -> None:
    broker = Appliance(tmp_path / "data", slots=2, settings={"offsets.topic.replication.factor": 1})
    broker.start()
    broker.stop()
    assert (broker.data_dir / "slot-1").is_dir()
    fewer = Appliance(broker.data_dir)
    fewer.start()
    fewer.stop()


def test_deletion_of_the_offsets_topic_is_refused_and_commits_stay(tmp_path: Path) -> None:
    broker = Appliance(tmp_path / "data", settings=SETTINGS)
    broker.start()
    assert create_topic(broker.port, "t") == 0
    topics = (OffsetCommitTopic("t", partitions=(OffsetCommitPartition(0, 42),)),)
    with WireSocket(broker.port, timeout_s=20) as connection:
        find(connection, "g")
        assert not any(commit(connection, OffsetCommitRequest("g", topics=topics)))
        request = DeleteTopicsRequest((TopicSelector(name=CONSUMER_OFFSETS),), timeout_ms=5000)
        response = ask(connection, ApiKey.DELETE_TOPICS, request)
        assert [each.error_code for each in response.responses] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
        assert committed(connection, "g", "t") == 42
    broker.stop()
