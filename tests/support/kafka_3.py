"""Apache Kafka 3.9, the last that keeps its metadata in ZooKeeper: the judge of the tree there, and one to adopt."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

from tests.support.apache_kafka import JVM, ApacheKafka

REPOSITORY: Final = Path(__file__).resolve().parents[2]
LIBS: Final = REPOSITORY / ".cache" / "kafka-3" / "libs"
INSTALL: Final = REPOSITORY / "scripts" / "install-kafka-3.sh"

_LOGGING: Final = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.log.kafka.server.KafkaServer=info",
)


class KafkaOnZooKeeper(ApacheKafka):
    """One broker on a loopback port; its tree is at `connect` (`host:port/chroot`). Nothing is formatted.

    Args:
        node_id: `broker.id`.
    """

    READY: ClassVar = "] started"

    def __init__(
        self, data_dir: Path, connect: str, *, node_id: int = 0, settings: Mapping[str, object] | None = None
    ) -> None:
        super().__init__(data_dir, settings=settings)
        self._connect = connect
        self._node_id = node_id

    def _prepared(self) -> list[str]:
        install()
        return ["java", *JVM, *_LOGGING, "-cp", f"{LIBS}/*", "kafka.Kafka", str(self._write_properties())]

    def _own_settings(self) -> dict[str, object]:
        return {
            "broker.id": self._node_id,
            "zookeeper.connect": self._connect,
            "listeners": f"PLAINTEXT://{self.address}",
        }


@cache
def install() -> None:
    """Fetches it where it is missing."""
    subprocess.run([str(INSTALL)], check=True, capture_output=True, text=True, timeout=600)


def tool(name: str, *arguments: str) -> str:
    """Runs one of its command line tools, `kafka.admin.ConfigCommand` say, and returns what it printed."""
    done = subprocess.run(
        ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", *_LOGGING, "-cp", f"{LIBS}/*", name, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, f"{name} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
