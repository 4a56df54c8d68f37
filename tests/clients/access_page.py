"""The examples of docs/access.md, set up as the page says, and what real clients of them have in common."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Consumer, Producer

from tests.support.broker import Appliance
from tests.support.judge import QUICK_GROUPS
from tests.support.wire import PATIENCE_S

PAGE: Final = Path(__file__).parents[2] / "docs" / "access.md"


def example(name: str) -> str:
    """The code block of the page behind its mark."""
    found = re.search(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None, f"{PAGE} has no example {name}"
    return found[1]


def settings_of(text: str) -> dict[str, Any]:
    """The options of an example in TOML, one on each line."""
    lines = (line.split(" = ", 1) for line in text.splitlines())
    return {name.strip('"'): json.loads(value) for name, value in lines}


class PageScene:
    """An appliance with the page's certificates, and an example of its options with ports and paths of the test.

    `more_listeners` have no TLS; their ports are the free ones behind the two of the example.
    """

    def __init__(
        self, directory: Path, port: int, options: str, *, more_listeners: tuple[str, ...] = ()
    ) -> None:
        self.directory = directory
        self.port = port
        self.sh(example("certificates"))
        text = example(options).replace("/etc/appliance", str(directory))
        settings = settings_of(text.replace("9192", str(port + 1)).replace("9092", str(port)))
        settings["listeners"] += more_listeners
        self.settings = settings
        self.broker = Appliance(directory / "data", port=port, settings={**QUICK_GROUPS, **settings})

    def sh(self, script: str) -> str:
        program = f"{sys.executable} -m appliance"
        done = subprocess.run(
            ["bash", "-euc", script.replace("appliance users", f"{program} users")],
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def path(self, name: str) -> str:
        return str(self.directory / name)


def play(options: dict[str, Any], topic: str, values: list[bytes], **of_producer: Any) -> None:
    """Produce and consume with confluent-kafka: every record is acknowledged, and comes in order."""
    producer = Producer({**options, **of_producer})
    failures: list[object] = []
    for value in values:
        producer.produce(topic, value, on_delivery=lambda error, _: failures.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0
    assert failures == [None] * len(values)
    consumer = Consumer({**options, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    got: list[bytes | None] = []
    while len(got) < len(values):
        found = consumer.consume(len(values), PATIENCE_S)
        assert found, f"only {len(got)} came"
        got += [message.value() for message in found]
    consumer.close()
    assert got == values
