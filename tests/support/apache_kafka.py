"""Apache Kafka from Maven artifacts: the judge of the client tests; one KRaft node, shipped defaults."""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, Final
from uuid import uuid4

from tests.support.broker import BrokerFailed, Output, end_with_the_test_runner
from tests.support.wire import answers_api_versions, free_ports

REPOSITORY: Final = Path(__file__).resolve().parents[2]
LIBS: Final = REPOSITORY / ".cache" / "kafka" / "libs"
CLASSES: Final = REPOSITORY / ".cache" / "java-driver"
INSTALL: Final = REPOSITORY / "scripts" / "install-kafka.sh"
ARCHIVE: Final = REPOSITORY / ".cache" / "java-archive" / "kafka.jsa"
START_TIMEOUT_S: Final = 120.0

# kafka-server-start.sh's JVM options, with a heap that leaves room on a small machine. A broker that lives for a minute
# gains nothing from the second compiler, which costs half of its start.
JVM: Final = ("-Xmx768m", "-Xms256m", "-XX:TieredStopAtLevel=1", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
TOOL_JVM: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class ApacheKafka:
    """A broker of Apache Kafka on a loopback port, formatted at its first start.

    Args:
        data_dir: log directory, properties and the broker's own log.
        settings: broker settings over the shipped defaults.
    """

    READY: ClassVar = "Kafka Server started"

    def __init__(self, data_dir: Path, *, settings: Mapping[str, object] | None = None) -> None:
        self.data_dir = data_dir
        self.port = free_ports()
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[str] | None = None
        self._output: Output | None = None

    @property
    def address(self) -> str:
        """`host:port` of the broker."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The JVM's process id."""
        assert self._process is not None, "not started"
        return self._process.pid

    def output(self) -> str:
        """What the broker printed so far."""
        return self._output.text() if self._output else ""

    def start(self) -> None:
        """Formats if needed, starts, and returns when it answers.

        Raises:
            BrokerFailed: it ended, or was not ready in time.
        """
        self._process = subprocess.Popen(
            self._prepared(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )
        self._output = Output(self._process, self.READY)
        deadline = time.monotonic() + START_TIMEOUT_S
        self._output.is_ready.wait(START_TIMEOUT_S)
        if not answers_api_versions(self.port, deadline - time.monotonic()):
            text = self._output.tail()
            self.kill()
            raise BrokerFailed(f"Apache Kafka was not ready in time\n{text}")

    def _prepared(self) -> list[str]:
        """The command line; what it needs is there."""
        install()
        properties = self._write_properties()
        if not (self.data_dir / "log" / "meta.properties").exists():
            arguments = ("format", "--standalone", "-t", _random_uuid(), "-c", str(properties))
            self._run_tool("kafka.tools.StorageTool", *arguments)
        return [*self._java(*JVM, f"-Dkafka.logs.dir={self.data_dir}"), "kafka.Kafka", str(properties)]

    def _java(self, *options: str) -> list[str]:
        return java(*options)

    def _run_tool(self, name: str, *arguments: str) -> None:
        tool(name, *arguments)

    def stop(self) -> None:
        """SIGTERM; does nothing when it is not running."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        if self._output is not None:
            self._output.close()
        self._process = None

    def _own_settings(self) -> dict[str, object]:
        controller_port = free_ports()
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
        }

    def _write_properties(self) -> Path:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        settings = {
            **self._own_settings(),
            "log.dirs": self.data_dir / "log",
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1000,
            **self._settings,
        }
        path = self.data_dir / "server.properties"
        path.write_text("".join(f"{name}={_text(value)}\n" for name, value in settings.items()))
        return path


@cache
def install() -> None:
    """Runs the install script, which returns at once when everything is there."""
    subprocess.run([str(INSTALL)], check=True, capture_output=True, text=True)


def java(*options: str, classes: Path | None = None, more: Path | None = None) -> list[str]:
    """The start of a command line that runs a class of Kafka's jars, or of `classes` besides them; `more` jars.

    Kafka's jars come first, because a JVM uses the archive of their classes only then.
    """
    return command(
        *_archive(), *options, behind=[*([classes] if classes else []), *([more / "*"] if more else [])]
    )


def command(*options: str, behind: Sequence[Path] = ()) -> list[str]:
    """As `java`, from the jars themselves, with more places behind them on the class path."""
    install()
    configuration = Path(__file__).with_name("log4j2.properties")
    path = ":".join(map(str, (LIBS / "*", *behind)))
    return ["java", *options, f"-Dlog4j2.configurationFile={configuration}", "-cp", path]


@cache
def _archive() -> Sequence[str]:
    """The option for the archive of Kafka's classes; makes it where it is missing."""
    subprocess.run([sys.executable, "-m", "tests.support.java_archive"], cwd=REPOSITORY, check=True)
    return [f"-XX:SharedArchiveFile={ARCHIVE}"] if ARCHIVE.exists() else []


def _random_uuid() -> str:
    """A cluster's id as Kafka writes it: never with a dash at its begin, which would look like an option."""
    while (text := urlsafe_b64encode(uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


@cache
def compiled(source: Path, more: Path | None = None) -> Path:
    """Directory of the classes of a Java source over Kafka's jars and `more`, one for each text of that source."""
    install()
    classes = CLASSES / hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    if not (classes / f"{source.stem}.class").exists():
        path = f"{LIBS}/*" if more is None else f"{LIBS}/*:{more}/*"
        command = ["javac", "-d", str(classes), "-cp", path, str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return classes


def tool(name: str, *arguments: str, typed: str | None = None) -> str:
    """Runs one of Kafka's command line tools and returns what it printed; `typed` is its standard input."""
    done = subprocess.run(
        [*java(*TOOL_JVM), name, *arguments],
        input=typed,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{name} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
