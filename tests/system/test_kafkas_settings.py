"""Settings that Apache Kafka lists or changes at run time: as there, where they have a meaning here."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.request import request
from appliance.config.kafka_settings import kafka_broker_settings, kafka_group_settings
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.describe_configs import DescribeConfigsRequest, DescribedResource, ResourceType
from appliance.protocol.apis.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from appliance.protocol.apis.list_config_resources import ListConfigResourcesRequest
from appliance.protocol.errors import ErrorCode
from scripts import kafka_settings
from tests.cli.command import Outcome, appliance
from tests.support.apache_kafka import ApacheKafka
from tests.support.broker import Appliance
from tests.system.raw import wait_until

SET, DELETE, APPEND = 0, 1, 2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(tmp_path_factory.mktemp("settings") / "data")
    started.start()
    try:
        yield started
    finally:
        started.stop()


def described(broker: Appliance, kind: int, name: str) -> Any:
    body = DescribeConfigsRequest((DescribedResource(kind, name),), include_synonyms=True)
    (result,) = request(broker.address, ApiKey.DESCRIBE_CONFIGS, 4, body).results
    return result


def altered(broker: Appliance, kind: int, name: str, *changes: tuple[str, int, str | None]) -> Any:
    configs = tuple(AlterableConfig(setting, operation, value) for setting, operation, value in changes)
    body = IncrementalAlterConfigsRequest((AlterConfigsResource(kind, name, configs),))
    (response,) = request(broker.address, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body).responses
    return response


def configs(broker: Appliance, *arguments: str) -> Outcome:
    return appliance("configs", *arguments, "--broker", 0, "-b", broker.address)


def is_let_in(port: int) -> bool:
    """Whether a new connection stays open."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.settimeout(0.3)
        try:
            return connection.recv(1) != b""
        except TimeoutError:
            return True
        except ConnectionResetError:
            return False


def test_limit_of_connections_changes_while_it_runs(broker: Appliance) -> None:
    configs(broker, "set", "max.connections=2").succeeded()
    with ExitStack() as held:
        for _ in range(2):
            held.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=5))
        wait_until(lambda: not is_let_in(broker.port), "the third connection to be refused")
    wait_until(lambda: is_let_in(broker.port), "room again")
    configs(broker, "unset", "max.connections").succeeded()
    with ExitStack() as held:
        for _ in range(8):
            held.enter_context(socket.create_connection(("127.0.0.1", broker.port), timeout=5))
        assert is_let_in(broker.port)


def test_cleaners_settings_change_while_it_runs_and_the_number_of_its_threads_does_not(
    broker: Appliance,
) -> None:
    done = configs(broker, "set", "log.cleaner.backoff.ms=100", "log.cleaner.dedupe.buffer.size=2 MiB")
    assert "log.cleaner.backoff.ms: 15000 → 100\n" in done.succeeded().text
    configs(broker, "unset", "log.cleaner.backoff.ms", "log.cleaner.dedupe.buffer.size").succeeded()
    refused = configs(broker, "set", "log.cleaner.threads=2")
    assert refused.code == 1
    assert "cannot be changed while the broker runs" in refused.errors
    assert "INVALID_REQUEST" in refused.errors


def test_broker_and_group_list_what_kafka_lists(broker: Appliance) -> None:
    of_broker = {each.name for each in described(broker, ResourceType.BROKER, "0").configs}
    assert kafka_broker_settings().keys() <= of_broker
    of_group = {each.name for each in described(broker, ResourceType.GROUP, "any").configs}
    assert of_group == kafka_group_settings().keys()


def test_levels_of_loggers_are_listed_and_changed_as_with_kafka(broker: Appliance) -> None:
    def levels() -> dict[str, str]:
        found = described(broker, ResourceType.BROKER_LOGGER, "0")
        assert found.error_code == 0
        return {each.name: each.value for each in found.configs}

    assert set(levels().values()) == {"INFO"}
    assert {"root", "controller", "netproc"} <= levels().keys()
    for name in ("", "7", "x"):
        assert described(broker, ResourceType.BROKER_LOGGER, name).error_code == ErrorCode.INVALID_REQUEST
        assert (
            altered(broker, ResourceType.BROKER_LOGGER, name, ("root", SET, "INFO")).error_code
            == ErrorCode.INVALID_REQUEST
        )
    for change, code in (
        (("nothing", SET, "DEBUG"), ErrorCode.INVALID_CONFIG),
        (("root", SET, "LOUD"), ErrorCode.INVALID_CONFIG),
        (("root", APPEND, "DEBUG"), ErrorCode.INVALID_REQUEST),
        (("root", DELETE, None), ErrorCode.INVALID_REQUEST),
    ):
        assert altered(broker, ResourceType.BROKER_LOGGER, "0", change).error_code == code
    assert altered(broker, ResourceType.BROKER_LOGGER, "0", ("netproc", SET, "DEBUG")).error_code == 0
    wait_until(lambda: levels()["netproc"] == "DEBUG", "the level to be shown")
    assert levels()["controller"] == "INFO"
    assert altered(broker, ResourceType.BROKER_LOGGER, "0", ("netproc", DELETE, None)).error_code == 0
    wait_until(lambda: levels()["netproc"] == "INFO", "the level to be back")


def test_subscription_to_client_metrics_is_described_as_one_that_is_not_there(broker: Appliance) -> None:
    absent = described(broker, ResourceType.CLIENT_METRICS, "absent")
    assert [(each.name, each.value) for each in absent.configs] == [
        ("interval.ms", "300000"),
        ("match", ""),
        ("metrics", ""),
    ]
    assert described(broker, ResourceType.CLIENT_METRICS, "").error_code == ErrorCode.INVALID_REQUEST
    refused = altered(broker, ResourceType.CLIENT_METRICS, "mine", ("interval.ms", SET, "60000"))
    assert refused.error_code == ErrorCode.INVALID_REQUEST
    assert "not supported" in refused.error_message
    listed = request(broker.address, ApiKey.LIST_CONFIG_RESOURCES, 1, ListConfigResourcesRequest((8, 16)))
    assert [(each.resource_type, each.resource_name) for each in listed.config_resources] == [(8, "0")]


@pytest.mark.slow
def test_setting_that_slots_share_is_set_on_all_of_them(tmp_path: Path) -> None:
    three = Appliance(tmp_path / "data", slots=3)
    three.start()
    try:
        of_one = altered(three, ResourceType.BROKER, "1", ("max.connections", SET, "50"))
        assert of_one.error_code == ErrorCode.INVALID_REQUEST
        assert "set it on all of them" in of_one.error_message
        assert altered(three, ResourceType.BROKER, "", ("max.connections", SET, "50")).error_code == 0
        told = {each.name: each for each in described(three, ResourceType.BROKER, "1").configs}
        assert (told["max.connections"].value, told["max.connections"].config_source) == ("50", 3)
    finally:
        three.stop()


@pytest.mark.slow
def test_kept_tables_are_what_apache_kafka_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {path.name: path.read_text() for path in kafka_settings.DIRECTORY.iterdir()}
    judge = ApacheKafka(tmp_path / "kafka")
    judge.start()
    try:
        monkeypatch.setattr(kafka_settings, "DIRECTORY", tmp_path / "tables")
        kafka_settings.write(judge.address)
    finally:
        judge.stop()
    assert {path.name: path.read_text() for path in (tmp_path / "tables").iterdir()} == kept
