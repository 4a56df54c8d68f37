"""Settings of single groups: what is allowed, what members go by, how they are described."""

from __future__ import annotations

import pytest

from appliance.config import ConfigSource, ConsumerTimes, GroupSettings, Settings, describe_group
from appliance.config import validate_group_configs as validate
from appliance.config.kafka_settings import kafka_group_settings
from appliance.errors import ConfigurationError

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


def test_a_group_goes_by_what_was_set_on_it_and_else_by_the_options() -> None:
    group = GroupSettings()
    assert ConsumerTimes.of(group, {}) == ConsumerTimes(45_000, 5_000)
    assert ConsumerTimes.of(group, {SESSION: "50000", HEARTBEAT: "6000"}) == ConsumerTimes(50_000, 6_000)


@pytest.mark.parametrize(
    ("configs", "why"),
    [
        ({"session.timeout.ms": "50000"}, "Unknown group config name: session.timeout.ms"),
        ({"share.session.timeout.ms": "50000"}, "cannot be set, because the appliance does not use it"),
        ({"consumer.assignment.interval.ms": "-1"}, "must be a whole number from 0 to 15000"),
        ({SESSION: "44999"}, "must be greater than or equal to group.consumer.min.session.timeout.ms"),
        ({SESSION: "60001"}, "must be less than or equal to group.consumer.max.session.timeout.ms"),
        ({HEARTBEAT: "4999"}, "must be greater than or equal to group.consumer.min.heartbeat.interval.ms"),
        ({HEARTBEAT: "15001"}, "must be less than or equal to group.consumer.max.heartbeat.interval.ms"),
        ({SESSION: "50 s"}, "must be a whole number"),
        ({SESSION: ""}, "must be a whole number"),
    ],
)
def test_what_a_group_may_not_be_given_is_refused(configs: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        validate(configs, GroupSettings())


def test_a_session_that_no_heartbeat_could_keep_is_refused() -> None:
    group = GroupSettings(consumer_min_session_timeout_ms=1)
    with pytest.raises(ConfigurationError, match=f"{SESSION} must be greater than {HEARTBEAT}"):
        validate({SESSION: "5000"}, group)


def test_what_a_later_start_allows_no_more_is_brought_into_its_range() -> None:
    group = GroupSettings(
        consumer_min_session_timeout_ms=10_000,
        consumer_session_timeout_ms=20_000,
        consumer_max_session_timeout_ms=30_000,
    )
    assert ConsumerTimes.of(group, {SESSION: "45000"}).session_timeout_ms == 30_000


def test_the_options_must_lie_in_the_range_that_groups_are_allowed() -> None:
    with pytest.raises(ConfigurationError, match="= 10000: must be from"):
        GroupSettings(consumer_session_timeout_ms=10_000)


@pytest.mark.parametrize("assignors", [(), ("uniform", "uniform"), ("sticky",)])
def test_assignors_that_there_are_not_are_refused(assignors: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match=r"group\.consumer\.assignors"):
        GroupSettings(consumer_assignors=assignors)


def test_a_group_is_described_as_by_kafka() -> None:
    settings = Settings(
        group=GroupSettings(consumer_heartbeat_interval_ms=7_000),
        configured={"group.consumer.heartbeat.interval.ms": "7000"},
    )
    told = {each.name: each for each in describe_group(settings, {SESSION: "50000"})}
    heartbeat, session = told[HEARTBEAT], told[SESSION]
    assert (session.name, session.value, session.source) == (
        SESSION,
        "50000",
        ConfigSource.DYNAMIC_GROUP_CONFIG,
    )
    assert [(each.name, each.value, int(each.source)) for each in session.synonyms] == [
        (SESSION, "50000", 8),
        ("group.consumer.session.timeout.ms", "45000", 5),
    ]
    assert (heartbeat.value, heartbeat.source) == ("7000", ConfigSource.STATIC_BROKER_CONFIG)
    assert not heartbeat.read_only


def test_a_group_has_all_settings_that_kafka_lists() -> None:
    interval = "consumer.assignment.interval.ms"
    told = {each.name: each for each in describe_group(Settings(), {interval: "2000"})}
    assert told.keys() == kafka_group_settings().keys()
    assert len(told) == 17
    assert (told[interval].value, told[interval].source, told[interval].read_only) == (
        "2000",
        ConfigSource.DYNAMIC_GROUP_CONFIG,
        False,
    )
    share = told["share.heartbeat.interval.ms"]
    assert (share.value, share.read_only, share.is_default) == ("5000", True, True)
    assert [each.name for each in share.synonyms] == ["group.share.heartbeat.interval.ms"]
