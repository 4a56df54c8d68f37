"""What becomes of a record that a consumer hands back, as a value: no broker, no clock."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from appliance.delivery.division import RefusedDelay, Rules
from appliance.delivery.waiting import HANDED_BACK, Waiting
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records import batch as b
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, decode_records, encode_batch
from appliance.retries.handed_back import HandedBack, hand_back, handed_back_of
from appliance.retries.rules import DeadLetters, RetryRules

NOW_MS = 1_000_000
RETRY_ID, DEAD_ID = UUID(int=7), UUID(int=8)
RULES = RetryRules(
    RETRY_ID, "orders.g.retry", 4, "orders", "g", (5_000, 10_000), 3, True, DeadLetters(DEAD_ID, 2)
)
SIZES = Rules(4 << 20, 16 << 20, False, True, 10**12)
FIRST = (("retry.topic", b"orders"), ("retry.partition", b"6"), ("retry.offset", b"77"))


def one(*headers: tuple[str, bytes | None], rules: RetryRules = RULES) -> HandedBack:
    return handed_back_of(Record(b"v", b"k", headers, 5), rules, now_ms=NOW_MS)


def again(waiting: Waiting, *added: tuple[str, bytes | None], rules: RetryRules = RULES) -> HandedBack:
    """The record as it was delivered, handed back with its headers."""
    headers = (*waiting.to_deliver(NOW_MS).headers, *added)
    return handed_back_of(Record(b"v", b"k", headers, 5), rules, now_ms=NOW_MS)


def headers_of(waiting: Waiting) -> dict[str, Any]:
    return {name: (value or b"").decode() for name, value in waiting.to_deliver(NOW_MS).headers}


def test_each_time_it_comes_later_and_past_the_maximum_it_is_dead() -> None:
    handed = one(*FIRST, ("mine", b"1"))
    waits = []
    for _ in range(3):
        waits.append(handed.due.wait_ms)
        waiting = handed.waiting(0, 500)
        assert (waiting.topic_id, waiting.partition) == (RETRY_ID, 6 % 4)
        handed = again(waiting, ("retry.exception", b"ValueError"))
    assert waits == [5_000, 10_000, 10_000]
    dead = handed.waiting(0, 501)
    assert (dead.topic_id, dead.partition, handed.due.wait_ms) == (DEAD_ID, 6 % 2, 0)
    said = headers_of(dead)
    assert said["mine"] == "1"
    assert said["__dlq.errors.topic"] == "orders"
    assert said["__dlq.errors.partition"] == "6"
    assert said["__dlq.errors.offset"] == "77"
    assert said["__dlq.errors.group"] == "g"
    assert said["__dlq.errors.delivery.count"] == "4"
    assert said["__dlq.errors.exception"] == "ValueError"
    assert "retry.max is 3" in said["__dlq.errors.message"]
    assert not any(name.startswith("retry.") for name in said)


def test_a_group_may_allow_no_retry_at_all() -> None:
    assert one(*FIRST, rules=RULES._replace(retries_max=0)).waiting(0, 1).topic_id == DEAD_ID


def test_a_rejected_record_is_dead_at_once_with_the_consumers_reason() -> None:
    waiting = one(*FIRST, ("retry.dead", b"true"), ("retry.reason", b"does not parse")).waiting(0, 1)
    assert waiting.topic_id == DEAD_ID
    assert headers_of(waiting)["__dlq.errors.message"] == "does not parse"


def test_what_the_consumer_does_not_say_the_broker_fills_in() -> None:
    said = headers_of(one().waiting(3, 500))
    assert (said["retry.topic"], said["retry.partition"], said["retry.offset"]) == (
        "orders.g.retry",
        "3",
        "500",
    )
    assert (said["retry.attempts"], said["retry.group"]) == ("1", "g")
    assert (said["retry.first.failed.timestamp"], said["retry.last.failed.timestamp"]) == (str(NOW_MS),) * 2
    assert headers_of(one(*FIRST[1:]).waiting(0, 1))["retry.topic"] == "orders"


def test_the_same_delivery_handed_back_twice_is_recognized_and_the_next_one_is_not() -> None:
    first = one(*FIRST).waiting(0, 500)
    second = one(*FIRST, ("retry.reason", b"another")).waiting(3, 900)
    assert first.origin == second.origin
    assert (first.topic_id, first.partition) == (second.topic_id, second.partition), (
        "so one forwarder sees both"
    )
    assert first.origin.producer_epoch == HANDED_BACK
    others = [
        again(first).waiting(0, 1),
        one(("retry.topic", b"orders"), ("retry.partition", b"6"), ("retry.offset", b"78")).waiting(0, 1),
        one(*FIRST, ("retry.replay", b"1"), ("retry.replays", b"1")).waiting(0, 1),
    ]
    assert len({first.origin, *(each.origin for each in others)}) == 4


def test_a_topic_that_was_created_again_has_other_records_at_the_same_offsets() -> None:
    old, new = RULES._replace(source_id="old"), RULES._replace(source_id="new")
    before = one(*FIRST, rules=old).waiting(0, 1)
    assert one(*FIRST, rules=new).waiting(0, 2).origin != before.origin, "it would be dropped as known"
    # What was handed back before keeps the id, so a consumer that dies hands the same delivery back.
    assert headers_of(before)["retry.topic.id"] == "old"
    later = [again(before, rules=rules).waiting(0, 3) for rules in (old, new)]
    assert later[0].origin == later[1].origin
    assert one(*FIRST, rules=new).waiting(0, 2).origin != later[0].origin
    dead = again(before, ("retry.dead", b"true"), rules=new).waiting(0, 4)
    assert headers_of(dead)["__dlq.errors.topic.id"] == "old"
    copied = one(*FIRST, ("retry.group", b"other"), ("retry.topic.id", b"old"), rules=new).waiting(3, 9)
    assert "retry.topic.id" not in headers_of(copied), "of another record"


def test_no_header_names_a_target() -> None:
    forged = [
        ("retry.topic", b"secrets"),
        ("retry.partition", b"0"),
        ("retry.offset", b"0"),
        ("retry.group", b"other"),
        ("__dlq.errors.topic", b"secrets"),
        ("kafka_dlt-original-topic", b"secrets"),
        ("__delayed", b"1,00,0,0,0,0,-1,-1,-1"),
    ]
    waiting = one(*forged).waiting(0, 1)
    assert (waiting.topic_id, waiting.partition) == (RETRY_ID, 0)
    assert headers_of(waiting)["retry.group"] == "g"
    assert one(*forged, ("retry.dead", b"true")).waiting(0, 1).topic_id == DEAD_ID


def test_a_count_that_cannot_be_read_makes_a_dead_letter_and_no_endless_loop() -> None:
    waiting = one(*FIRST, ("retry.attempts", b"x")).waiting(0, 1)
    assert waiting.topic_id == DEAD_ID
    assert "retry.attempts" in headers_of(waiting)["__dlq.errors.message"]
    lost = one(("retry.topic", b"orders.g.retry"), ("retry.partition", b"0"), ("retry.offset", b"9"))
    assert "copy" in headers_of(lost.waiting(0, 1))["__dlq.errors.message"]


def test_the_message_of_a_dead_letter_names_a_fault_beside_the_consumers_reason() -> None:
    """Consumers give a reason at each failure. It says why the record failed, and not why it comes no more."""
    why = ("retry.reason", b"no such customer")
    lost = (("retry.topic", b"orders.g.retry"), ("retry.partition", b"0"), ("retry.offset", b"9"))
    for headers, fault in (((*FIRST, ("retry.attempts", b"x")), "retry.attempts"), (lost, "copy")):
        message = headers_of(one(*headers, why).waiting(0, 1))["__dlq.errors.message"]
        assert fault in message
        assert message.endswith("(retry.reason: no such customer)")
    for header in (("retry.attempts", b"900"), ("retry.dead", b"true")):
        said = headers_of(one(*FIRST, header, why).waiting(0, 1))
        assert said["__dlq.errors.message"] == "no such customer"


def test_without_a_dead_letter_topic_a_dead_record_comes_again_on_the_last_level() -> None:
    rules = RULES._replace(dead_letters=None)
    for headers in ([("retry.attempts", b"900")], [("retry.dead", b"true")], [("retry.attempts", b"x")]):
        handed = one(*FIRST, *headers, rules=rules)
        assert (handed.waiting(0, 1).topic_id, handed.due.wait_ms) == (RETRY_ID, 10_000)


def test_a_replayed_dead_letter_comes_at_once_and_may_fail_as_often_as_at_first() -> None:
    handed = one(*FIRST, ("retry.replay", b"1"), ("retry.replays", b"2"))
    said = headers_of(handed.waiting(0, 1))
    assert (said["retry.attempts"], said["retry.replays"], handed.due.wait_ms) == ("0", "2", 0)
    assert "retry.replay" not in said
    assert again(handed.waiting(0, 1)).due.wait_ms == 5_000


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_a_batch_keeps_no_record_and_all_its_offsets(codec: Codec) -> None:
    records = [Record(b"%d" % number, None, FIRST) for number in range(5)]
    batch = encode_batch(records, codec=codec, producer_id=9, producer_epoch=0, base_sequence=40)
    division = hand_back(memoryview(batch), SIZES, RULES, now_ms=NOW_MS)
    assert division is not None
    header = b.read_header(memoryview(division.kept))
    assert (header.records_count, header.last_offset_delta, header.base_sequence) == (0, 4, 40)
    assert decode_records(memoryview(division.kept)) == []
    assert [each.waiting(0, 0).record.value for each in division.redirected] == [
        b"%d" % number for number in range(5)
    ]
    assert len(division.redirected) == 5


def test_what_is_refused_says_why() -> None:
    batch = memoryview(encode_batch([Record(b"v", None, FIRST)]))
    with pytest.raises(RefusedDelay, match="disabled") as refused:
        hand_back(batch, SIZES, RULES._replace(is_enabled=False), now_ms=NOW_MS)
    assert refused.value.code is ErrorCode.POLICY_VIOLATION
    in_order = RULES._replace(is_ordered=True)
    with pytest.raises(RefusedDelay, match=r"retry\.ordered"):
        hand_back(batch, SIZES, in_order, now_ms=NOW_MS)
    for name in ("retry.dead", "retry.replay"):
        taken = memoryview(encode_batch([Record(b"v", None, (*FIRST, (name, b"true")))]))
        assert hand_back(taken, SIZES, in_order, now_ms=NOW_MS) is not None
    large = memoryview(encode_batch([Record(b"v" * (3 << 20), None, FIRST)]))
    with pytest.raises(RefusedDelay, match="bytes") as refused:
        hand_back(large, SIZES, RULES, now_ms=NOW_MS)
    assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
    assert hand_back(memoryview(bytes(batch)[:-1]), SIZES, RULES, now_ms=NOW_MS) is None


@pytest.mark.parametrize("name", ["delivery.cancel", "delivery.delay", "delivery.at"])
def test_headers_of_delayed_delivery_do_nothing_to_a_record_that_was_handed_back(name: str) -> None:
    waiting = one(*FIRST, (name, b"7")).waiting(0, 1)
    assert waiting.cancels is None, "it would cancel others, and be lost"
    assert waiting.delay_ms == 5_000
    assert name not in headers_of(waiting)


def test_what_a_clock_that_was_set_back_leaves_of_the_delay_is_known() -> None:
    for handed in (one(*FIRST), one(*FIRST, ("retry.dead", b"true"))):
        assert handed.waiting(0, 1).delay_ms == handed.due.wait_ms


@pytest.mark.parametrize(
    "copied",
    [
        (("retry.topic", b"clicks"), ("retry.partition", b"6"), ("retry.offset", b"77")),
        (*FIRST, ("retry.group", b"other")),
        (
            ("kafka_original-topic", b"clicks"),
            ("kafka_original-partition", bytes(4)),
            ("kafka_original-offset", bytes(8)),
        ),
    ],
)
def test_records_with_the_history_of_another_record_are_not_taken_for_one(
    copied: tuple[tuple[str, bytes], ...],
) -> None:
    """A program that makes three records out of one copies its headers to each."""
    made = [one(*copied, ("retry.attempts", b"1")).waiting(0, offset) for offset in (500, 501, 502)]
    assert len({each.origin for each in made}) == 3
    assert {headers_of(each)["retry.topic"] for each in made} == {"orders.g.retry"}


def test_attempts_of_another_group_do_not_count() -> None:
    assert one(*FIRST, ("retry.group", b"other"), ("retry.attempts", b"3")).waiting(0, 1).topic_id == RETRY_ID
    assert one(*FIRST, ("retry.group", b"g"), ("retry.attempts", b"3")).waiting(0, 1).topic_id == DEAD_ID


def test_a_replayed_dead_letter_without_its_first_place_may_fail_as_often_as_at_first() -> None:
    place = (("retry.topic", b"orders.g.retry"), ("retry.partition", b"0"), ("retry.offset", b"9"))
    replayed = one(*place, ("retry.replay", b"1"), ("retry.replays", b"1"))
    assert again(replayed.waiting(0, 1)).waiting(0, 2).topic_id == RETRY_ID
