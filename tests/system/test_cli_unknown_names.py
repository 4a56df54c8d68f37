"""What the command line says of names that do not exist: the reason on standard error, and exit code 1."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.command import Outcome, appliance
from tests.support.broker import Broker
from tests.support.judge import running_broker
from tests.support.wire import free_ports


class Run:
    """Commands, and the broker that they ask."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def __call__(self, *arguments: object, given: bytes = b"") -> Outcome:
        return appliance(*arguments, given=given, more={"APPLIANCE_BOOTSTRAP": self.broker.address})

    def refused(self, *arguments: object) -> str:
        """What standard error says of a command that must fail and print nothing."""
        outcome = self(*arguments)
        assert (outcome.code, outcome.text) == (1, ""), outcome.errors
        return outcome.errors


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    with running_broker(tmp_path_factory.mktemp("names") / "data") as broker:
        run = Run(broker)
        run("topics", "create", "orders", "-p", 2).succeeded()
        yield run


def test_log_directories_of_an_unknown_topic(run: Run) -> None:
    assert "there is no topic nope" in run.refused("log-dirs", "describe", "--topic", "nope")
    both = run.refused("log-dirs", "describe", "--topic", "orders", "--topic", "nope", "--json")
    assert "there is no topic nope\n" in both
    (found,) = json.loads(run("log-dirs", "describe", "--topic", "orders", "--json").succeeded().text)
    assert [each["partition"] for each in found["partitions"]] == [0, 1]


def test_records_of_an_unknown_topic_or_partition(run: Run) -> None:
    told = run.refused("topics", "delete-records", "nope", "--before", "0=end", "--yes")
    assert told == "appliance: nope-0: there is no topic nope\n"
    some = run(
        "topics", "delete-records", "orders", "--before", "7=end", "--before", "1=end", "--yes", "--json"
    )
    assert some.code == 1
    assert {each["partition"]: (each["result"], each["error"]) for each in json.loads(some.text)} == {
        1: ("deleted", None),
        7: ("refused", "topic orders has no such partition"),
    }


@pytest.mark.parametrize(
    ("target", "kind", "known"),
    [
        (("--topic", "orders"), "topic", "retention.ms"),
        (("--broker", 0), "broker", "log.retention.ms"),
        (("--all-brokers",), "broker", "log.retention.ms"),
        (("--group", "billing"), "group", "consumer.session.timeout.ms"),
    ],
)
def test_an_unknown_setting_is_not_unset(run: Run, target: tuple[object, ...], kind: str, known: str) -> None:
    told = run.refused("configs", "unset", known, "nope", *target)
    assert told == f"appliance: nope: no such {kind} setting; nothing was changed\n"
    run("configs", "unset", known, *target).succeeded()


def test_an_unknown_user(run: Run) -> None:
    for command in (("describe", "nope"), ("delete", "nope", "--yes")):
        assert run.refused("users", *command) == "appliance: there is no user nope\n"


def test_groups_in_an_unknown_state(run: Run) -> None:
    refused = run("groups", "list", "--state", "Steady")
    assert refused.code == 2
    assert "'Steady' is not one of empty, stable" in refused.errors
    for state in ("PreparingRebalance", "preparing-rebalancing", "Empty"):
        assert run("groups", "list", "--state", state).succeeded().errors == "no groups\n"


def test_the_broker_on_the_command_line_is_asked_and_not_that_of_the_environment(run: Run) -> None:
    nobody = f"127.0.0.1:{free_ports(1)}"
    for name in ("bootstrap.servers", "metadata.broker.list"):
        outcome = run("produce", "orders", "-X", f"{name}={nobody}", given=b"lost\n")
        assert outcome.code == 1
        assert f"no broker answers at {nobody}" in outcome.errors
    assert run("consume", "orders").succeeded().output == b""


def test_an_appliance_that_does_not_run_is_not_watched_elsewhere(run: Run, tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nope"):
        told = run.refused("top", "--once", "--interval", 0.3, "--data-dir", directory)
        assert told.startswith(f"appliance: no appliance runs on {directory}; give --data-dir of a running")


def test_tls_to_a_broker_in_plain_text_fails_at_once_and_says_why(run: Run) -> None:
    began = time.monotonic()
    for command in (("topics", "list"), ("consume", "orders"), ("cluster", "info")):
        told = run.refused(*command, "-X", "security.protocol=SSL")
        assert told.startswith(f"appliance: {run.broker.address}: TLS failed: ")
    assert time.monotonic() - began < 20, "librdkafka alone takes 30 s for the first one"
