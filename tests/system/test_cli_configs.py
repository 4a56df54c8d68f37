"""`appliance configs` against a running broker: shown, changed, refused."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.command import Outcome, appliance, environment
from tests.support.broker import Appliance


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(tmp_path_factory.mktemp("broker") / "data")
    started.start()
    appliance("topics", "create", "t", "-b", started.address).succeeded()
    yield started
    started.stop()


def configs(broker: Appliance, *arguments: str) -> Outcome:
    return appliance("configs", *arguments, "-b", broker.address)


def test_set_says_before_and_after_and_unset_goes_back(broker: Appliance) -> None:
    done = configs(broker, "set", "segment.ms=100", "--topic", "t").succeeded()
    assert done.text == "segment.ms: 604800000 → 100\n"
    shown = configs(broker, "describe", "--topic", "t").succeeded().text.split("\n")
    assert [line.split() for line in shown if line] == [
        ["SETTING", "VALUE", "FROM"],
        ["segment.ms", "100", "topic"],
    ]
    done = configs(broker, "unset", "segment.ms", "--topic", "t", "--json").succeeded()
    assert json.loads(done.output) == [{"name": "segment.ms", "before": "100", "after": "604800000"}]


def test_what_is_set_on_a_broker_stands_behind_its_topics(broker: Appliance) -> None:
    configs(broker, "set", "message.max.bytes=2000", "--broker", "0").succeeded()
    rows = json.loads(configs(broker, "describe", "--topic", "t", "--json").succeeded().output)
    assert [(row["name"], row["value"], row["source"]) for row in rows] == [
        ("max.message.bytes", "2000", "broker")
    ]
    done = configs(broker, "unset", "message.max.bytes", "--broker", "0").succeeded()
    assert done.text == "message.max.bytes: 2000 → 1048588\n"


def test_what_is_set_on_all_brokers_counts_where_a_broker_says_nothing(broker: Appliance) -> None:
    done = configs(broker, "set", "max.connections=500", "log.retention.ms=2h", "--all-brokers").succeeded()
    assert done.text == "log.retention.ms: - → 7200000\nmax.connections: - → 500\n"
    rows = json.loads(configs(broker, "describe", "--broker", "0", "--json").succeeded().output)
    told = {row["name"]: (row["value"], row["source"]) for row in rows}
    assert told["max.connections"] == ("500", "all brokers")
    rows = json.loads(configs(broker, "describe", "--all-brokers", "--json").succeeded().output)
    assert [(row["name"], row["value"]) for row in rows] == [
        ("log.retention.ms", "7200000"),
        ("max.connections", "500"),
    ]
    configs(broker, "unset", "max.connections", "log.retention.ms", "--all-brokers").succeeded()
    refused = configs(broker, "set", "slots=2", "--all-brokers")
    assert (refused.code, "INVALID_REQUEST" in refused.errors) == (1, True)


def test_a_refusal_names_the_value_and_changes_nothing(broker: Appliance) -> None:
    refused = configs(broker, "set", "segment.ms=7", "retention.ms=soon", "--topic", "t")
    assert (refused.code, refused.text) == (1, "")
    assert "retention.ms = 'soon'" in refused.errors
    assert configs(broker, "describe", "--topic", "t").succeeded().errors == "no setting is set\n"


@pytest.mark.parametrize("target", [(), ("--topic", "t", "--broker", "0"), ("--topic", "t", "--group", "g")])
def test_one_target_is_wanted(broker: Appliance, target: tuple[str, ...]) -> None:
    refused = configs(broker, "describe", *target)
    assert refused.code == 2
    assert "give one of --topic TOPIC, --broker ID, --group GROUP, --all-brokers" in refused.errors


@pytest.mark.parametrize("broker_id", ["7", "99999999999"])
def test_a_broker_that_is_not_there_is_refused_by_its_id(broker: Appliance, broker_id: str) -> None:
    refused = configs(broker, "set", "log.retention.ms=5", "--broker", broker_id)
    assert refused.code == 1
    assert f"there is no broker {broker_id}" in refused.errors


def test_a_group_is_given_a_session_timeout_of_its_own(broker: Appliance) -> None:
    done = configs(broker, "set", "consumer.session.timeout.ms=50000", "--group", "a/b c").succeeded()
    assert done.text == "consumer.session.timeout.ms: 45000 → 50000\n"
    rows = json.loads(configs(broker, "describe", "--group", "a/b c", "--json").succeeded().output)
    assert [(row["name"], row["value"], row["source"]) for row in rows] == [
        ("consumer.session.timeout.ms", "50000", "group")
    ]
    refused = configs(broker, "set", "consumer.session.timeout.ms=70000", "--group", "a/b c")
    assert "must be less than or equal to group.consumer.max.session.timeout.ms" in refused.errors
    done = configs(broker, "unset", "consumer.session.timeout.ms", "--group", "a/b c").succeeded()
    assert done.text == "consumer.session.timeout.ms: 50000 → 45000\n"


def test_watch_shows_settings_again_until_it_is_interrupted(broker: Appliance) -> None:
    command = [sys.executable, "-m", "appliance", "configs", "describe", "--topic", "t", "--all", "--json"]
    with subprocess.Popen(
        [*command, "--watch", "0.1", "-b", broker.address],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    ) as watching:
        assert watching.stdout is not None
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        watching.terminate()
    assert first == second
    assert any(row["name"] == "retention.ms" for row in first)
