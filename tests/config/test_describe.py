"""DescribeConfigs: sources and synonyms as Kafka reports them."""

from __future__ import annotations

import pytest

from appliance.config import ConfigSource, ConfigType, describe_broker, describe_topic, load_settings
from appliance.config.describe import ConfigEntry, effective_topic_configs
from appliance.config.dynamic import shared_value
from appliance.config.kafka_settings import kafka_broker_settings
from appliance.errors import ConfigurationError


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    (found,) = [one for one in entries if one.name == name]
    return found


def synonyms(one: ConfigEntry) -> list[tuple[str, str | None, ConfigSource]]:
    return [(each.name, each.value, each.source) for each in one.synonyms]


def test_untouched_setting_is_a_default_with_its_broker_wide_name() -> None:
    one = entry(describe_topic(load_settings(), {}), "segment.bytes")
    assert (one.value, one.source, one.type) == ("1073741824", ConfigSource.DEFAULT_CONFIG, ConfigType.INT)
    assert one.is_default
    assert not one.read_only
    assert synonyms(one) == [("log.segment.bytes", "1073741824", ConfigSource.DEFAULT_CONFIG)]


def test_broker_wide_value_is_a_static_broker_config() -> None:
    settings = load_settings(overrides={"log.retention.hours": "1"})
    one = entry(describe_topic(settings, {}), "retention.ms")
    assert (one.value, one.source) == ("3600000", ConfigSource.STATIC_BROKER_CONFIG)
    assert synonyms(one) == [
        ("log.retention.hours", "1", ConfigSource.STATIC_BROKER_CONFIG),
        ("log.retention.hours", "168", ConfigSource.DEFAULT_CONFIG),
    ]


def test_value_set_on_the_topic_stands_before_everything() -> None:
    settings = load_settings(overrides={"log.retention.ms": "5"})
    one = entry(describe_topic(settings, {"retention.ms": "7"}), "retention.ms")
    assert (one.value, one.source) == ("7", ConfigSource.DYNAMIC_TOPIC_CONFIG)
    assert synonyms(one)[:2] == [
        ("retention.ms", "7", ConfigSource.DYNAMIC_TOPIC_CONFIG),
        ("log.retention.ms", "5", ConfigSource.STATIC_BROKER_CONFIG),
    ]


def test_effective_value_is_the_topics_then_the_brokers_then_the_default() -> None:
    settings = load_settings(overrides={"log.segment.bytes": "2000000", "message.max.bytes": "10"})
    configs = effective_topic_configs(settings, {"max.message.bytes": "20"})
    assert configs["max.message.bytes"] == "20"
    assert configs["segment.bytes"] == "2000000"
    assert configs["segment.ms"] == "604800000"


def test_broker_tells_what_clients_look_for() -> None:
    settings = load_settings(overrides={"slots": "3", "port": "19092", "advertised.host": "logs.example"})
    entries = describe_broker(settings, 2)
    told = {one.name: one.value for one in entries}
    assert told["advertised.listeners"] == "PLAINTEXT://logs.example:19094"
    assert told["listeners"] == "PLAINTEXT://127.0.0.1:19094"
    assert told["log.dirs"] == str(settings.slot_directory(2))
    assert told["node.id"] == told["broker.id"] == "2"
    assert told["default.replication.factor"] == "3"
    assert told["log.retention.hours"] == "168"
    assert told["message.max.bytes"] == "1048588"
    assert list(told) == sorted(told), "sorted, so that two answers compare"
    assert len(told) == len(entries), "no name twice"


def test_broker_option_that_was_set_says_so() -> None:
    settings = load_settings(overrides={"num.partitions": "6"})
    one = entry(describe_broker(settings, 0), "num.partitions")
    assert (one.value, one.source, one.read_only) == ("6", ConfigSource.STATIC_BROKER_CONFIG, True)
    assert entry(describe_broker(load_settings(), 0), "num.partitions").is_default


def test_everything_described_has_a_sentence() -> None:
    settings = load_settings()
    for one in [*describe_topic(settings, {}), *describe_broker(settings, 0)]:
        assert one.documentation.endswith("."), one.name


def test_everything_that_kafka_lists_is_listed_and_what_nothing_reads_is_read_only() -> None:
    told = {each.name: each for each in describe_broker(load_settings(), 0)}
    kafka = kafka_broker_settings()
    assert len(kafka) == 340
    assert kafka.keys() <= told.keys()
    threads = told["log.cleaner.threads"]
    assert (threads.value, threads.read_only, threads.is_default) == ("1", True, True)
    password = told["ssl.keystore.password"]
    assert (password.value, password.sensitive, password.read_only) == (None, True, True)
    assert told["log.retention.ms"].value is None
    assert not told["max.connections"].read_only


@pytest.mark.parametrize("name", ["ssl.provider", "log.cleaner.threads"])
def test_kafkas_setting_that_nothing_reads_is_refused_in_the_file_by_what_it_is(name: str) -> None:
    with pytest.raises(ConfigurationError, match="a setting of Apache Kafka that the appliance does not use"):
        load_settings(overrides={name: "1"})


def test_setting_of_a_shared_process_counts_from_the_slot_only_where_there_is_one() -> None:
    stored = {"": {"max.connections": "7"}, "0": {"max.connections": "5"}}
    one, three = load_settings(), load_settings(overrides={"slots": "3"})
    assert shared_value(one, stored, "max.connections") == 5
    assert shared_value(three, stored, "max.connections") == 7
    assert shared_value(one, {}, "max.connections") == 10_000
    assert shared_value(load_settings(overrides={"max.connections": "9"}), {}, "max.connections") == 9
