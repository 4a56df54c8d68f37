"""The page that compares the command line: its commands parse, and it names all of them and each script of Kafka."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from appliance.cli.program import program
from tests.cli.test_every_command import ALL

PAGE = Path(__file__).parents[2] / "docs" / "command-line-compared.md"
TEXT = PAGE.read_text(encoding="utf-8")
CODE = re.compile(r"`([^`]+)`")
COMMANDS = list(dict.fromkeys(code for code in CODE.findall(TEXT) if code.startswith("appliance ")))
FILES = {"letter.json", "lines.txt", "kcat.conf", "rows.parquet", "token.txt", "appliance.toml"}
DIRECTORIES = {"data", "backup", "kafka-logs"}

KAFKAS_SCRIPTS = [
    "connect-distributed",
    "connect-mirror-maker",
    "connect-plugin-path",
    "connect-standalone",
    "kafka-acls",
    "kafka-broker-api-versions",
    "kafka-client-metrics",
    "kafka-cluster",
    "kafka-configs",
    "kafka-console-consumer",
    "kafka-console-producer",
    "kafka-console-share-consumer",
    "kafka-consumer-groups",
    "kafka-consumer-perf-test",
    "kafka-delegation-tokens",
    "kafka-delete-records",
    "kafka-dump-log",
    "kafka-e2e-latency",
    "kafka-features",
    "kafka-get-offsets",
    "kafka-groups",
    "kafka-jmx",
    "kafka-leader-election",
    "kafka-log-dirs",
    "kafka-metadata-quorum",
    "kafka-metadata-shell",
    "kafka-producer-perf-test",
    "kafka-reassign-partitions",
    "kafka-replica-verification",
    "kafka-run-class",
    "kafka-server-start",
    "kafka-server-stop",
    "kafka-share-consumer-perf-test",
    "kafka-share-groups",
    "kafka-storage",
    "kafka-streams-application-reset",
    "kafka-streams-groups",
    "kafka-topics",
    "kafka-transactions",
    "kafka-verifiable-consumer",
    "kafka-verifiable-producer",
    "kafka-verifiable-share-consumer",
    "trogdor",
]
"""`bin/` of Apache Kafka 4.3."""


def parsed(arguments: list[str]) -> click.Context:
    """Parse a command line without running it. Raises click.ClickException where no command takes these arguments."""
    command: click.Command = program
    context = click.Context(program, info_name="appliance")
    rest = arguments
    while isinstance(command, click.Group):  # no group of commands has flags
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command = found
        context = click.Context(found, info_name=name, parent=context)
    assert context.parent is not None
    return command.make_context(context.info_name, rest, parent=context.parent)


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that the page names."""
    for name in FILES:
        (tmp_path / name).touch()
    for name in DIRECTORIES:
        (tmp_path / name).mkdir()
    segments = tmp_path / "data" / "slot-0" / "orders-0"
    segments.mkdir(parents=True)
    for ending in ("log", "index"):
        (segments / f"{0:020}.{ending}").touch()
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("line", COMMANDS)
def test_command_of_the_page_exists_and_takes_its_arguments(line: str) -> None:
    assert parsed(shlex.split(line.replace("\\|", "|"))[1:]).command.callback is not None


def test_page_leaves_out_none_of_our_commands() -> None:
    named = {re.sub(r"^appliance ", "", line) for line in COMMANDS}
    missing = [name for name in ALL if not any(f"{line} ".startswith(f"{name} ") for line in named)]
    assert missing == []


def test_page_leaves_out_none_of_kafkas_scripts() -> None:
    assert [name for name in KAFKAS_SCRIPTS if f"`{name}`" not in TEXT and f"`{name} " not in TEXT] == []


def test_every_row_has_an_answer() -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith("|") and not line.startswith("|---")]
    answers = [row.rstrip("|").rsplit(" | ", 1)[-1] for row in rows]
    empty = [
        row
        for row, answer in zip(rows, answers, strict=True)
        if "`appliance " not in answer and "**no**" not in answer and "not necessary" not in answer
    ]
    heads = [row for row in empty if row in {"| script | task | here |", "| kcat | here |", "| rpk | here |"}]
    general = [
        row for row in empty if row.startswith(("| | |", "| broker", "| TLS", "| programs", "| exit codes"))
    ]
    assert sorted(empty) == sorted([*heads, *general, "| task | command |"])


def test_wrong_flag_on_the_page_would_be_found() -> None:
    with pytest.raises(click.ClickException):
        parsed(["topics", "list", "--no-such-flag"])
    with pytest.raises(click.ClickException):
        parsed(["topics", "no-such-command"])
