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
    [(1, "5s"), (5_000, "5s"), (9_999, "5s"), (10_000, "10s"), (17_000, "10s"), (10_000_000, "30s")],
)
def test_an_exact_delay_takes_the_last_level_that_is_not_longer(delay_ms: int, level: str) -> None:
    levels = Levels(["5s", "10s", "30s"])
    assert levels.names[levels.of(delay_ms, is_exact=True)] == level


def test_each_level_has_a_topic() -> None:
    levels = Levels(["500ms", "2h"])
    assert levels.topics == ("__delayed_500ms", "__delayed_2h", "__delayed_transactions", "__delayed_cancels")
    assert levels.delays_ms == (500, 7_200_000, 0, 0)
    assert levels.topics[levels.transactions] == "__delayed_transactions"
    assert levels.topics[levels.cancels] == "__delayed_cancels"


@pytest.mark.parametrize(
    "names",
    [
        ["5"],
        ["s"],
        ["5x"],
        ["0s"],
        ["05s"],
        ["-1s"],
        ["8d"],
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


def test_exact_levels_are_for_exact_delays_only() -> None:
    levels = Levels(["5s", "10s"], ["10ms", "1s", "5000ms"])
    assert levels.names == ("10ms", "1s", "5s", "10s", "transactions", "cancels")
    assert [levels.names[levels.of(delay)] for delay in (1, 5_001)] == ["5s", "10s"]
    assert [levels.names[levels.of(delay, is_exact=True)] for delay in (1, 999, 1_500, 7_000)] == [
        "10ms",
        "10ms",
        "1s",
        "5s",
    ]
