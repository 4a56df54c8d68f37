"""Prometheus itself as judge: promtool finds nothing to complain of, and a server scrapes and evaluates everything."""

from __future__ import annotations

import json
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer

from appliance.metrics import dashboard
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.record import Record, encode_batch
from tests.support.apache_kafka import tool
from tests.support.broker import Appliance
from tests.support.otlp_collector import OtlpCollector
from tests.support.promql import rules
from tests.support.scrape import get
from tests.support.wire import WireSocket, free_ports
from tests.system.raw import create_topic, produce, wait_until
from tests.system.test_client_telemetry import CONFIGS

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
    static_configs:
      - targets: ["127.0.0.1:{port}"]
        labels: {{namespace: "n", strimzi_io_cluster: "c", kubernetes_pod_name: "c-kafka-0"}}
"""
LATENCY: Final = "org.apache.kafka.producer.request.latency"

# What public dashboards ask, with their variables filled in: the Kafka dashboard of Strimzi, with the names of
# jmx_exporter, and Grafana's dashboard 7589, with those of kafka_exporter.
OF: Final = 'namespace="n",strimzi_io_cluster="c"'
OF_TOPICS: Final = f'{OF},topic=~".+",topic!="",kubernetes_pod_name=~"c-kafka-.*"'
KAFKAS_QUERIES: Final = (
    f"count(kafka_server_replicamanager_leadercount{{{OF}}})",
    f"sum(kafka_controller_kafkacontroller_activecontrollercount{{{OF}}}) == 1",
    f"sum(irate(kafka_controller_controllerstats_uncleanleaderelections_total{{{OF}}}[10s])) == 0",
    f"sum(kafka_server_replicamanager_partitioncount{{{OF}}})",
    f"sum(kafka_server_replicamanager_underreplicatedpartitions{{{OF}}}) == 0",
    f"sum(kafka_cluster_partition_atminisr{{{OF}}})",
    f"sum(kafka_cluster_partition_underminisr{{{OF}}}) == 0",
    f"sum(kafka_controller_kafkacontroller_offlinepartitionscount{{{OF}}}) == 0",
    *(
        f"sum(irate(kafka_server_brokertopicmetrics_{name}_total{{{OF_TOPICS}}}[10s])) > 0"
        for name in ("bytesin", "bytesout", "messagesin", "totalproducerequests", "totalfetchrequests")
    ),
    *(
        f"sum(irate(kafka_server_brokertopicmetrics_{name}_total{{{OF_TOPICS}}}[10s]))"
        for name in ("failedproducerequests", "failedfetchrequests")
    ),
    f"sum(kafka_network_socketserver_networkprocessoravgidle_percent{{{OF}}}*100) by (kubernetes_pod_name) > 0",
    f"sum(kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent{{{OF}}}*100) by (namespace) > 0",
    f"sum(kafka_server_socket_server_metrics_connection_count{{{OF}}}) by (kubernetes_pod_name) > 0",
    f'sum(kafka_log_log_size{{{OF},topic="t"}}) by (topic, partition) > 0',
    f"sum(irate(kafka_server_kafkaserver_linux_disk_write_bytes{{{OF}}}[60s])) by (kubernetes_pod_name)",
    f"sum(irate(kafka_server_kafkaserver_linux_disk_read_bytes{{{OF}}}[60s])) by (kubernetes_pod_name)",
    f"sum(rate(process_cpu_seconds_total{{{OF}}}[10s])) by (kubernetes_pod_name)",
    f"sum(process_open_fds{{{OF}}}) by (kubernetes_pod_name) > 0",
    f"sum(kafka_server_replicamanager_leadercount{{{OF}}}) by (kubernetes_pod_name)",
    'sum(kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.99"})',
    "sum(rate(kafka_network_requestmetrics_requests_total[10s])) by (request)",
    "sum(rate(kafka_network_requestmetrics_errors_total[60s])) by (request, error)",
    "sum(rate(kafka_server_replicamanager_isrshrinks_total[10s]))",
    'kafka_log_logflushstats_logflushrateandtimems{quantile=~"0.99"}',
    'sum(rate(kafka_topic_partition_current_offset{topic!~"__consumer_offsets|__transaction_state"}[10s])) by (topic)',
    'sum(delta(kafka_topic_partition_current_offset{topic=~"t"}[60s])/1) by (topic)',
    'sum(kafka_consumergroup_lag{topic=~"t"}) by (consumergroup, topic)',
    'sum(delta(kafka_consumergroup_current_offset{topic=~"t"}[60s])/1) by (consumergroup, topic)',
    'sum by(topic) (kafka_topic_partitions{topic=~"t"})',
    "sum(kafka_topic_partition_in_sync_replica) by (topic)",
    "sum(kafka_topic_partition_under_replicated_partition) == 0",
    'kafka_topic_partition_leader{topic="t", partition="0"}',
    'kafka_topic_partition_oldest_offset{topic="t", partition="0"}',
    "kafka_brokers == 1",
    'sum(kafka_consumergroup_members{consumergroup="g"}) == 1',
)


@pytest.fixture(scope="module")
def promtool() -> Path:
    subprocess.run([REPOSITORY / "scripts" / "install-prometheus.sh"], check=True, capture_output=True)
    return HOME / "promtool"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Appliance, int]]:
    """With every option that has series, and clients that go on while the tests run."""
    port = free_ports(2)
    collector = OtlpCollector()
    broker = Appliance(
        tmp_path_factory.mktemp("judged") / "data",
        settings={
            "metrics.listener": f"127.0.0.1:{port}",
            "metrics.partitions": True,
            "metrics.groups.interval.ms": 1000,
            "metrics.client.telemetry": True,
            "metrics.otlp.endpoint": collector.url,
            "metrics.otlp.interval.ms": 1000,
            "console.listener": f"127.0.0.1:{port + 1}",
            "services.processes": 1,
            "audit.log.events": ["changes"],
        },
    )
    broker.start()
    ended = threading.Event()
    clients = threading.Thread(target=play, args=(broker, ended))
    try:
        subscribed = ("--alter", "--name", "all", "--metrics", LATENCY, "--interval", "1000")
        tool(CONFIGS, "--bootstrap-server", broker.address, *subscribed)
        assert (
            create_topic(broker.port, "t", configs={"delivery.delay.enable": "true", "durability": "fsync"})
            == 0
        )
        clients.start()
        yield broker, port
        ended.set()
        clients.join()
        broker.stop()
    finally:
        ended.set()
        broker.kill()
        collector.close()


def play(broker: Appliance, ended: threading.Event) -> None:
    """Produce and consume in a group that lags, with transactions, delays and refused batches, until the end."""
    options = {"bootstrap.servers": broker.address, "log_level": 0}
    producer = Producer({**options, "client.id": "p", "transactional.id": "x"})
    producer.init_transactions(PATIENCE_S)
    consumer = Consumer(
        {**options, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe(["t"])
    refused = encode_batch([Record(b"v", timestamp_ms=1)])[:-1] + b"?"
    with WireSocket(broker.port) as connection:
        while not ended.is_set():
            producer.begin_transaction()
            for _ in range(4):
                producer.produce("t", b"v" * 100, partition=0)
            producer.produce("t", b"late", partition=0, headers=[("delivery.delay", b"100")])
            producer.commit_transaction(PATIENCE_S)
            if read := consumer.consume(2, 0.2):
                consumer.commit(message=read[-1], asynchronous=False)
            assert produce(connection, "t", refused).error == ErrorCode.CORRUPT_MESSAGE
    consumer.close()


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

    def eventually(self, expression: str) -> None:
        """Return when the query has an answer that is a number."""

        def has_data() -> bool:
            return any(each["value"][1] != "NaN" for each in self.query(expression))

        wait_until(has_data, f"data for {expression}", timeout_s=PATIENCE_S)

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


def test_every_query_of_the_dashboard_has_data(server: Server) -> None:
    for panel in dashboard.dashboard()["panels"]:
        for target in panel.get("targets", ()):
            server.eventually(target["expr"].replace("$__rate_interval", "30s"))


def test_a_server_evaluates_every_alert(server: Server) -> None:
    for rule in rules(ALERTS):
        server.query(rule["expr"])
    found = server.ask("rules")["groups"][0]["rules"]
    assert {rule["name"] for rule in found} == {rule["alert"] for rule in rules(ALERTS)}
    assert [rule for rule in found if rule.get("lastError")] == []


def test_no_alert_fires_at_a_healthy_broker(server: Server) -> None:
    firing = [alert for alert in server.ask("alerts")["alerts"] if alert["state"] == "firing"]
    assert firing == []


@pytest.mark.parametrize("query", KAFKAS_QUERIES)
def test_queries_of_kafkas_dashboards_answer(server: Server, query: str) -> None:
    server.eventually(query)
