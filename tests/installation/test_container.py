"""The container's entry point: variables of Kafka's images become options. The image itself is not built here."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.support.wire import free_ports

ROOT = Path(__file__).parent.parent.parent
CONTAINER = ROOT / "deploy" / "container"
sys.path.insert(0, str(CONTAINER))
entrypoint = import_module("entrypoint")

KAFKAS = {"num.partitions", "log.cleaner.threads", "node.id", "listeners", "advertised.listeners"}
OWN = {"num.partitions", "listeners", "advertised.listeners", "host", "slots"}


@pytest.mark.parametrize(
    ("variable", "name"),
    [
        ("KAFKA_NUM_PARTITIONS", "num.partitions"),
        ("KAFKA_A__B_C___D", "a_b.c-d"),
        ("KAFKA_LOG_RETENTION_MS", "log.retention.ms"),
    ],
)
def test_a_variable_names_an_option_as_in_kafkas_images(variable: str, name: str) -> None:
    assert entrypoint.option_name(variable, "KAFKA_") == name


def test_a_compose_file_of_apache_kafka_works(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {
        "KAFKA_NODE_ID": "1",
        "KAFKA_PROCESS_ROLES": "broker,controller",
        "KAFKA_LISTENERS": "PLAINTEXT://:19092,CONTROLLER://:9093,EXTERNAL://0.0.0.0:9092",
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:19092,EXTERNAL://localhost:9092",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
        "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
        "KAFKA_CONTROLLER_QUORUM_VOTERS": "1@localhost:9093",
        "KAFKA_NUM_PARTITIONS": "3",
        "KAFKA_LOG_CLEANER_THREADS": "2",
        "KAFKA_HEAP_OPTS": "-Xmx1g",
        "APPLIANCE_INSECURE": "true",
        "PATH": "/bin",
    }
    assert entrypoint.options(environment, KAFKAS, OWN) == {
        "listeners": "PLAINTEXT://0.0.0.0:19092,EXTERNAL://0.0.0.0:9092",
        "advertised.listeners": "PLAINTEXT://broker:19092,EXTERNAL://localhost:9092",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,EXTERNAL:PLAINTEXT",
        "num.partitions": "3",
        "insecure": "true",
        "data.dir": "/data",
    }
    said = capsys.readouterr().err
    assert "log.cleaner.threads has no meaning here" in said
    assert "heap.opts has no meaning here" in said


def test_it_listens_on_every_address_and_the_broker_asks_whether_that_is_meant(tmp_path: Path) -> None:
    assert entrypoint.options({}, KAFKAS, OWN) == {"host": "0.0.0.0", "data.dir": "/data"}
    done = serve(APPLIANCE_PORT=str(free_ports(1)), APPLIANCE_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 2
    assert "authenticates nobody" in done.stderr


def test_listeners_of_the_appliance_itself_come_without_a_default_host() -> None:
    environment = {
        "APPLIANCE_LISTENERS": "PLAINTEXT://127.0.0.1:9092",
        "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:9092",
    }
    assert entrypoint.options(environment, KAFKAS, OWN) == {
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "advertised.listeners": "PLAINTEXT://broker:9092",
        "data.dir": "/data",
    }


@pytest.mark.parametrize("prefix", ["KAFKA", "APPLIANCE", "KAFKA_HEADLESS"])
def test_service_links_of_kubernetes_are_no_options(prefix: str) -> None:
    links = {
        "PORT": "tcp://10.0.0.7:9092",
        "SERVICE_HOST": "10.0.0.7",
        "SERVICE_PORT": "9092",
        "SERVICE_PORT_CLIENTS": "9092",
        "PORT_9092_TCP": "tcp://10.0.0.7:9092",
        "PORT_9092_TCP_PROTO": "tcp",
        "PORT_9092_TCP_PORT": "9092",
        "PORT_9092_TCP_ADDR": "10.0.0.7",
    }
    environment = {f"{prefix}_{name}": text for name, text in links.items()}
    assert entrypoint.options(environment, KAFKAS, OWN) == {"host": "0.0.0.0", "data.dir": "/data"}
    assert entrypoint.options({"APPLIANCE_PORT": "9093"}, KAFKAS, OWN)["port"] == "9093"


def test_a_setting_that_nobody_knows_is_refused_by_the_appliance(tmp_path: Path) -> None:
    done = serve(KAFKA_NUM_PARTITIONZ="3", APPLIANCE_DATA_DIR=str(tmp_path / "data"))
    assert done.returncode == 2
    assert "num.partitionz: no such option; did you mean num.partitions?" in done.stderr


def serve(**variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(CONTAINER / "entrypoint.py"), "serve"],
        env={"PYTHONPATH": str(ROOT), "PATH": "/bin:/usr/bin", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_recipe_runs_as_a_user_without_privileges_and_keeps_data_in_its_volume() -> None:
    recipe = (CONTAINER / "Containerfile").read_text()
    assert "USER 10001" in recipe
    assert f"VOLUME {entrypoint.DATA_DIR}" in recipe
