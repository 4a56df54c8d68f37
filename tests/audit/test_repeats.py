"""How many entries of one principal are recorded: the rest is counted, and nothing of it grows."""

from __future__ import annotations

from appliance.audit.repeats import INTERVAL_NS, OTHERS, PRINCIPALS_MAX, LeftOut, Repeats


def test_so_many_are_recorded_in_an_interval_and_the_others_counted() -> None:
    repeats = Repeats(3)
    assert [repeats.may_record("refusal", "User:a", 0) for _ in range(5)] == [True] * 3 + [False] * 2
    assert repeats.may_record("refusal", "User:b", 0)
    assert repeats.may_record("authentication", "User:a", 0)
    assert repeats.over(INTERVAL_NS - 1) == []
    assert repeats.over(INTERVAL_NS) == [LeftOut("refusal", "User:a", 2)]
    assert len(repeats) == 0
    assert repeats.may_record("refusal", "User:a", INTERVAL_NS)


def test_many_principals_cost_no_more_than_some() -> None:
    repeats = Repeats(1)
    for number in range(3 * PRINCIPALS_MAX):
        repeats.may_record("refusal", f"User:{number}", 0)
    assert len(repeats) <= PRINCIPALS_MAX + 1
    assert repeats.rest() == [LeftOut("refusal", OTHERS, 2 * PRINCIPALS_MAX - 1)]
