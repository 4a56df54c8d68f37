"""Open and ended transactions of a log, in the order of their first offsets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import ApplianceDefect
from appliance.log.open_transactions import NONE, OpenTransactions

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.just(0)),
        st.tuples(st.just("end"), st.integers(0, 300)),
        st.tuples(st.just("read"), st.integers(0, 60)),
    ),
    max_size=400,
)


@given(steps=STEPS)
@settings(max_examples=300, deadline=None)
def test_first_open_and_first_unstable_are_those_of_a_plain_search(steps: list[tuple[str, int]]) -> None:
    transactions = OpenTransactions({})
    open_ones: dict[int, int] = {}
    ended: dict[int, int] = {}
    log_end = high_watermark = 0
    for step, number in steps:
        if step == "begin":
            transactions.begin(log_end, number)
            open_ones[log_end] = number
            log_end += 1
        elif step == "end" and open_ones:
            first = sorted(open_ones)[number % len(open_ones)]
            transactions.end(first, log_end)
            del open_ones[first]
            ended[first] = log_end
            log_end += 1
        elif step == "read":
            high_watermark = max(high_watermark, log_end - number)
            unstable = [*open_ones, *(first for first, marker in ended.items() if marker >= high_watermark)]
            assert transactions.first_unstable(high_watermark) == min(unstable, default=NONE)
        assert transactions.first_open == min(open_ones, default=NONE)
        transactions.check(open_ones)
    undecided = transactions.ended()
    assert (
        {each for each in ended.items() if each[1] >= high_watermark} <= set(undecided) <= set(ended.items())
    )
    again = OpenTransactions(dict(reversed(list(open_ones.items()))), undecided)
    assert again.first_open == transactions.first_open
    assert again.first_unstable(high_watermark) == transactions.first_unstable(high_watermark)


def test_ended_transactions_behind_a_hanging_one_take_no_room() -> None:
    transactions = OpenTransactions({})
    transactions.begin(0, 1)
    for offset in range(1, 20_001, 2):
        transactions.begin(offset, 2)
        transactions.end(offset, offset + 1)
        assert transactions.first_unstable(offset + 2) == 0
    assert len(transactions) == 1
    assert transactions.ended() == []
    assert len(transactions._line) <= 65


def test_transaction_that_ends_above_the_high_watermark_holds_what_is_stable_back() -> None:
    transactions = OpenTransactions({})
    for first, producer in ((10, 1), (20, 2), (30, 3)):
        transactions.begin(first, producer)
    transactions.end(20, 40)
    transactions.end(10, 60)
    assert transactions.first_open == 30
    assert transactions.first_unstable(55) == 10
    assert transactions.first_unstable(60) == 10, "the marker is not below it"
    assert transactions.first_unstable(61) == 30


def test_disagreement_with_the_producers_is_a_defect() -> None:
    transactions = OpenTransactions({10: 1})
    transactions.check({10: 1})
    with pytest.raises(ApplianceDefect):
        transactions.check({10: 2})
    with pytest.raises(ApplianceDefect):
        transactions.check({10: 1, 20: 2})
