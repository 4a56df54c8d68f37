"""Topics that nobody uses any more are asked for no longer; those that are used are, for however long."""

from __future__ import annotations

from collections import deque
from typing import Any
from uuid import UUID

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.metadata import MetadataPartition, MetadataResponse, MetadataTopic
from appliance_client.consumer_core import ConsumerCore
from appliance_client.options import ConsumerOptions, ProducerOptions, options_of
from appliance_client.values import TopicPartition
from tests.native.scripted import ScriptedCluster


def cluster(**options: Any) -> ScriptedCluster:
    made = ScriptedCluster(
        options_of(ProducerOptions, None, {"linger_ms": 0, "metadata_max_age_ms": 60_000, **options})
    )
    made.pass_s(0.5)
    return made


def asked(made: ScriptedCluster) -> list[str]:
    """The names in the last request for metadata."""
    request = [each for api, _, each in made.asked if api is ApiKey.METADATA][-1]
    return sorted(each.name for each in request.topics)


def test_a_name_that_a_producer_asked_for_once_is_forgotten_and_a_topic_that_it_writes_is_not() -> None:
    made = cluster()
    made.core.metadata.want("misspelt")
    for _ in range(8):
        sent = made.send(b"x")
        made.pass_s(61)
        assert sent.exception() is None
    assert asked(made) == ["topic"]


def test_an_idle_producer_asks_for_nothing_and_writes_again_later() -> None:
    made = cluster()
    made.send(b"x")
    made.pass_s(500)
    assert asked(made) == []
    assert made.core.metadata.topics == {}
    assert made.core.metadata.names == {}
    sent = made.send(b"x")
    made.pass_s(1)
    assert sent.done()
    assert sent.exception() is None


def test_the_time_can_be_set_and_records_that_wait_count_as_use() -> None:
    made = cluster(metadata_max_idle_ms=5_000, delivery_timeout_ms=1_000_000)
    made.core.metadata.want("misspelt")
    made.leader = -1  # nobody takes the record
    sent = made.send(b"x")
    made.pass_s(100)
    assert asked(made) == ["topic"]
    made.leader = 1
    made.pass_s(100)
    assert sent.done()
    assert sent.exception() is None


def test_what_a_consumer_has_subscribed_to_and_is_assigned_is_never_forgotten() -> None:
    made = cluster()
    consumer = ConsumerCore(options_of(ConsumerOptions, None, {"group_id": "g"}), made.core)
    consumer.assign([TopicPartition("topic", 0)])
    reading = consumer.fetching.readings[TopicPartition("topic", 0)]
    reading.seek(0)
    reading.paused = True
    made.core.metadata.want("looked at")
    made.pass_s(2_000)
    assert asked(made) == ["topic"]


def test_a_topic_that_was_made_again_leaves_no_name_behind() -> None:
    made = cluster()
    made.core.metadata.want("topic")
    made.pass_s(1)
    (before,) = made.core.metadata.names
    again = MetadataResponse(
        made._metadata(0, None).brokers,
        (MetadataTopic(0, "topic", UUID(int=8), partitions=(MetadataPartition(0, 0, 1, 0),)),),
    )
    made.scripts[ApiKey.METADATA] = deque([again])
    made.core.metadata.request_update()
    made.pass_s(0.01)
    assert list(made.core.metadata.names) == [UUID(int=8)] != [before]
