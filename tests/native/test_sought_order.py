"""A seek before the consumer knows whether its group asks for the order: nothing is given before. No broker."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.errors import ErrorCode
from appliance_client import Consumer
from appliance_client.errors import BrokerError, error_of
from appliance_client.values import ConsumerRecord, OffsetAndMetadata, TopicPartition

PLACE = TopicPartition("t", 0)
ORDERED = {
    "retry.ordered": "true",
    "retry.group": "g",
    "retry.levels": "1s",
    "retry.max": "3",
    "retry.ordered.by.key": "false",
}


class _Config(NamedTuple):
    name: str
    value: str | None


class _Result(NamedTuple):
    error_code: int
    configs: tuple[_Config, ...]
    error_message: str | None = None


class _Answer(NamedTuple):
    results: tuple[_Result, ...]


class Broker:
    """Answers DescribeConfigs once `is_up`."""

    def __init__(self, configs: Mapping[str, str] | None) -> None:
        self.configs = configs
        self.is_up = False
        self.asked = 0

    async def call(self, _node: int, key: ApiKey, _request: object) -> _Answer:
        self.asked += key is ApiKey.DESCRIBE_CONFIGS
        if not self.is_up or key is not ApiKey.DESCRIBE_CONFIGS:
            raise error_of(ErrorCode.REQUEST_TIMED_OUT, "not yet")
        if self.configs is None:
            return _Answer((_Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ()),))
        return _Answer((_Result(0, tuple(_Config(*each) for each in self.configs.items())),))


@pytest.fixture
def consumer() -> Iterator[Consumer]:
    made = Consumer(bootstrap_servers="127.0.0.1:1", group_id="g", retry_topics=True, retry_backoff_ms=1)
    try:
        yield made
    finally:
        made.close(0)


def seek_in_the_listener(consumer: Consumer, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    core = consumer._consumer
    monkeypatch.setattr(core.core.network, "call", broker.call)
    monkeypatch.setattr(core.core.network, "any_node", lambda: 0)
    with consumer._lock:
        core.fetching.assign([PLACE])
    consumer.seek(PLACE, 5)
    with consumer._lock:
        reading = core.fetching.readings[PLACE]
        reading.ready = [ConsumerRecord("t", 0, at, 0, 0, b"k", b"v", (), 0) for at in range(5, 8)]
        reading.next_after_ready = 8


def given(consumer: Consumer) -> list[ConsumerRecord]:
    core = consumer._consumer
    with consumer._lock:
        core.core.scheduler.advance(time.monotonic())
        taken: Any = core.take(10)
        plan = core.plan(taken)
        records = taken if plan is None else plan.given
        return [each for some in records.values() for each in some]


def wait_for(consumer: Consumer) -> list[ConsumerRecord]:
    until_s = time.monotonic() + 10
    while not (found := given(consumer)):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    return found


@pytest.mark.parametrize("is_by_key", [False, True])
def test_after_a_seek_in_the_first_listener_a_failed_record_is_kept(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch, is_by_key: bool
) -> None:
    broker = Broker(ORDERED | {"retry.ordered.by.key": str(is_by_key).lower()})
    seek_in_the_listener(consumer, broker, monkeypatch)
    until_s = time.monotonic() + 10
    while broker.asked < 3:
        assert given(consumer) == []
        assert time.monotonic() < until_s
        time.sleep(0.01)
    broker.is_up = True
    records = wait_for(consumer)
    assert [each.offset for each in records] == [5]
    with consumer._lock:
        marks = consumer._consumer.keep(records[0])
    assert marks is not None
    assert marks[PLACE].offset == 5
    assert given(consumer) == []


def test_a_topic_without_retries_is_given_as_it_is(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(None)
    broker.is_up = True
    seek_in_the_listener(consumer, broker, monkeypatch)
    assert [each.offset for each in wait_for(consumer)] == [5, 6, 7]
    with consumer._lock:
        assert consumer._consumer.keep(ConsumerRecord("t", 0, 5, 0, 0, b"k", b"v", (), 0)) is None
    consumer.seek(PLACE, 5)
    assert broker.asked == 1


def test_settings_that_may_not_be_read_are_an_error_of_poll(
    consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(ORDERED)

    async def refuse(_node: int, key: ApiKey, _request: object) -> _Answer:
        if key is not ApiKey.DESCRIBE_CONFIGS:
            raise error_of(ErrorCode.REQUEST_TIMED_OUT, "not yet")
        return _Answer((_Result(ErrorCode.TOPIC_AUTHORIZATION_FAILED, (), "no"),))

    broker.call = refuse  # type: ignore[method-assign]
    seek_in_the_listener(consumer, broker, monkeypatch)
    with pytest.raises(BrokerError, match="no"):
        consumer.poll(10_000)


def test_marks_of_before_a_seek_do_not_count(consumer: Consumer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets were asked for before the seek, and are answered after it."""
    broker = Broker(ORDERED)
    broker.is_up = True
    core = consumer._consumer

    async def committed(_places: object, _timeout_s: float) -> dict[TopicPartition, OffsetAndMetadata]:
        return {PLACE: OffsetAndMetadata(5, "again:5:2")}

    monkeypatch.setattr(core, "committed", committed)
    seek_in_the_listener(consumer, broker, monkeypatch)
    consumer._io.call(core._committed([PLACE]), 5, "committed")
    (found,) = wait_for(consumer)
    assert not [value for name, value in found.headers if name == "retry.attempts"]
