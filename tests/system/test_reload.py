"""SIGHUP, which `systemctl reload` sends: the configuration file counts again without a restart."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.command import appliance
from tests.support.broker import Appliance
from tests.system.raw import create_topic, generations, wait_until


class Reloaded:
    """A broker, and its configuration file."""

    def __init__(self, broker: Appliance) -> None:
        self.broker = broker
        self._path = broker.data_dir.with_name(f"{broker.data_dir.name}.toml")
        self._kept = [
            line for line in self._path.read_text().splitlines(keepends=True) if "log.retention" not in line
        ]

    def reload(self, **settings: object) -> str:
        """Changes the file, sends the signal, and returns the line that the log says then. `_` stands for `.`."""
        lines = [f'"{name.replace("_", ".")}" = {json.dumps(value)}\n' for name, value in settings.items()]
        self._path.write_text("".join([*self._kept, *lines]))
        before = len(self._lines())
        os.kill(self.broker.pid, signal.SIGHUP)
        wait_until(lambda: len(self._lines()) > before, "the reload is in the log")
        return self._lines()[-1]

    def _lines(self) -> list[str]:
        return [line for line in self.broker.output().splitlines() if "supervisor: configuration" in line]

    def value(self, name: str, *of: str) -> tuple[str, str] | None:
        """The value that a setting has for clients, and its source; None: it is the default."""
        rows: list[dict[str, Any]] = json.loads(
            appliance("configs", "describe", *of, "--json", "-b", self.broker.address).succeeded().text
        )
        return next(((each["value"], each["source"]) for each in rows if each["name"] == name), None)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reloaded]:
    at = tmp_path_factory.mktemp("reload")
    started = Appliance(at / "data", settings={"log.retention.ms": 3_600_000}, output_to=at / "log")
    started.start()
    yield Reloaded(started)
    started.stop()


def test_reload_lets_the_file_count_without_a_restart(file: Reloaded) -> None:
    before = generations(file.broker)
    assert create_topic(file.broker.port, "kept") == 0
    assert file.value("retention.ms", "-t", "kept", "--all")[0] == "3600000"  # type: ignore[index]
    said = file.reload(log_retention_ms=7_200_000, num_partitions=5)
    assert "log.retention.ms = 7200000" in said
    assert "restart for num.partitions" in said
    wait_until(lambda: _is(file, "7200000"), "the new value counts")
    found = file.value("log.retention.ms", "--broker", "0")
    assert found is not None
    assert found[0] == "7200000"
    assert generations(file.broker) == before, "no process was restarted"


def test_reloaded_values_outlive_processes_and_yield_to_what_is_set_while_running(file: Reloaded) -> None:
    file.reload(log_retention_ms=7_300_000)
    for role in ("controller", "ioproc", "netproc"):
        file.broker.kill_role(role)
    wait_until(file.broker.is_whole, "all processes are back")
    wait_until(lambda: _is(file, "7300000"), "the value of the reload counts after the restart of processes")
    appliance(
        "configs", "set", "--all-brokers", "log.retention.ms=1000000", "-b", file.broker.address
    ).succeeded()
    assert _is(file, "1000000")
    file.reload(log_retention_ms=7_400_000)
    assert _is(file, "1000000"), "what was set while running comes first"
    appliance("configs", "unset", "--all-brokers", "log.retention.ms", "-b", file.broker.address).succeeded()
    wait_until(lambda: _is(file, "7400000"), "the value of the file counts again")
    assert "log.retention.ms = default" in file.reload()
    wait_until(lambda: _is(file, "604800000"), "a line that is gone leaves the default")


def test_level_of_the_file_counts_after_a_reload_for_every_process_and_its_next_life(file: Reloaded) -> None:
    def lines_of_debug() -> int:
        file.value("log.level", "--broker", "0")  # which opens a connection
        return len(re.findall(r"Z DEBUG netproc 0: connection", file.broker.output()))

    assert not lines_of_debug()
    assert "log.level = DEBUG" in file.reload(log_level="DEBUG")
    wait_until(lambda: "log levels: root DEBUG" in file.broker.output(), "the controller says so")
    wait_until(lambda: lines_of_debug() > 0, "the network process logs connections")
    file.broker.kill_role("netproc")
    wait_until(file.broker.is_whole, "it is back")
    before = lines_of_debug()
    wait_until(lambda: lines_of_debug() > before, "its next life does, too")
    assert file.value("log.level", "--broker", "0") == ("DEBUG", "file or command line")
    assert "log.level = default" in file.reload()
    wait_until(
        lambda: "log levels: root INFO" in file.broker.output(), "without the line, the default counts"
    )


def test_file_that_cannot_be_used_changes_nothing(file: Reloaded) -> None:
    file.reload(log_retention_ms=7_500_000)
    said = file.reload(log_retention_ms="soon")
    assert "nothing was changed" in said
    assert "log.retention.ms" in said
    wait_until(lambda: _is(file, "7500000"), "the last good value counts")


def _is(file: Reloaded, value: str) -> bool:
    found = file.value("retention.ms", "-t", "kept", "--all")
    return found is not None and found[0] == value
