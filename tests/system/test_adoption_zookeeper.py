"""What a Kafka of the 3.x line wrote, whose topics were in ZooKeeper, is taken over: all but the topics' settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.broker import Appliance
from tests.support.kafka_3 import KafkaOnZooKeeper
from tests.support.zookeeper import ZooKeeper
from tests.system.raw import wait_until
from tests.system.test_adoption import (
    ADOPTED,
    COMMITTED,
    TOPICS,
    Contents,
    adopt,
    assert_producers_go_on,
    commit_as_a_member,
    committed,
    contents,
    files,
    group_is_known,
    is_cleaned,
    last_batch,
    run_adopt,
    write_everything,
)

pytestmark = pytest.mark.slow


def test_every_record_of_a_kafka_on_zookeeper_is_served_and_producers_go_on(
    own_zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    kafka = KafkaOnZooKeeper(
        tmp_path / "kafka",
        f"{own_zookeeper.address}/kafka",
        settings={
            "log.cleaner.backoff.ms": 200,
            "log.flush.start.offset.checkpoint.interval.ms": 200,
            "transaction.state.log.num.partitions": 2,
            "zookeeper.session.timeout.ms": 6000,
        },
    )
    log = kafka.data_dir / "log"
    kafka.start()
    try:
        write_everything(kafka.address)
        commit_as_a_member(kafka.address)
        wait_until(is_cleaned(kafka), "Kafka has compacted", timeout_s=60)
        checkpoint = log / "cleaner-offset-checkpoint"
        wait_until(lambda: "squeezed 0" in checkpoint.read_text(), "its cleaner says so", timeout_s=60)
        starts = log / "log-start-offset-checkpoint"
        wait_until(lambda: "trimmed 0 123" in starts.read_text(), "Kafka wrote log starts", timeout_s=60)
        read = contents(kafka.address)
        assert "is in use" in run_adopt(log, "--data-dir", tmp_path / "refused").stderr
        kafka.kill()
        killed = Path(shutil.copytree(log, tmp_path / "killed"))
        # The node of the one that was killed goes with its session.
        kafka.start()
        assert contents(kafka.address) == read
    finally:
        kafka.stop()
    own_zookeeper.kill()
    for source in (log, killed):
        take_over(source, read, tmp_path / f"data-{source.name}")


def take_over(source: Path, read: Contents, data_dir: Path) -> None:
    before = files(source)
    header, batch = last_batch(source / "idempotent-0")
    told = json.loads(adopt(source, "--data-dir", data_dir, "--json"))
    topics = {topic["name"]: topic for topic in told["topics"]}
    assert topics.keys() >= TOPICS.keys() | {"__transaction_state", "__consumer_offsets"}
    for name, (partitions, _) in TOPICS.items():
        assert len(topics[name]["partitions"]) == partitions
        # Its settings were in ZooKeeper. Nothing is deleted by age; where the cleaner had been, its checkpoint says so.
        kept = {"cleanup.policy": "compact"} if name == "squeezed" else {"retention.ms": "-1"}
        assert topics[name]["configs"] == kept, name
    appliance = Appliance(data_dir, settings=ADOPTED)
    appliance.start()
    try:
        assert contents(appliance.address) == read
        assert_producers_go_on(appliance, header, batch)
        wait_until(lambda: group_is_known(appliance.address), "groups are there", timeout_s=30)
        assert committed(appliance.address) == COMMITTED
    finally:
        appliance.stop()
    assert files(source) == before, "Kafka's own files are as they were: the way back"
