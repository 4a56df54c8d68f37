"""Settings changed by real clients and by Kafka's own command, and what a produce right after the answer meets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource as PythonResource
from kafka.admin import ConfigResourceType

from tests.clients.client import MESSAGE_TOO_LARGE, Record, RefusedError
from tests.clients.play import Stage
from tests.support.apache_kafka import tool
from tests.support.judge import JUDGE
from tests.support.raw_fetch import fetched_batches, is_served

WAIT_S: Final = 30.0

Alter = Callable[[str, str, str, str], None]
"""(address, topic, setting, value)"""


def by_confluent(address: str, topic: str, name: str, value: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    resource.add_incremental_config(ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET))
    admin = AdminClient({"bootstrap.servers": address})
    admin.incremental_alter_configs([resource])[resource].result(WAIT_S)


def by_confluent_of_old(address: str, topic: str, name: str, value: str) -> None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, set_config={name: value})
    admin = AdminClient({"bootstrap.servers": address})
    admin.alter_configs([resource])[resource].result(WAIT_S)


def by_kafka_python(address: str, topic: str, name: str, value: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=address)
    try:
        admin.alter_configs([PythonResource(ConfigResourceType.TOPIC, topic, {name: value})])
    finally:
        admin.close()


def by_kafkas_command(address: str, topic: str, name: str, value: str) -> None:
    target = ("--bootstrap-server", address, "--entity-type", "topics", "--entity-name", topic)
    tool("kafka.admin.ConfigCommand", *target, "--alter", "--add-config", f"{name}={value}")
    assert f"{name}={value}" in tool("kafka.admin.ConfigCommand", *target, "--describe")


ways = pytest.mark.parametrize(
    "alter", [by_confluent, by_confluent_of_old, by_kafka_python, by_kafkas_command]
)


def settled(condition: Callable[[], bool]) -> bool:
    """Whether the condition holds: at once here, within a while on Apache Kafka, which answers before it acts."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        if JUDGE != "kafka" or time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def fresh(stage: Stage, alter: Alter, name: str) -> str:
    topic = f"{alter.__name__}-{name}"
    stage.witness.create_topic(topic, 1)
    deadline = time.monotonic() + WAIT_S
    while not is_served(stage.address, topic, 1):
        assert time.monotonic() < deadline
    return topic


@ways
def test_the_next_produce_meets_an_acknowledged_size(stage: Stage, alter: Alter) -> None:
    topic = fresh(stage, alter, "size")
    large = [Record(value=bytes(5000))]
    stage.witness.produce(topic, large)
    alter(stage.address, topic, "max.message.bytes", "1000")

    def is_refused() -> bool:
        try:
            stage.witness.produce(topic, large)
        except RefusedError as refusal:
            return refusal.code == MESSAGE_TOO_LARGE
        return False

    assert settled(is_refused)


@pytest.mark.parametrize("alter", [by_confluent, by_kafka_python])
def test_the_next_produce_is_stored_in_the_topics_codec(stage: Stage, alter: Alter) -> None:
    topic = fresh(stage, alter, "codec")
    records = [Record(value=b"a " * 500, timestamp_ms=int(time.time() * 1000)) for _ in range(10)]
    alter(stage.address, topic, "compression.type", "zstd")
    sent = 0

    def is_packed() -> bool:
        nonlocal sent
        stage.witness.produce(topic, records, codec="gzip")
        sent += len(records)
        return {batch.codec for batch in fetched_batches(stage.address, topic, 0)} >= {"zstd"}

    assert settled(is_packed)
    received = stage.witness.consume(topic, 0, start=0, count=sent)
    assert [each.value for each in received] == [record.value for record in records] * (sent // len(records))


def test_kafkas_command_sets_a_default_for_all_brokers(stage: Stage) -> None:
    target = ("--bootstrap-server", stage.address, "--entity-type", "brokers", "--entity-default")
    tool("kafka.admin.ConfigCommand", *target, "--alter", "--add-config", "log.segment.delete.delay.ms=12345")
    topic = fresh(stage, by_kafkas_command, "default")
    assert settled(lambda: stage.witness.topic_settings(topic)["file.delete.delay.ms"] == "12345")
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:log.segment.delete.delay.ms=12345" in tool(
        "kafka.admin.ConfigCommand", *target, "--describe"
    )
    tool("kafka.admin.ConfigCommand", *target, "--alter", "--delete-config", "log.segment.delete.delay.ms")
    assert settled(lambda: stage.witness.topic_settings(topic)["file.delete.delay.ms"] == "60000")


def test_kafkas_command_gives_a_group_a_session_timeout_of_its_own(stage: Stage) -> None:
    target = ("--bootstrap-server", stage.address, "--entity-type", "groups", "--entity-name", "patient")
    setting = "consumer.session.timeout.ms"
    done = tool("kafka.admin.ConfigCommand", *target, "--alter", "--add-config", f"{setting}=50000")
    assert done == "Completed updating config for group patient.\n"
    assert settled(lambda: "50000" in tool("kafka.admin.ConfigCommand", *target, "--describe"))
    assert tool("kafka.admin.ConfigCommand", *target, "--describe") == (
        "Dynamic configs for group patient are:\n"
        f"  {setting}=50000 sensitive=false synonyms={{DYNAMIC_GROUP_CONFIG:{setting}=50000, "
        f"DEFAULT_CONFIG:group.{setting}=45000}}\n"
    )
    tool("kafka.admin.ConfigCommand", *target, "--alter", "--delete-config", setting)
    gone = "The group 'patient' doesn't exist and doesn't have dynamic config.\n"
    assert settled(lambda: tool("kafka.admin.ConfigCommand", *target, "--describe") == gone)
