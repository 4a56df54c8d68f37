"""Apache Kafka from Maven artifacts: one KRaft node, its shipped defaults, its start script's JVM flags."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.brokers.broker import SpawnedBroker, free_port
from benchmarks.brokers.setting import AS_SHIPPED, Setting
from benchmarks.places import KAFKA, ROOT
from benchmarks.void import Void

JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
LOG_CONFIGURATION = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %p %m (%c{1})%n
rootLogger.level = info
rootLogger.appenderRef.out.ref = out
"""


class Kafka(SpawnedBroker):
    """`kafka.Kafka`, broker and controller in one JVM. Formatting is not part of its start time."""

    name = "kafka"
    wants_warm_up = True
    ready_word = "Kafka Server started"

    def __init__(self, data_dir: Path, setting: Setting = AS_SHIPPED) -> None:
        super().__init__(data_dir, setting)
        self._libs = libs()

    def start(self) -> None:
        port, controller = free_port(), free_port()
        self.address = f"127.0.0.1:{port}"
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.data_dir / "data",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        if self.setting.fsync:
            settings["log.flush.interval.messages"] = 1
        is_new = not self._properties.exists()
        self._properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        (self.data_dir / "log4j2.properties").write_text(LOG_CONFIGURATION)
        if is_new:
            storage = self._java("-Xmx256m", "kafka.tools.StorageTool")
            identity = _output([*storage, "random-uuid"]).split()[-1]
            _output([*storage, "format", "--standalone", "-t", identity, "-c", str(self._properties)])
        super().start()

    def command(self) -> list[str]:
        return self._java(*JVM, f"-Dkafka.logs.dir={self.data_dir}", "kafka.Kafka", str(self._properties))

    def version(self) -> str:
        for jar in self._libs.glob("kafka_2.13-*.jar"):
            return jar.stem.removeprefix("kafka_2.13-")
        return "unknown"

    @property
    def _properties(self) -> Path:
        return self.data_dir / "server.properties"

    def _java(self, *words: str) -> list[str]:
        configuration = f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}"
        return ["java", configuration, "-cp", f"{self._libs}/*", *words]


def libs() -> Path:
    """Where its jars are: KAFKA_LIBS, or what the install script lays down, at once when it is there. Raises Void."""
    if given := os.environ.get("KAFKA_LIBS"):
        found = Path(given)
        if not any(found.glob("kafka_2.13-*.jar")):
            raise Void("Apache Kafka is missing: KAFKA_LIBS holds no kafka_2.13-*.jar")
        return found
    script = ROOT / "scripts" / "install-kafka.sh"
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Void(f"Apache Kafka is missing, it could not be installed: {done.stderr.strip()[-300:]}")
    return KAFKA / "libs"


def _output(words: Sequence[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        raise Void(f"{words[-1]}: {done.stderr.strip()[-300:]}")
    return done.stdout
