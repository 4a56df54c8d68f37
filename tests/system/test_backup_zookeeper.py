"""`appliance backup` and `restore` of an appliance with its metadata in ZooKeeper, under traffic and stopped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.support.zookeeper import ZooKeeper
from tests.system.test_backup import PAIRED, Traffic, committed, everything, take

PARTITIONS: Final = 2


def on(connect: str) -> dict[str, object]:
    return {"metadata.store": "zookeeper", "zookeeper.connect": connect}


@pytest.fixture(scope="module")
def broker(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    at = tmp_path_factory.mktemp("backed-up")
    started = Appliance(at / "data", settings=on(f"{zookeeper.address}/backed-up"), output_to=at / "log")
    started.start()
    admin = AdminClient({"bootstrap.servers": started.address})
    topics = [NewTopic("numbers", PARTITIONS, 1, config={"retention.ms": "86400000"})]
    topics += [NewTopic(name, 1, 1) for name in PAIRED]
    for future in admin.create_topics(topics).values():
        future.result(30)
    yield started
    started.stop()


def test_logs_and_tree_are_of_one_moment_and_go_into_an_empty_chroot_only(
    broker: Appliance, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    target, connect = tmp_path / "target", f"{zookeeper.address}/restored"
    with Traffic(broker.address) as traffic:
        deadline = time.monotonic() + 30
        while traffic.acknowledged < 2000 or traffic.commits < 5:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        # The running appliance says where its ZooKeeper is.
        told = take(broker, target)
        later = appliance("topics", "create", "later", "-b", broker.address)
        later.succeeded()
    assert told["partitions"] >= PARTITIONS + len(PAIRED)
    appliance("backup", "verify", target).succeeded()

    without = appliance("restore", target, tmp_path / "without")
    assert without.code != 0
    assert "--zookeeper" in without.errors
    assert not (tmp_path / "without").exists() or not list((tmp_path / "without").iterdir())
    used = appliance("restore", target, tmp_path / "used", "--zookeeper", f"{zookeeper.address}/backed-up")
    assert used.code != 0
    assert "is not empty" in used.errors

    restored = Appliance(tmp_path / "restored", settings=on(connect), output_to=tmp_path / "log")
    said = appliance("restore", target, restored.data_dir, "--zookeeper", connect).succeeded().text
    assert f"--set metadata.store=zookeeper --set zookeeper.connect={connect}" in said
    restored.start()
    try:
        now, then = (everything(each.address, "numbers", PARTITIONS) for each in (broker, restored))
        assert len(then) > 1000
        assert set(then) <= set(now)
        ends = [
            max(offset for partition, offset, *_ in then if partition == each) + 1
            for each in range(PARTITIONS)
        ]
        for offset, end in zip(committed(restored.address, "numbers", PARTITIONS), ends, strict=True):
            assert 0 < offset <= end
        pairs = [
            {value for *_, value in everything(restored.address, topic, isolation="read_committed")}
            for topic in PAIRED
        ]
        assert pairs[0] == pairs[1], "no transaction is torn"
        listed = appliance("topics", "list", "-b", restored.address).succeeded().text
        assert "numbers" in listed
        assert "later" not in listed, "it was created after the moment of the backup"
        described = appliance("topics", "describe", "numbers", "-b", restored.address).succeeded().text
        assert "86400000" in described
        with Traffic(restored.address) as traffic:
            deadline = time.monotonic() + 30
            while not (traffic.acknowledged and traffic.commits):
                assert time.monotonic() < deadline
                time.sleep(0.05)
    finally:
        restored.stop()

    # Nobody runs who could say where ZooKeeper is.
    stopped = appliance("backup", restored.data_dir, tmp_path / "second")
    assert stopped.code != 0
    assert "give --zookeeper" in stopped.errors
    appliance("backup", restored.data_dir, tmp_path / "second", "--zookeeper", connect).succeeded()
    wrong = appliance(
        "backup", restored.data_dir, tmp_path / "third", "--zookeeper", f"{zookeeper.address}/nowhere"
    )
    assert wrong.code != 0
    assert "nothing in ZooKeeper" in wrong.errors
