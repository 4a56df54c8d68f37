"""The commands that speak to any broker, against Apache Kafka 4.3.1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.cli.command import Outcome, appliance
from tests.support.apache_kafka import ApacheKafka


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    judge = ApacheKafka(tmp_path_factory.mktemp("judge") / "kafka")
    judge.start()
    try:
        more = {"APPLIANCE_BOOTSTRAP": judge.address}
        appliance("topics", "create", "orders", "-p", 2, more=more).succeeded()
        appliance("produce", "orders", "-K", "=", given=b"ann=1\nbob=2\ncid=3\n", more=more).succeeded()
        yield judge
    finally:
        judge.stop()


def run(kafka: ApacheKafka, *arguments: object, given: bytes = b"") -> Outcome:
    return appliance(*arguments, given=given, more={"APPLIANCE_BOOTSTRAP": kafka.address})


def told(kafka: ApacheKafka, *arguments: object) -> Any:
    return json.loads(run(kafka, *arguments, "--json").succeeded().output)


def test_group_reads_and_its_position_is_shown_moved_and_deleted(kafka: ApacheKafka) -> None:
    assert len(run(kafka, "consume", "orders", "--group", "billing").succeeded().text.splitlines()) == 3
    assert {each["group"]: each for each in told(kafka, "groups", "list")}.keys() == {"billing"}
    assert told(kafka, "groups", "lag", "billing")[0]["lag"] == 0
    assert told(kafka, "groups", "describe", "billing")[0]["partitions"]
    run(
        kafka, "groups", "reset-offsets", "billing", "--topic", "orders", "--to", "beginning", "--execute"
    ).succeeded()
    assert told(kafka, "groups", "lag", "billing")[0]["lag"] == 3
    (deleted,) = told(kafka, "groups", "delete", "billing", "--yes")
    assert deleted["result"] == "deleted"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_of_a_group_share_a_topic_and_end_when_all_of_it_is_read(
    kafka: ApacheKafka, protocol: str
) -> None:
    topic = f"shared-{protocol}"
    run(kafka, "topics", "create", topic, "-p", 4).succeeded()
    run(kafka, "produce", topic, given=b"".join(b"%d\n" % number for number in range(2000))).succeeded()
    arguments = ("consume", topic, "--group", topic, "-X", f"group.protocol={protocol}")
    with ThreadPoolExecutor(2) as pool:
        members = [pool.submit(run, kafka, *arguments) for _ in range(2)]
        read = [line for member in members for line in member.result().succeeded().text.split()]
    assert sorted(map(int, read)) == list(range(2000))
    assert told(kafka, "groups", "lag", topic)[0]["lag"] == 0


def test_cluster_is_described_and_healthy(kafka: ApacheKafka) -> None:
    assert len(told(kafka, "cluster", "info")["brokers"]) == 1
    health = told(kafka, "cluster", "health")
    assert (health["healthy"], health["problems"]) == (True, [])
    assert told(kafka, "partitions", "list", "orders")
    assert told(kafka, "log-dirs", "describe")
    assert told(kafka, "reassign", "status") == []
    features = {each["name"]: each["level"] for each in told(kafka, "cluster", "apis")["features"]}
    assert features["group.version"] == 1
    assert told(kafka, "slots", "list")


def test_settings_are_shown_and_changed(kafka: ApacheKafka) -> None:
    run(kafka, "configs", "set", "--topic", "orders", "retention.ms=7d").succeeded()
    described = told(kafka, "configs", "describe", "--topic", "orders")
    assert "604800000" in json.dumps(described)
    run(kafka, "configs", "unset", "--topic", "orders", "retention.ms").succeeded()


def test_offsets_formats_bytes_and_regular_expressions(kafka: ApacheKafka) -> None:
    run(kafka, "produce", "bytes", "-K", ":", "--encoding", "hex", given=b"6b:00ff0a\n").succeeded()
    shown = run(kafka, "consume", "bytes", "-f", r"%t %p %o %k %S\n").succeeded().text
    assert shown == "bytes 0 0 k 3\n"
    assert run(kafka, "consume", "bytes", "--encoding", "hex").succeeded().text == "00ff0a\n"
    assert run(kafka, "consume", "bytes", "--encoding", "base64").succeeded().text == "AP8K\n"
    assert run(kafka, "consume", "bytes", "-f", r"%i %v{big} \n").code == 2
    assert (
        run(kafka, "consume", "bytes", "-f", r"%i %v{hex} %S{hex16}\n").succeeded().text == "1 00ff0a 0003\n"
    )
    assert run(kafka, "consume", "bytes", "--from", "1h", "--until", "+0").succeeded().text == ""
    assert len(run(kafka, "consume", "--regex", "ord.*").succeeded().text.splitlines()) == 3
    assert told(kafka, "offsets", "orders")
    refused = run(kafka, "produce", "bytes", "--encoding", "hex", given=b"ff\nzz\n")
    assert refused.code == 1
    assert "line 2: not hex" in refused.errors


def test_figures_are_measured(kafka: ApacheKafka) -> None:
    assert told(kafka, "perf", "produce", "load", "-n", 500)["records"] == 500
    assert told(kafka, "perf", "consume", "load")["records"] == 500
    assert told(kafka, "perf", "latency", "load", "-n", 20)["acknowledged_ms"]["p50"] > 0
    measured = told(kafka, "bench", "--seconds", 2, "--bootstrap", kafka.address)
    assert measured["results"].keys() == {"produce", "consume", "single", "latency"}
    assert measured["results"]["consume"]["records"] > 0
    assert not [
        name for name in json.loads(run(kafka, "topics", "list", "--json").output) if "bench" in str(name)
    ]


def test_top_shows_topics_and_groups_of_another_broker(kafka: ApacheKafka) -> None:
    run(kafka, "consume", "orders", "-g", "watchers", "-n", 1).succeeded()
    shown = told(kafka, "top", "--once", "--interval", 0.3)
    assert shown["processes"] == []
    assert {each["topic"] for each in shown["topic_rates"]} >= {"orders"}
    assert {each["group"] for each in shown["group_lags"]} >= {"watchers"}


def test_transactions_and_tools_of_kafka_are_asked(kafka: ApacheKafka) -> None:
    assert told(kafka, "transactions", "list") == []
    assert told(kafka, "transactions", "find-hanging") == []
    assert told(kafka, "quotas", "list") == []
    assert told(kafka, "users", "list") == []


def test_names_are_completed(kafka: ApacheKafka) -> None:
    more = {
        "_APPLIANCE_COMPLETE": "bash_complete",
        "COMP_WORDS": "appliance topics describe or",
        "COMP_CWORD": "3",
        "APPLIANCE_BOOTSTRAP": kafka.address,
    }
    assert appliance(more=more).succeeded().text == "plain,orders\n"


def test_topic_is_deleted_only_with_yes(kafka: ApacheKafka) -> None:
    run(kafka, "topics", "create", "gone").succeeded()
    assert run(kafka, "topics", "delete", "gone").code == 2
    assert told(kafka, "topics", "delete", "gone", "--yes")[0]["result"] == "deleted"
    assert run(kafka, "topics", "delete-records", "orders", "--before", "0=1").code == 2
    run(kafka, "topics", "delete-records", "orders", "--before", "0=end", "--yes").succeeded()
