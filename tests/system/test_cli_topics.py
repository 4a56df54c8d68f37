"""Deleting topics from the command line, regular expressions, and what `--json` says of each topic."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.cli.command import Outcome, appliance, environment
from tests.support.broker import Broker
from tests.support.judge import running_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running_broker(tmp_path_factory.mktemp("topics") / "data") as started:
        yield started


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid4().hex[:8]}"


class Topics:
    """`appliance topics`, with the broker's address."""

    def __init__(self, broker: Broker) -> None:
        self.address = broker.address

    def __call__(self, *arguments: object) -> Outcome:
        return appliance("topics", *arguments, "-b", self.address)

    def names(self) -> set[str]:
        return {row["topic"] for row in json.loads(self("list", "--all", "--json").succeeded().text)}

    def at_a_terminal(self, *arguments: str, answer: bytes) -> int:
        """The exit code of a command that a person at a terminal answers."""
        ours, theirs = pty.openpty()
        try:
            with subprocess.Popen(
                [sys.executable, "-m", "appliance", "topics", *arguments, "-b", self.address],
                stdin=theirs,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment(),
            ) as process:
                os.write(ours, answer)
                return process.wait(60)
        finally:
            os.close(ours)
            os.close(theirs)


@pytest.fixture
def topics(broker: Broker) -> Topics:
    return Topics(broker)


def test_delete_without_a_terminal_wants_yes(topics: Topics, topic: str) -> None:
    topics("create", topic).succeeded()
    refused = topics("delete", topic)
    assert (refused.code, refused.output) == (2, b"")
    assert "--yes" in refused.errors
    assert topic in topics.names()
    assert topics("delete", topic, "--yes").succeeded().text == f"deleted {topic}\n"


def test_delete_at_a_terminal_asks_and_goes_by_the_answer(topics: Topics, topic: str) -> None:
    topics("create", topic).succeeded()
    assert topics.at_a_terminal("delete", topic, answer=b"n\n") != 0
    assert topic in topics.names()
    assert topics.at_a_terminal("delete", topic, answer=b"y\n") == 0
    assert topic not in topics.names()


def test_delete_refuses_internal_topics_and_then_deletes_nothing(topics: Topics, topic: str) -> None:
    topics("create", topic).succeeded()
    refused = topics("delete", "--yes", topic, "__consumer_offsets")
    assert refused.code == 1
    assert "__consumer_offsets is an internal topic" in refused.errors
    assert topic in topics.names()


def test_regular_expression_means_whole_names_and_no_internal_topic(topics: Topics, topic: str) -> None:
    topics("create", f"{topic}.a", f"{topic}.b", f"x{topic}.a").succeeded()
    described = json.loads(topics("describe", "-E", f"{topic}\\..*", "--json").succeeded().text)
    assert [each["topic"] for each in described] == [f"{topic}.a", f"{topic}.b"]
    topics("delete", "--yes", "--regex", f"{topic}\\..*").succeeded()
    assert {name for name in topics.names() if topic in name} == {f"x{topic}.a"}
    nothing = topics("delete", "--yes", "--regex", "__consumer.*")
    assert nothing.code == 1
    assert "no topic matches" in nothing.errors
    assert topics("describe", "-E", "(").code == 2


def test_json_says_what_became_of_each_topic(topics: Topics, topic: str) -> None:
    def told(*arguments: object, code: int = 0) -> Any:
        outcome = topics(*arguments, "--json")
        assert outcome.code == code, outcome.errors
        return json.loads(outcome.text)

    assert told("create", topic) == [{"topic": topic, "result": "created", "error": None}]
    assert told("create", topic, "--if-not-exists") == [{"topic": topic, "result": "exists", "error": None}]
    (refused,) = told("create", topic, code=1)
    assert (refused["result"], "TOPIC_ALREADY_EXISTS" in refused["error"]) == ("refused", True)
    assert told("add-partitions", topic, 3) == [{"topic": topic, "result": "grown", "error": None}]
    assert told("delete-records", topic, "--yes", "--before", "0=end") == [
        {"topic": topic, "partition": 0, "result": "deleted", "error": None, "start_offset": 0}
    ]
    assert told("delete", topic, "--yes") == [{"topic": topic, "result": "deleted", "error": None}]


def test_bound_of_the_wrong_form_names_the_right_one(topics: Topics, topic: str) -> None:
    for bound in ("5", "=5", "0=", "0=soon"):
        refused = topics("delete-records", topic, "--yes", "--before", bound)
        assert refused.code == 2
        assert "PARTITION=OFFSET" in refused.errors.splitlines()[-1]


def test_refusal_has_kafkas_name_and_not_librdkafkas(topics: Topics) -> None:
    refused = topics("describe", "no-such-topic")
    assert refused.errors.endswith("(UNKNOWN_TOPIC_OR_PARTITION)\n")
    assert "Broker:" not in refused.errors
