"""Subscriptions to metrics of clients: what may be set, which clients match, what a client is to push."""

from __future__ import annotations

from typing import Final

import pytest

from appliance.config.client_metrics import (
    ALL,
    DEFAULT_INTERVAL_MS,
    PATTERN_CHARACTERS_MAX,
    Wanted,
    describe_client_metrics,
    validate_client_metrics,
    wanted_of,
)
from appliance.config.declaration import ConfigSource
from appliance.errors import ConfigurationError

FACTS: Final = {
    "client_id": "orders-7",
    "client_instance_id": "AbC",
    "client_software_name": "apache-kafka-java",
    "client_software_version": "4.3.1",
    "client_source_address": "10.0.0.9",
    "client_source_port": "4711",
}


def test_what_kafka_takes_may_be_set() -> None:
    validate_client_metrics({})
    validate_client_metrics({"metrics": "*", "interval.ms": "100", "match": ""})
    validate_client_metrics(
        {"metrics": "a.b,c", "interval.ms": "3600000", "match": "client_id=x.*, client_source_port=9"}
    )


@pytest.mark.parametrize(
    "configs",
    [
        {"interval.ms": "99"},
        {"interval.ms": "3600001"},
        {"interval.ms": "soon"},
        {"interval.ms": "-5"},
        {"interval.ms": "9" * 5000},
        {"match": "client_id"},
        {"match": "name=x"},
        {"match": "client_id=("},
        {"match": "client_id=a=b"},
        {"match": "client_id=" + "x" * PATTERN_CHARACTERS_MAX},
        {"labels": "x"},
    ],
)
def test_what_kafka_refuses_is_refused(configs: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError):
        validate_client_metrics(configs)


@pytest.mark.parametrize(
    ("match", "does"),
    [
        ("", True),
        ("client_id=orders-.*", True),
        ("client_id=orders", False),
        ("client_id=orders-.*,client_software_version=4\\..*", True),
        ("client_id=orders-.*,client_software_version=3\\..*", False),
        ("client_source_address=10\\.0\\..*,client_source_port=4711,client_instance_id=AbC", True),
    ],
)
def test_every_pattern_matches_the_whole_text(match: str, does: bool) -> None:
    wanted = wanted_of([{"metrics": "a", "match": match}], FACTS)
    assert wanted == (Wanted(("a",)) if does else Wanted())


def test_the_metrics_of_all_that_match_in_the_shortest_interval() -> None:
    subscriptions = [
        {"metrics": "b,a", "interval.ms": "5000"},
        {"metrics": "c", "interval.ms": "1000", "match": "client_id=other"},
        {"metrics": "a,d"},
        {"interval.ms": "100"},
    ]
    assert wanted_of(subscriptions, FACTS) == Wanted(("a", "b", "d"), 5000)
    assert wanted_of([*subscriptions, {"metrics": ALL}], FACTS) == Wanted((ALL,), 5000)
    assert wanted_of([], FACTS) == Wanted((), DEFAULT_INTERVAL_MS)


def test_a_pattern_that_backtracks_elsewhere_costs_nothing() -> None:
    facts = {**FACTS, "client_id": "a" * 30_000 + "b"}
    assert wanted_of([{"metrics": "a", "match": "client_id=(a+)+"}], facts) == Wanted()


def test_it_is_described_with_its_sources() -> None:
    configs = {"interval.ms": "1000", "match": "client_id=a, client_source_port=9"}
    entries = {each.name: each for each in describe_client_metrics(configs)}
    assert list(entries) == ["interval.ms", "match", "metrics"]
    assert entries["interval.ms"].source is ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
    assert [each.value for each in entries["interval.ms"].synonyms] == ["1000"]
    assert entries["match"].value == "client_id=a,client_source_port=9"
    assert (entries["metrics"].value, entries["metrics"].source) == ("", ConfigSource.DEFAULT_CONFIG)
    assert entries["metrics"].synonyms == ()
