"""The short way of a record: what takes it, and that what does not has changed nothing."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from appliance_client.accumulator import Accumulator
from appliance_client.intake import Intake, Sticky
from appliance_client.kernel import partition_of_key
from appliance_client.network import Leader, Topic
from appliance_client.wire import TopicKey


class Stand:
    """An intake over a topic of three partitions, one that is refused, and one that has none."""

    def __init__(
        self, memory_bytes: int = 1_000_000, *, sticky: bool = True, by_murmur2: bool = True
    ) -> None:
        leaders = [Leader(1, 0)] * 3
        topics = {
            "topic": Topic(TopicKey("topic", UUID(int=1)), leaders),
            "refused": Topic(TopicKey("refused", UUID(int=2)), leaders, error_code=29),
            "empty": Topic(TopicKey("empty", UUID(int=3)), []),
        }
        self.wakes = 0
        self.accumulator = Accumulator(1_000, memory_bytes, 0.005)
        self.intake = Intake(
            self.accumulator, topics, Sticky(1_000) if sticky else None, by_murmur2, 500, self._wake
        )

    def _wake(self) -> None:
        self.wakes += 1

    def offer(self, topic: str = "topic", value: Any = b"v", key: Any = None, *rest: Any) -> Any:
        partition, time_ms = (*rest, None, None)[:2]
        return self.intake.offer(topic, value, key, partition, time_ms)


def test_a_record_lies_where_its_key_says_with_its_own_time() -> None:
    stand = Stand()
    assert stand.offer("topic", b"v", b"key", None, 17)
    (batch,) = stand.accumulator.incomplete.values()
    assert batch.queue.partition == partition_of_key(b"key", 3)
    assert (batch.records.keys, batch.records.values, batch.records.times_ms) == ([b"key"], [b"v"], [17])


def test_records_without_a_key_fill_a_batch_before_they_go_elsewhere() -> None:
    stand = Stand()
    for _ in range(100):
        assert stand.offer(value=b"x" * 79)
    batches = list(stand.accumulator.incomplete.values())
    assert {batch.queue.partition for batch in batches} == {0, 1, 2}
    assert len(batches) < 25, "ten records fill a batch"


@pytest.mark.parametrize(
    "record",
    [
        ("topic", "text"),
        ("topic", bytearray(b"v")),
        ("topic", b"v", "text"),
        ("topic", b"v", None, 3),
        ("topic", b"v", None, -1),
        ("topic", b"v", None, "1"),
        ("topic", b"v", None, 0, 1.5),
        ("topic", b"x" * 600),
        ("unknown", b"v"),
        ("refused", b"v"),
        ("empty", b"v"),
    ],
)
def test_what_needs_the_whole_way_leaves_nothing_behind(record: tuple[Any, ...]) -> None:
    stand = Stand()
    assert stand.offer(*record) is None
    assert stand.accumulator.used_bytes == 0
    assert not stand.accumulator.incomplete


def test_another_partitioner_is_asked_where_no_rule_of_kafkas_decides() -> None:
    assert Stand(sticky=False).offer(key=b"key")
    assert Stand(sticky=False).offer() is None
    assert Stand(sticky=False, by_murmur2=False).offer(key=b"key") is None


def test_a_closed_intake_takes_nothing() -> None:
    stand = Stand()
    stand.intake.close()
    assert stand.offer() is None
    assert not stand.accumulator.incomplete


def test_where_memory_is_full_the_record_is_not_taken() -> None:
    stand = Stand(memory_bytes=300)
    assert stand.offer("topic", b"x" * 100, None, 0)
    assert stand.offer("topic", b"x" * 200, None, 0) is None
    assert stand.accumulator.used_bytes == 61 + 121


def test_a_batch_that_is_full_wakes_the_sender_that_sleeps() -> None:
    stand = Stand()
    assert stand.offer("topic", b"x", None, 0)
    stand.accumulator.has_news = False
    assert stand.accumulator.sleep_until(1e12)
    for _ in range(20):
        assert stand.offer("topic", b"x" * 100, None, 0)
    assert stand.wakes == 1, "it is at work after that, and looks anyway"
