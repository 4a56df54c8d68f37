from __future__ import annotations

import pytest

from appliance.config import load_settings
from appliance.delivery.levels import Levels
from appliance.errors import ConfigurationError


@pytest.mark.parametrize(
    ("delay_ms", "level"),
    [(1, "5s"), (5_000, "5s"), (5_001, "10s"), (17_000, "30s"), (30_000, "30s"), (10_000_000, "30s")],
)
def test_a_delay_is_raised_to_the_next_level_and_a_longer_one_takes_the_largest(
    delay_ms: int, level: str
) -> None:
    levels = Levels(["5s", "10s", "30s"])
    assert levels.names[levels.of(delay_ms)] == level


@pytest.mark.parametrize(
    ("delay_ms", "level"),
    [(1, "exact_1m"), (60_000, "exact_1m"), (60_001, "exact_30d"), (1 << 40, "exact_30d")],
)
def test_an_exact_delay_waits_on_the_first_exact_level_that_is_not_shorter(delay_ms: int, level: str) -> None:
    levels = Levels(["5s", "10s"], ["1m", "30d"])
    number = levels.of(delay_ms, is_exact=True)
    assert levels.names[number] == level
    assert levels.is_exact(number)


def test_each_level_has_a_topic() -> None:
    levels = Levels(["500ms", "2h"], ["1d"])
    names = ("500ms", "2h", "exact_1d", "transactions", "cancels")
    assert levels.names == names
    assert levels.topics == tuple(f"__delayed_{name}" for name in names)
    assert levels.delays_ms == (500, 7_200_000, 86_400_000, 0, 0)
    assert levels.topics[levels.transactions] == "__delayed_transactions"
    assert levels.topics[levels.cancels] == "__delayed_cancels"
    assert [number for number in range(len(names)) if levels.is_exact(number)] == [2]


@pytest.mark.parametrize(
    "names",
    [
        ["5"],
        ["s"],
        ["5x"],
        ["0s"],
        ["05s"],
        ["-1s"],
        ["367d"],
        ["10s", "5s"],
        ["60s", "1m"],
        ["٥s"],
        ["1.5s"],
    ],
)
def test_what_is_no_ascending_list_of_durations_is_refused(names: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"delivery\.delay\.levels"):
        Levels(names)


def test_a_start_refuses_levels_that_cannot_be_meant() -> None:
    with pytest.raises(ConfigurationError, match="soon"):
        load_settings(None, {"delivery.delay.levels": "5s,soon"})
    with pytest.raises(ConfigurationError, match="empty"):
        load_settings(None, {"delivery.delay.levels": ""})
    with pytest.raises(ConfigurationError, match=r"exact\.levels must not be empty"):
        load_settings(None, {"delivery.delay.exact.levels": ""})


def test_exact_levels_are_for_exact_delays_only() -> None:
    levels = Levels(["5s", "10s"], ["1s", "10s"])
    assert [levels.names[levels.of(delay)] for delay in (1, 5_001, 1 << 40)] == ["5s", "10s", "10s"]
    assert not levels.is_exact(levels.transactions)
