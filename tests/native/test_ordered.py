"""What a consumer keeps of a group that asks for the order: no broker, no clock."""

from __future__ import annotations

import pytest

from appliance_client.ordered import Again, Ordered, Rules, rules_of
from appliance_client.values import ConsumerRecord, OffsetAndMetadata, TopicPartition

PLACE = TopicPartition("t", 0)
SETTINGS: dict[str, str | None] = {
    "retry.ordered": "true",
    "retry.group": "g",
    "retry.levels": "500ms, 2m",
    "retry.max": "3",
}


def ordered() -> Ordered:
    made = Ordered()
    rules = rules_of(SETTINGS)
    assert rules is not None
    made.rules["t"] = rules
    return made


def record(offset: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, offset, 0, 0, None, b"v", (), 0)


def test_settings_that_do_not_ask_for_the_order_have_no_rules() -> None:
    assert rules_of(SETTINGS) == Rules((0.5, 120.0), 3)
    assert rules_of({**SETTINGS, "retry.ordered": "false"}) is None
    assert rules_of({**SETTINGS, "retry.group": ""}) is None
    assert rules_of({}) is None


def test_a_record_that_fails_waits_longer_each_time_and_past_the_maximum_no_more() -> None:
    kept = ordered()
    waits = []
    for times in (1, 2, 3):
        assert kept.failed(record(7)) == Again(7, times)
        waits.append(kept.rules["t"].wait_s(times))
        assert kept.text(PLACE, 7) == f"again:7:{times}"
    assert waits == [0.5, 120.0, 120.0]
    assert kept.failed(record(7)) is None
    assert kept.text(PLACE, 7) == ""


def test_the_next_consumer_knows_how_often_the_record_has_failed() -> None:
    kept = ordered()
    assert kept.found(PLACE, OffsetAndMetadata(7, "again:7:2")) == 120.0
    given = record(7)
    kept.give(PLACE, given)
    assert dict(given.headers) == {"retry.attempts": b"2"}
    assert kept.failed(given) == Again(7, 3)


def test_a_record_that_was_processed_is_forgotten() -> None:
    kept = ordered()
    kept.failed(record(7))
    after = record(8)
    kept.give(PLACE, after)
    assert after.headers == ()
    assert kept.failed(record(8)) == Again(8, 1)


@pytest.mark.parametrize(
    "committed", [None, OffsetAndMetadata(7), OffsetAndMetadata(7, "mine"), OffsetAndMetadata(8, "again:7:1")]
)
def test_what_is_no_mark_of_the_next_record_does_not_count(committed: OffsetAndMetadata | None) -> None:
    kept = ordered()
    assert kept.found(PLACE, committed) == 0.0
    assert kept.failed(record(7)) == Again(7, 1)
