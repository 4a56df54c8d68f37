"""What the checker finds in histories of records that consumers hand back: each anomaly, and none in a right one."""

from __future__ import annotations

import pytest

from tests.checker.retried_workload import LEVELS_MS, Delivery, RetriedHistory, find

# Records fail as often as their number says, modulo 6: the first one never, the second one twice, the last one 5 times.
VALUES = b"0", b"2", b"5"


def right() -> tuple[RetriedHistory, list[tuple[Delivery, int]]]:
    history = RetriedHistory()
    history.acknowledged = set(VALUES)
    history.processed.update({b"0": 1, b"2": 2})
    found = [(Delivery(value, attempts), 10_000) for value in VALUES[1:] for attempts in (1, 2)]
    found += [(Delivery(b"5", 3), 10_000), (Delivery(b"5", -1), 10_000)]
    history.handed_back_ms = {delivery: 10_000.0 - LEVELS_MS[-1] for delivery, _ in found}
    return history, found


def test_nothing_is_wrong_if_each_record_came_again_as_often_as_it_failed() -> None:
    assert find(*right(), is_clock_kept=True) == []


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda _, found: found.append(found[0]), "duplicated"),
        (lambda _, found: found.append(found[-1]), "duplicated"),
        (lambda _, found: found.pop(), "lost"),
        (lambda _, found: found.pop(0), "lost"),
        (lambda history, _: history.processed.pop(b"0"), "lost"),
        (lambda history, _: history.processed.update({b"5": 1}), "phantom"),
        (lambda _, found: found.append((Delivery(b"2", -1), 10_000)), "phantom"),
        (lambda _, found: found.append((Delivery(b"2", 3), 10_000)), "phantom"),
        (lambda history, _: history.handed_back_ms.update({Delivery(b"2", 2): 9_900.0}), "early"),
    ],
)
def test_each_anomaly_is_found(change: object, kind: str) -> None:
    history, found = right()
    assert callable(change)
    change(history, found)
    assert {each.kind for each in find(history, found, is_clock_kept=True)} == {kind}
