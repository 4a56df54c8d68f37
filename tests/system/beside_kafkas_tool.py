"""A command of `appliance` for administrators, as a user runs it against a running broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cli.command import Outcome, appliance
from tests.support.broker import Appliance
from tests.support.judge import QUICK_GROUPS


class Command:
    """`appliance NAME ... -b ADDRESS`."""

    def __init__(self, name: str, broker: Appliance) -> None:
        self.broker = broker
        self._name = name

    def run(self, *arguments: object) -> Outcome:
        return appliance(self._name, *arguments, "-b", self.broker.address)

    def told(self, *arguments: object) -> list[dict[str, Any]]:
        """What it prints with `--json`."""
        found: list[dict[str, Any]] = json.loads(self.run(*arguments, "--json").succeeded().output)
        return found

    def refuses(self, arguments: tuple[str, ...], why: str) -> None:
        outcome = self.run(*arguments)
        assert outcome.code in {1, 2}
        assert why in outcome.errors


@contextmanager
def served(name: str, directory: Path, **settings: object) -> Iterator[Command]:
    """The command beside a broker of its own."""
    broker = Appliance(directory / "data", settings={**QUICK_GROUPS, **settings})
    broker.start()
    try:
        yield Command(name, broker)
    finally:
        broker.stop()
