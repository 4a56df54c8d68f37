"""Apache Kafka's Java clients behind the common vocabulary; the driver is tests/clients/java/Driver.java."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.clients.adapters.json_lines import JsonLinesClient
from tests.support.apache_kafka import compiled, java

SOURCE: Final = Path(__file__).resolve().parents[1] / "java" / "Driver.java"


class JavaClient(JsonLinesClient):
    """Producer, consumer and admin of kafka-clients, the version of the judge."""

    name: ClassVar[str] = "java"

    def offset_of_max_timestamp(self, topic: str, partition: int) -> int:
        found: int = self._ask("offsetOfMaxTimestamp", topic=topic, partition=partition)
        return found

    @staticmethod
    def command() -> Sequence[str]:
        return [*java("-Xmx512m", "-XX:TieredStopAtLevel=1", classes=compiled(SOURCE)), "Driver"]
