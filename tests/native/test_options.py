"""Options by Kafka's names, and what is refused at once."""

from __future__ import annotations

import time
from typing import Any

import pytest

from appliance_client import Consumer, Producer
from appliance_client.assignors import assignors_of
from appliance_client.errors import OptionError
from appliance_client.options import (
    INT32_MAX,
    INT64_MAX,
    ConsumerOptions,
    ProducerOptions,
    addresses_of,
    options_of,
)


def test_a_dict_with_dots_and_keywords_with_underscores_are_the_same() -> None:
    by_dict = options_of(ProducerOptions, {"linger.ms": "7", "acks": "all", "enable.idempotence": "true"}, {})
    by_name = options_of(ProducerOptions, None, {"linger_ms": 7, "acks": "all", "enable_idempotence": True})
    assert by_dict == by_name
    assert by_dict.linger_ms == 7
    assert by_dict.idempotent


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"linger.mss": 5}, "did you mean linger.ms"),
        ({"linger.ms": "soon"}, "no number"),
        ({"batch_size": True}, "no number"),
        ({"enable_idempotence": "yes"}, "true or false"),
        ({"acks": 2}, "all, 1 or 0"),
        ({"compression_type": "brotli"}, "none, gzip, snappy, lz4, zstd"),
        ({"acks": 1, "enable_idempotence": True}, "idempotence needs acks=all"),
        ({"transactional_id": "t", "max_in_flight_requests_per_connection": 6}, "at most 5"),
        ({"transactional_id": ""}, "must not be empty"),
        ({"delivery_timeout_ms": 1, "linger_ms": 5}, "must not be smaller"),
        ({"buffer_memory": 0}, "at least 1"),
        ({"bootstrap_servers": ""}, "names no server"),
        ({"bootstrap_servers": "host:port"}, "not host:port"),
        ({"bootstrap_servers": "udp://host:1"}, "no transport for udp"),
    ],
)
def test_a_producer_option_that_cannot_be_meant_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        options_of(ProducerOptions, options, {})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"auto_offset_reset": "begin"}, "earliest, latest, none"),
        ({"isolation_level": 1}, "read_committed or read_uncommitted"),
        ({"group_protocol": "new"}, "classic or consumer"),
        ({"max_poll_records": 0}, "at least 1"),
        ({"group_id": ""}, "must not be empty"),
    ],
)
def test_a_consumer_option_that_cannot_be_meant_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        options_of(ConsumerOptions, options, {})


def test_an_assignor_that_nobody_knows_is_refused() -> None:
    with pytest.raises(OptionError, match="none of range, roundrobin"):
        assignors_of(("fair",))


def test_bootstrap_servers_may_be_written_in_every_usual_way() -> None:
    assert addresses_of("a:1,kafka://b:2/, c") == ("kafka", (("a", 1), ("b", 2), ("c", 9092)))
    assert addresses_of(["[::1]:9093", "PLAINTEXT://d:4"]) == ("kafka", (("::1", 9093), ("d", 4)))


def test_without_acks_of_all_a_producer_is_not_idempotent_unless_it_says_so() -> None:
    assert options_of(ProducerOptions, None, {}).idempotent
    assert not options_of(ProducerOptions, None, {"acks": 1}).idempotent
    assert not options_of(ProducerOptions, None, {"retries": 0}).idempotent


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"interceptors": 5}, "a list of objects"),
        ({"key.serializer": "org.apache.kafka.common.serialization.StringSerializer"}, "a callable"),
        ({"value_serializer": 3}, "a callable"),
        ({"bootstrap_servers": None}, "host:port"),
        ({"client_id": 7}, "no text"),
        ({"transactional_id": 5}, "no text"),
        ({"request_timeout_ms": 1.5}, "no whole number"),
        ({"batch_size": 1e400}, "no number"),
        ({"linger_ms": float("nan")}, "no number"),
        ({"acks": True}, "all, 1 or 0"),
        ({"compression_type": "zstd", "compression_level": 99}, "-131072 to 22 with zstd"),
        ({"max.request.size": "2147483648"}, "at most 2147483647"),
        ({"metadata_max_age_ms": 10**30}, "at most"),
        ({"buffer.memory": "32MB"}, "no number"),
        ({"max.block.ms": -5}, "at least 0"),
        ({"partitioner": "fastest"}, "murmur2, sticky"),
        (
            {"security.protocol": "TLS"},
            "security.protocol is 'TLS': PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
        ),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is None: PLAIN, SCRAM-SHA-256"),
    ],
)
def test_a_producer_says_at_once_what_is_wrong_with_an_option(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Producer(options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"heartbeat.interval.ms": 45_000}, "smaller than session.timeout.ms"),
        ({"partition.assignment.strategy": "fair"}, "none of range, roundrobin"),
        ({"partition.assignment.strategy": []}, "names no assignor"),
        ({"group.id": 5}, "no text"),
        ({"group.instance.id": ""}, "must not be empty"),
        ({"group.remote.assignor": "uniform"}, "group.protocol=consumer"),
        (
            {"group.protocol": "consumer", "session.timeout.ms": 45_000},
            "session.timeout.ms cannot be set when group.protocol=consumer",
        ),
        (
            {"group.protocol": "CONSUMER", "heartbeat.interval.ms": 3_000},
            "heartbeat.interval.ms cannot be set when group.protocol=consumer",
        ),
        (
            {"group.protocol": "consumer", "partition.assignment.strategy": "range"},
            "partition.assignment.strategy cannot be set when group.protocol=consumer",
        ),
        ({"key.deserializer": "utf-8"}, "a callable"),
        ({"check.crcs": 1}, "True or False"),
        ({"fetch.max.wait.ms": None}, "no number"),
        ({"max.partition.fetch.bytes": 1 << 40}, "at most 2147483647"),
        ({"client_rack": None}, "no text"),
        ({"consumer_timeout_ms": 1_000}, "unknown option consumer_timeout_ms"),
    ],
)
def test_a_consumer_says_at_once_what_is_wrong_with_an_option(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        Consumer(config=options)


def test_the_longest_times_that_can_be_given_stop_no_client() -> None:
    longest = {"metadata_max_age_ms": INT64_MAX, "max_block_ms": INT64_MAX, "retry_backoff_max_ms": INT32_MAX}
    with Producer(bootstrap_servers="127.0.0.1:1", reconnect_backoff_ms=INT32_MAX, **longest) as producer:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            assert not producer._io.ended.is_set()
            time.sleep(0.05)
