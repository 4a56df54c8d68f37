"""KafkaJS behind the common vocabulary; the driver is tests/clients/kafkajs/driver.js."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final

from tests.clients.adapters.json_lines import JsonLinesClient

DRIVER: Final = Path(__file__).resolve().parents[1] / "kafkajs" / "driver.js"


class KafkajsClient(JsonLinesClient):
    """The client that most Node.js programs use."""

    name: ClassVar[str] = "kafkajs"
    groups_headers: ClassVar[bool] = True
    left_out: ClassVar[Mapping[str, str]] = {
        "null-header": "fails before it sends: takes the length of a null",
        "out-of-range-reset": "has a reset policy in its group consumer only",
        "offset-of-max-timestamp": "knows no such look-up",
    }

    @staticmethod
    def command() -> Sequence[str]:
        return ["node", str(DRIVER)]
