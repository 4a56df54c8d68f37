"""Apache Kafka from Maven artifacts: KRaft, its shipped defaults, its start script's JVM flags."""

import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks import proc
from benchmarks.brokers import certificate, together
from benchmarks.brokers.broker import STOP_PATIENCE_SECONDS, SpawnedBroker, await_leaders, free_port
from benchmarks.brokers.setting import AS_SHIPPED, AUTHORIZER, SECURITY_PROTOCOLS, Setting
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
    """`kafka.Kafka`, broker and controller in one JVM. Formatting is not part of its start time.

    With several slots: so many JVMs, the first of which is the controller as well.
    """

    name = "kafka"
    wants_warm_up = True

    def __init__(self, data_dir: Path, setting: Setting = AS_SHIPPED) -> None:
        super().__init__(data_dir, setting)
        # Several would fence each other afterwards: leaders move, and in-sync replicas are fewer.
        self.can_be_halted = setting.slots == 1
        self._libs = libs()
        self._doors: dict[str, str] = {}
        self.format_seconds = 0.0

    def start(self) -> None:
        self.ready_word = "Kafka Server started" if self.setting.slots == 1 else "ready"
        controller = free_port()
        ports = [free_port() for _ in range(self.setting.slots)]
        self.address = f"127.0.0.1:{ports[0]}"
        is_new = not self._properties(0).exists()
        (self.data_dir / "log4j2.properties").write_text(LOG_CONFIGURATION)
        for slot, port in enumerate(ports):
            self._properties(slot).write_text(self._settings(slot, port, controller))
        began = time.monotonic()
        if is_new:
            storage = self._java("-Xmx256m", "kafka.tools.StorageTool")
            identity = _identity()
            for slot in range(self.setting.slots):
                voters = "--no-initial-controllers" if slot else "--standalone"
                _output([*storage, "format", voters, "-t", identity, "-c", str(self._properties(slot))])
        self.format_seconds = time.monotonic() - began
        super().start()

    def await_leaders(self) -> None:
        # Its controller may find that its broker has not been heard of for longer than a session lasts.
        await_leaders(self.address)

    def command(self) -> list[str]:
        commands = [
            self._java(*JVM, f"-Dkafka.logs.dir={self.data_dir}", "kafka.Kafka", str(self._properties(slot)))
            for slot in range(self.setting.slots)
        ]
        if len(commands) == 1:
            return commands[0]
        file = self.data_dir / "commands.json"
        file.write_text(json.dumps(commands))
        return [sys.executable, str(Path(together.__file__)), "Kafka Server started", str(file)]

    def fixture_seconds(self, count: int) -> list[float]:
        found = []
        for number in range(count):
            place = self.data_dir / f"fixture-{number}"
            place.mkdir()
            broker = Kafka(place)
            with broker:  # the seconds begin with the format; the stop is not counted
                if broker.first_ack_seconds is None:
                    raise Void("no record was acknowledged")
                found.append(broker.format_seconds + broker.first_ack_seconds)
            shutil.rmtree(place)
        return found

    def slot_pids(self, slot: int) -> list[int]:
        wanted = str(self._properties(slot)).encode()
        found = []
        for pid in self.pids():
            with suppress(OSError):  # it has just ended
                if wanted in (proc.PROC / str(pid) / "cmdline").read_bytes():
                    found.append(pid)
        return found

    def stop_slot(self, slot: int) -> None:
        ending = self.slot_pids(slot)
        for pid in ending:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_PATIENCE_SECONDS
        while set(ending) & set(self.slot_pids(slot)):
            if time.monotonic() > deadline:
                raise Void(f"broker {slot} does not stop")
            time.sleep(0.1)

    def start_slot(self, slot: int) -> None:
        assert self.process is not None, "not started"
        self.process.send_signal(signal.SIGHUP)

    def version(self) -> str:
        for jar in self._libs.glob("kafka_2.13-*.jar"):
            return jar.stem.removeprefix("kafka_2.13-")
        return "unknown"

    def _properties(self, slot: int) -> Path:
        return self.data_dir / f"server-{slot}.properties"

    def _settings(self, slot: int, port: int, controller: int) -> str:
        slots, is_controller = self.setting.slots, slot == 0
        listeners = f"PLAINTEXT://127.0.0.1:{port}"
        settings: dict[str, object] = {
            "process.roles": "broker,controller" if is_controller else "broker",
            "node.id": slot + 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}" if is_controller else listeners,
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": self.data_dir / f"data-{slot}",
            "default.replication.factor": slots,
            "offsets.topic.replication.factor": slots,
            "transaction.state.log.replication.factor": slots,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
        }
        if self.setting.secure:
            settings |= self._doors_settings(listeners, str(settings["listeners"]))
        if self.setting.fsync:
            settings["log.flush.interval.messages"] = 1
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    def _doors_settings(self, advertised: str, listeners: str) -> dict[str, object]:
        """What adds the listeners with TLS and SASL."""
        self._ca, both = certificate.make(self.data_dir / "tls")
        self._doors = {name: f"127.0.0.1:{free_port()}" for name in SECURITY_PROTOCOLS}
        added = ",".join(f"{SECURITY_PROTOCOLS[name]}://{at}" for name, at in self._doors.items())
        protocols = ",".join(f"{name}:{name}" for name in ("PLAINTEXT", *SECURITY_PROTOCOLS.values()))
        user, password = certificate.USER, certificate.PASSWORD
        login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
        jaas = f'{login} username="{user}" password="{password}" user_{user}="{password}";'
        return {
            "listeners": f"{listeners},{added}",
            "advertised.listeners": f"{advertised},{added}",
            "listener.security.protocol.map": f"CONTROLLER:PLAINTEXT,{protocols}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": both,
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
            "listener.name.sasl_ssl.plain.sasl.jaas.config": jaas,
            **AUTHORIZER,
        }

    def doors(self) -> dict[str, str]:
        return {**self._doors, "ca": str(self._ca)} if self.setting.secure else {}

    def _java(self, *words: str) -> list[str]:
        configuration = f"-Dlog4j2.configurationFile={self.data_dir / 'log4j2.properties'}"
        return ["java", configuration, "-cp", f"{self._libs}/*", *words]


def _identity() -> str:
    """An id of a cluster, as `random-uuid` of kafka.tools.StorageTool makes it in a JVM of its own."""
    return "A" + base64.urlsafe_b64encode(os.urandom(16)).decode()[1:22]


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
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Void(f"Apache Kafka cannot be started: {error}") from error
    if done.returncode:
        raise Void(f"{words[-1]}: {done.stderr.strip()[-300:]}")
    return done.stdout
