"""Prometheus itself as judge: promtool finds nothing to complain of, and a server scrapes and evaluates everything."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from appliance.metrics import dashboard
from tests.support.broker import Appliance
from tests.support.promql import rules
from tests.support.scrape import get
from tests.support.wire import free_ports
from tests.system.raw import wait_until

REPOSITORY: Final = Path(__file__).parents[2]
HOME: Final = REPOSITORY / ".cache" / "prometheus"
ALERTS: Final = dashboard.SHARE / "alerts.yml"
PATIENCE_S: Final = 60
CONFIGURATION: Final = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{alerts}"]
scrape_configs:
  - job_name: appliance
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
  - job_name: kafka
    metrics_path: /metrics/kafka
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


@pytest.fixture(scope="module")
def promtool() -> Path:
    subprocess.run([REPOSITORY / "scripts" / "install-prometheus.sh"], check=True, capture_output=True)
    return HOME / "promtool"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Appliance, int]]:
    port = free_ports(1)
    broker = Appliance(
        tmp_path_factory.mktemp("judged") / "data",
        settings={
            "metrics.listener": f"127.0.0.1:{port}",
            "metrics.partitions": True,
            "audit.log.events": ["changes"],
        },
    )
    broker.start()
    try:
        create = ("topics", "create", "t", "--bootstrap", broker.address)
        broker.run(*create, timeout_s=PATIENCE_S).check_returncode()
        yield broker, port
        broker.stop()
    finally:
        broker.kill()


@pytest.mark.parametrize("path", ["/metrics", "/metrics/kafka"])
def test_promtool_accepts_the_page(broker: tuple[Appliance, int], promtool: Path, path: str) -> None:
    _, _, page = get(broker[1], path)
    said = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, check=False)
    complaints = said.stderr.decode().splitlines()
    if path == "/metrics/kafka":
        # Names that others have chosen: units that are abbreviated, gauges that are called counts.
        complaints = [line for line in complaints if "error" in line.lower()]
    assert complaints == []


def test_promtool_accepts_the_alert_rules(promtool: Path) -> None:
    said = subprocess.run([promtool, "check", "rules", ALERTS], capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


class Server:
    """A Prometheus server that scrapes one broker."""

    def __init__(self, directory: Path, *, port: int, metrics_port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1"
        (directory / "prometheus.yml").write_text(CONFIGURATION.format(alerts=ALERTS, port=metrics_port))
        self._output = (directory / "output").open("wb")
        self.process = subprocess.Popen(
            [
                HOME / "prometheus",
                f"--config.file={directory}/prometheus.yml",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def ask(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of its API."""
        url = f"{self._url}/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def query(self, expression: str) -> list[Any]:
        result = self.ask("query", query=expression)["result"]
        assert isinstance(result, list)
        return result

    def scraped(self) -> bool:
        """Whether both pages were scraped without an error, a few times."""
        try:
            return len(self.query("count_over_time(up[1m]) > 3 and up == 1")) == 2
        except OSError:
            return False

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)
        self._output.close()


@pytest.fixture(scope="module")
def server(
    broker: tuple[Appliance, int], promtool: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    assert promtool.exists()
    server = Server(tmp_path_factory.mktemp("prometheus"), port=free_ports(1), metrics_port=broker[1])
    try:
        wait_until(server.scraped, "Prometheus has scraped both pages", timeout_s=PATIENCE_S)
        yield server
    finally:
        server.close()


def test_a_server_evaluates_every_panel_and_every_alert(server: Server) -> None:
    for panel in dashboard.dashboard()["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "10s")
            server.query(expression)
            if panel["type"] == "stat":
                assert server.query(expression), f"{panel['title']} shows nothing"
    for rule in rules(ALERTS):
        server.query(rule["expr"])
    found = server.ask("rules")["groups"][0]["rules"]
    assert {rule["name"] for rule in found} == {rule["alert"] for rule in rules(ALERTS)}
    assert [rule for rule in found if rule.get("lastError")] == []


def test_no_alert_fires_at_a_healthy_broker(server: Server) -> None:
    time.sleep(1)
    firing = [alert for alert in server.ask("alerts")["alerts"] if alert["state"] == "firing"]
    assert firing == []


def test_queries_of_kafkas_dashboards_answer(server: Server) -> None:
    for query in (
        "sum(kafka_controller_kafkacontroller_activecontrollercount) == 1",
        "sum(kafka_server_replicamanager_leadercount)",
        "sum(kafka_server_replicamanager_underreplicatedpartitions) == 0",
        "sum(kafka_controller_kafkacontroller_offlinepartitionscount) == 0",
        'sum(kafka_log_log_size{topic="t"}) by (topic)',
        "sum(kafka_cluster_partition_underminisr) == 0",
        'sum(irate(kafka_server_brokertopicmetrics_messagesin_total{topic!=""}[10s]))',
        "sum(irate(kafka_server_brokertopicmetrics_bytesin_total[10s])) by (topic)",
        "kafka_network_socketserver_networkprocessoravgidle_percent * 100",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent * 100",
        "sum(kafka_server_socket_server_metrics_connection_count)",
        'kafka_topic_partitions{topic="t"}',
        'sum(kafka_topic_partition_current_offset{topic="t"}) by (topic)',
        'kafka_topic_partition_leader{topic="t", partition="0"}',
        "kafka_brokers",
    ):
        assert server.query(query), query
