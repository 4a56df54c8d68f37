"""The tables of clients and scenarios in README.md, written from the adapters: `python -m tests.clients.matrix`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Protocol

from tests.clients.adapters.aiokafka import AiokafkaClient
from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.java import JavaClient
from tests.clients.adapters.kafka_python import KafkaPythonClient
from tests.clients.adapters.kafkajs import KafkajsClient
from tests.clients.adapters.kcat import KcatClient
from tests.clients.adapters.native import NativeClient, NativeShmClient, NativeZeroMqClient
from tests.clients.client import Client
from tests.clients.scenarios import SCENARIOS
from tests.clients.transaction_scenarios import TRANSACTION_SCENARIOS
from tests.clients.transactional.aiokafka import AiokafkaTransactions
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.clients.transactional.drivers import (
    FranzGoTransactions,
    Java3Transactions,
    JavaTransactions,
    KafkajsTransactions,
)
from tests.clients.transactional.kafka_python import KafkaPythonTransactions
from tests.clients.transactional.library import TransactionalLibrary
from tests.clients.transactional.native import (
    NativeShmTransactions,
    NativeTransactions,
    NativeZeroMqTransactions,
)
from tests.support.judge import JUDGE

CLIENTS: Final[tuple[type[Client], ...]] = (
    ConfluentClient,
    KafkaPythonClient,
    AiokafkaClient,
    KcatClient,
    KafkajsClient,
    JavaClient,
    NativeClient,
    NativeZeroMqClient,
    NativeShmClient,
)
ON_LANES: Final = (NativeZeroMqClient, NativeShmClient)
PLAYING: Final = tuple(kind for kind in CLIENTS if JUDGE != "kafka" or kind not in ON_LANES)
"""Those that reach the broker of this run: Apache Kafka has neither ZeroMQ nor shared memory."""
LIBRARIES: Final[tuple[type[TransactionalLibrary], ...]] = (
    ConfluentTransactions,
    KafkaPythonTransactions,
    AiokafkaTransactions,
    KafkajsTransactions,
    JavaTransactions,
    Java3Transactions,
    FranzGoTransactions,
    NativeTransactions,
    NativeZeroMqTransactions,
    NativeShmTransactions,
)
PAGE: Final = Path(__file__).with_name("README.md")
BEGIN: Final = "<!-- {}: begin -->\n"
END: Final = "<!-- {}: end -->\n"


class Player(Protocol):
    """A column of a table."""

    name: ClassVar[str]
    left_out: ClassVar[Mapping[str, str]]


def matrix(players: Sequence[type[Player]], scenarios: Sequence[str]) -> str:
    """The table and the reasons of its empty cells, as Markdown."""
    lines = ["| scenario | " + " | ".join(kind.name for kind in players) + " |"]
    lines.append("|---" * (len(players) + 1) + "|")
    for scenario in scenarios:
        cells = ["–" if scenario in kind.left_out else "✓" for kind in players]
        lines.append(f"| {scenario} | " + " | ".join(cells) + " |")
    lines += ["", "Left out, because the library:", ""]
    for kind in players:
        for name, reason in kind.left_out.items():
            lines.append(f"- {kind.name}, {name}: {reason}")
    return "\n".join(lines) + "\n"


def page_with_fresh_matrix() -> str:
    """The README with the tables between their marks replaced."""
    page = PAGE.read_text()
    tables = {
        "matrix": matrix(CLIENTS, [scenario.name for scenario in SCENARIOS]),
        "transactions": matrix(LIBRARIES, [scenario.name for scenario in TRANSACTION_SCENARIOS]),
    }
    for name, table in tables.items():
        head, rest = page.split(BEGIN.format(name))
        _, tail = rest.split(END.format(name))
        page = head + BEGIN.format(name) + table + END.format(name) + tail
    return page


if __name__ == "__main__":
    PAGE.write_text(page_with_fresh_matrix())
