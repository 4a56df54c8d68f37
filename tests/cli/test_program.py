"""The program itself: quick, and clear about what it was asked wrongly."""

from __future__ import annotations

import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from appliance.build import NAMES, build
from appliance.cli.program import COMMANDS
from tests.cli.command import appliance, environment

DESK_PYTHON_S = 0.03
VERSION_S = 0.15
"""Of processor time, on a desk where Python itself starts in DESK_PYTHON_S. A slower machine is so for both."""
CLICKS = 1.5
"""As often as a start of Python that imports click, the one library that help needs."""


def test_version_is_the_distributions_and_names_the_build() -> None:
    said = appliance("--version").succeeded().text
    assert said == f"appliance {version('log-appliance')} ({NAMES[build()]})\n"


def test_version_takes_little_more_processor_time_than_python_with_click() -> None:
    appliance("--version")  # warms the byte code

    def cpu_s(start: Callable[[], object]) -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def python(code: str) -> float:
        return cpu_s(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    version_s, python_s, click_s = [], [], []
    for _ in range(5):
        version_s.append(cpu_s(lambda: appliance("--version").succeeded()))
        python_s.append(python(""))
        click_s.append(python("import click"))
    assert min(version_s) < VERSION_S * max(1.0, min(python_s) / DESK_PYTHON_S)
    assert min(version_s) < CLICKS * min(click_s)


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["serve", "--help"], ["topics", "--help"]])
def test_help_loads_no_heavy_library(arguments: list[str]) -> None:
    told = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "appliance", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    loaded = {line.split("|")[-1].strip() for line in told.stderr.splitlines() if "|" in line}
    assert "click" in loaded
    assert loaded & {"confluent_kafka", "numpy", "rich", "zmq", "msgspec", "kio"} == set()


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_of_the_table_has_help(command: str) -> None:
    told = appliance(command, "--help").succeeded()
    assert told.text.startswith(f"Usage: appliance {command}")


def test_summaries_of_the_table_are_those_of_the_commands() -> None:
    from importlib import import_module

    for name, lazy in COMMANDS.items():
        command = getattr(import_module(lazy.module), lazy.attribute)
        assert (command.name, command.short_help) == (name, lazy.summary)


@pytest.mark.parametrize(
    "arguments",
    [
        ["srve"],
        ["--colour"],
        ["serve", "--set", "port"],
        ["serve", "--set", "=1"],
        ["serve", "--port", "0"],
        ["serve", "--slots", "none"],
        ["serve", "--set", "network.procesess=1"],
        ["serve", "--config", "/nowhere.toml"],
        ["produce"],
        ["produce", "t", "/nowhere"],
        ["produce", "t", "--key", "a", "--key-separator", "b"],
        ["produce", "t", "--compression", "brotli"],
        ["produce", "t", "--header", "x"],
        ["consume", "t", "--from", "yesterday"],
        ["consume", "t", "--print", "colour"],
        ["consume", "t", "--count", "0"],
        ["topics", "create"],
        ["topics", "create", "t", "--config", "x"],
        ["topics", "add-partitions", "t", "0"],
        ["log", "dump"],
    ],
)
def test_wrong_use_ends_with_2_and_no_traceback(arguments: list[str]) -> None:
    told = appliance(*arguments)
    assert told.code == 2, told
    assert told.output == b""
    assert "Traceback" not in told.errors
    assert told.errors.strip(), "something is said"


@pytest.mark.parametrize(
    ("typed", "meant"), [(("topcs", "list"), "topics"), (("topics", "lst"), "list"), (("xyzzy",), None)]
)
def test_wrong_command_names_the_nearest(typed: tuple[str, ...], meant: str | None) -> None:
    refused = appliance(*typed)
    assert refused.code == 2
    last = refused.errors.splitlines()[-1]
    assert last.startswith("Error: No such command")
    assert last.endswith(f"Did you mean {meant!r}?" if meant is not None else "'xyzzy'.")


def test_wrong_option_names_the_nearest_in_one_line() -> None:
    told = appliance("serve", "--set", "network.procesess=1")
    assert told.errors == (
        "appliance: command line: network.procesess: no such option; did you mean network.processes?\n"
    )


def test_wrong_option_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "appliance.toml"
    path.write_text('"log.segment.byte" = 1\n')
    told = appliance("serve", "--config", path)
    assert told.code == 2
    assert told.errors == (
        f"appliance: {path}: log.segment.byte: no such option; did you mean log.segment.bytes?\n"
    )


@pytest.mark.parametrize("command", [["topics", "list"], ["consume", "t"], ["produce", "t"]])
def test_nobody_listening_is_said_at_once_and_in_one_line(command: list[str]) -> None:
    from tests.support.wire import free_ports

    told = appliance(*command, "--bootstrap", f"127.0.0.1:{free_ports()}", timeout_s=60)
    assert told.code == 1
    assert re.fullmatch(
        r"appliance: no broker answers at 127\.0\.0\.1:\d+: Connection refused\n", told.errors
    )


@pytest.mark.parametrize("bootstrap", ["127.0.0.1:x", "127.0.0.1:0", ":9092", "127.0.0.1:70000"])
def test_address_that_is_none_is_refused(bootstrap: str) -> None:
    told = appliance("topics", "list", "--bootstrap", bootstrap)
    assert told.code == 1
    assert "is not HOST:PORT" in told.errors


@pytest.mark.parametrize(
    "arguments",
    [
        ["topics", "create", "t", "--partitions", "100001"],
        ["topics", "create", "t", "--replication-factor", "10001"],
        ["topics", "add-partitions", "t", "100001"],
        ["produce", "t", "--partition", "2147483648"],
    ],
)
def test_a_number_that_the_client_library_cannot_send_is_refused_without_a_traceback(
    arguments: list[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        told = appliance(*arguments, "--bootstrap", f"127.0.0.1:{listener.getsockname()[1]}")
    assert told.code == 2
    assert "Invalid value" in told.errors
    assert "Traceback" not in told.errors


@pytest.mark.parametrize(
    ("alias", "usage"),
    [
        (("topic", "ls"), "Usage: appliance topic list"),
        (("topics", "rm"), "Usage: appliance topics delete"),
        (("group", "list"), "Usage: appliance group list"),
        (("ls",), "Usage: appliance ls"),
    ],
)
def test_names_from_other_tools_are_known(alias: tuple[str, ...], usage: str) -> None:
    assert appliance(*alias, "--help").succeeded().text.startswith(usage)


def test_help_and_version_are_commands_too() -> None:
    assert appliance("version").succeeded().text == appliance("--version").succeeded().text
    assert "topics" in appliance("help").succeeded().text
    assert "--yes" in appliance("help", "topics", "delete").succeeded().text
    assert appliance("help", "nothing").code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_in_the_help_and_prints_a_script(shell: str) -> None:
    assert "completion" in appliance("--help").succeeded().text
    assert "_APPLIANCE_COMPLETE" in appliance("completion", shell).succeeded().text


def test_shell_is_given_the_commands_that_begin_so() -> None:
    more = {"_APPLIANCE_COMPLETE": "bash_complete", "COMP_WORDS": "appliance topics de", "COMP_CWORD": "2"}
    assert appliance(more=more).succeeded().text.split() == [
        "plain,delete",
        "plain,delete-records",
        "plain,describe",
    ]
