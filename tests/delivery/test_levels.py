from __future__ import annotations

import pytest

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


def test_each_level_has_a_topic() -> None:
    assert Levels(["500ms", "2h"]).topics == ("__delayed_500ms", "__delayed_2h")
    assert Levels(["500ms", "2h"]).delays_ms == (500, 7_200_000)


@pytest.mark.parametrize(
    "names",
    [
        [],
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
