"""Apache Kafka's Java clients behind the common vocabulary; the driver is tests/clients/java/Driver.java."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar, Final

from tests.clients.adapters.json_lines import JsonLinesClient
from tests.support.apache_kafka import LIBS, REPOSITORY, install, java

SOURCE: Final = Path(__file__).resolve().parents[1] / "java" / "Driver.java"
CLASSES: Final = REPOSITORY / ".cache" / "java-driver"


class JavaClient(JsonLinesClient):
    """Producer, consumer and admin of kafka-clients, the version of the judge."""

    name: ClassVar[str] = "java"

    def offset_of_max_timestamp(self, topic: str, partition: int) -> int:
        found: int = self._ask("offsetOfMaxTimestamp", topic=topic, partition=partition)
        return found

    @staticmethod
    def command() -> Sequence[str]:
        return [*java("-Xmx512m", "-XX:TieredStopAtLevel=1", classes=_compiled()), "Driver"]


@cache
def _compiled() -> Path:
    """Directory of the compiled driver, one for each text of its source."""
    install()
    classes = CLASSES / hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    if not (classes / "Driver.class").exists():
        command = ["javac", "-d", str(classes), "-cp", f"{LIBS}/*", str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return classes
