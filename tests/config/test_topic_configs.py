"""Topic settings are Kafka's, and validated as Kafka validates them."""

from __future__ import annotations

import pytest

from appliance.config import topic_config_declarations, validate_topic_configs
from appliance.config.declaration import text_of
from appliance.errors import ConfigurationError

# What `kafka-configs.sh --describe --all` shows for a topic of Apache Kafka 4.3 with default settings.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.gzip.level": "-1",
    "compression.lz4.level": "9",
    "compression.type": "producer",
    "compression.zstd.level": "3",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "follower.replication.throttled.replicas": "",
    "index.interval.bytes": "4096",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


OWN_DEFAULTS = {
    "audit.bucket.ms": "60000",
    "audit.enable": "false",
    "audit.headers": "false",
    "dead.letter.retry.topic": "",
    "decompressed.ratio.max": "32",
    "delivery.delay.enable": "false",
    "delivery.delay.mode": "levels",
    "durability": "page-cache",
    "retry.dead.letter.topic": "",
    "retry.enable": "true",
    "retry.group": "",
    "retry.levels": "10s,30s,1m,2m,5m,10m",
    "retry.max": "16",
    "retry.ordered": "false",
    "retry.ordered.by.key": "false",
    "retry.topic": "",
    "trace.enable": "false",
    "trace.sample": "0",
}


def test_every_topic_setting_of_kafka_is_declared_with_its_default() -> None:
    declared = {one.name: text_of(one.default) for one in topic_config_declarations()}
    assert declared == KAFKA_DEFAULTS | OWN_DEFAULTS


def test_defaults_pass_their_own_validation() -> None:
    validate_topic_configs(dict(KAFKA_DEFAULTS))


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact,delete"},
        {"cleanup.policy": "delete, compact"},
        {"cleanup.policy": "delete,delete"},
        {"cleanup.policy": ""},
        {"retention.ms": "-1"},
        {"retention.bytes": "-500"},
        {"segment.bytes": "1048576"},
        {"unclean.leader.election.enable": "TRUE"},
        {"min.cleanable.dirty.ratio": "1"},
        {"leader.replication.throttled.replicas": "*"},
        {"leader.replication.throttled.replicas": "0:1,1:2"},
        {"compression.gzip.level": "-1"},
        {"max.message.bytes": " 7 "},
    ],
)
def test_what_kafka_takes_is_taken(configs: dict[str, str]) -> None:
    validate_topic_configs(configs)


@pytest.mark.parametrize(
    "configs",
    [
        {"cleanup.policy": "shred"},
        {"retention.ms": "-2"},
        {"retention.ms": "week"},
        {"retention.ms": ""},
        {"retention.ms": None},
        {"segment.bytes": "1048575"},
        {"segment.bytes": "2147483648"},
        {"segment.bytes": "2 MiB"},
        {"segment.bytes": "1_048_576"},
        {"unclean.leader.election.enable": "1"},
        {"min.cleanable.dirty.ratio": "1.1"},
        {"min.cleanable.dirty.ratio": "nan"},
        {"leader.replication.throttled.replicas": "0"},
        {"compression.gzip.level": "0"},
        {"compression.type": "brotli"},
        {"message.timestamp.type": "createtime"},
        {"remote.storage.enable": "true"},
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"},
    ],
)
def test_what_kafka_refuses_is_refused_by_name(configs: dict[str, str | None]) -> None:
    with pytest.raises(ConfigurationError) as refused:
        validate_topic_configs(configs)
    assert next(iter(configs)) in str(refused.value)


def test_unknown_setting_is_refused_with_the_nearest() -> None:
    with pytest.raises(
        ConfigurationError, match=r"retention\.sm: no such topic setting; did you mean retention\.ms"
    ):
        validate_topic_configs({"retention.sm": "1"})


def test_a_very_long_value_is_not_repeated_whole() -> None:
    with pytest.raises(ConfigurationError) as refused:
        validate_topic_configs({"retention.ms": "9" * 100_000})
    assert len(str(refused.value)) < 300
