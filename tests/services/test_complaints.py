"""What a services process says to the operator."""

from __future__ import annotations

from appliance.clock import NS_PER_MS, ManualClock
from appliance.services.complaints import INTERVAL_MS, LINES_MAX, PLACES_MAX, Complaints, Drops


def test_no_line_hides_behind_another_one_and_each_is_said_once_in_a_while() -> None:
    clock, lines = ManualClock(), list[str]()
    complaints = Complaints(lines.append, clock)
    assert complaints("the disk is full")
    assert complaints("t-0: its last records were lost")
    assert not complaints("the disk is full")
    clock.advance(INTERVAL_MS)
    assert complaints("the disk is full")
    assert lines == ["the disk is full", "t-0: its last records were lost", "the disk is full"]


def test_lines_are_bounded() -> None:
    clock, lines = ManualClock(), list[str]()
    complaints = Complaints(lines.append, clock)
    for number in range(3 * LINES_MAX):
        complaints(f"line {number}")
    assert len(lines) == LINES_MAX + 1
    clock.advance(INTERVAL_MS)
    assert complaints("line 7")


def said(drops: Drops, now_ns: int, *, is_last: bool = False) -> list[str]:
    lines: list[str] = []
    drops.tell(lines.append, now_ns, is_last=is_last)
    return lines


def test_dropped_records_are_named_by_partition_and_reason_soon() -> None:
    drops = Drops()
    assert (said(drops, 0), drops.wait_ms(0)) == ([], None)
    drops.add(500, "their topic was deleted")
    for _ in range(50):
        drops.add(1, "the topic refuses them: MESSAGE_TOO_LARGE", place=("orders", 3))
    assert said(drops, 0) == []
    wait_ms = drops.wait_ms(0)
    assert wait_ms is not None
    assert said(drops, wait_ms * NS_PER_MS) == [
        "500 delayed records were dropped, because their topic was deleted",
        "partition orders-3: 50 delayed records were dropped, because the topic refuses them: MESSAGE_TOO_LARGE",
    ]
    assert drops.wait_ms(0) is None
    drops.add(1, "the topic refuses them: INVALID_RECORD", place=("orders", 3))
    assert said(drops, wait_ms * NS_PER_MS) == []
    assert said(drops, (wait_ms + INTERVAL_MS) * NS_PER_MS) == [
        "partition orders-3: 1 delayed records were dropped, because the topic refuses them: INVALID_RECORD"
    ]
    assert drops.total == 551


def test_dropped_records_are_named_at_the_end_and_partitions_are_bounded() -> None:
    drops = Drops()
    for number in range(PLACES_MAX + 7):
        drops.add(2, "their topic was deleted", place=("t", number))
    lines = said(drops, 0, is_last=True)
    assert len(lines) == PLACES_MAX + 1
    assert lines[-1] == "… and 14 more dropped delayed records in the last 10 s"
    assert said(drops, 0, is_last=True) == []
