"""The table of clients and scenarios in README.md, written from the adapters: `python -m tests.clients.matrix`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.clients.adapters.aiokafka import AiokafkaClient
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.java import JavaClient
from tests.clients.adapters.kafka_python import KafkaPythonClient
from tests.clients.adapters.kafkajs import KafkajsClient
from tests.clients.adapters.kcat import KcatClient
from tests.clients.client import Client
from tests.clients.scenarios import SCENARIOS

CLIENTS: Final[tuple[type[Client], ...]] = (
    ConfluentClient,
    KafkaPythonClient,
    AiokafkaClient,
    KcatClient,
    KafkajsClient,
    JavaClient,
)
PAGE: Final = Path(__file__).with_name("README.md")
BEGIN: Final = "<!-- matrix: begin -->\n"
END: Final = "<!-- matrix: end -->\n"


def matrix() -> str:
    """The table and the reasons of its empty cells, as Markdown."""
    lines = ["| scenario | " + " | ".join(kind.name for kind in CLIENTS) + " |"]
    lines.append("|---" * (len(CLIENTS) + 1) + "|")
    for scenario in SCENARIOS:
        cells = ["–" if scenario.name in kind.left_out else "✓" for kind in CLIENTS]
        lines.append(f"| {scenario.name} | " + " | ".join(cells) + " |")
    lines += ["", "Left out, because the library:", ""]
    for kind in CLIENTS:
        for name, reason in kind.left_out.items():
            lines.append(f"- {kind.name}, {name}: {reason}")
    return "\n".join(lines) + "\n"


def page_with_fresh_matrix() -> str:
    """The README with the table between its marks replaced."""
    head, rest = PAGE.read_text().split(BEGIN)
    _, tail = rest.split(END)
    return head + BEGIN + matrix() + END + tail


if __name__ == "__main__":
    PAGE.write_text(page_with_fresh_matrix())
