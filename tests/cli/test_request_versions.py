"""Which version of a request a command takes: the newest that it and the broker know."""

from __future__ import annotations

import pytest

from appliance.cli.request import TooOld, newest_shared
from appliance.protocol.api_versions import ApiKey

API = ApiKey.DESCRIBE_LOG_DIRS


@pytest.mark.parametrize(
    ("theirs", "oldest", "newest", "shared"),
    [((1, 5), 1, 4, 4), ((1, 4), 1, 4, 4), ((0, 2), 1, 4, 2), ((0, 1), 1, 4, 1), ((4, 9), 4, 4, 4)],
)
def test_newest_that_both_know_is_taken(
    theirs: tuple[int, int], oldest: int, newest: int, shared: int
) -> None:
    assert newest_shared("broker:9092", API, theirs, oldest=oldest, newest=newest) == shared


@pytest.mark.parametrize(
    ("theirs", "oldest", "reason"),
    [
        (None, 1, "broker:9092: this broker does not know the request DescribeLogDirs; the command needs it"),
        ((0, 0), 1, "knows DescribeLogDirs in versions 0 to 0; the command needs versions 1 to 4"),
        ((0, 3), 4, "knows DescribeLogDirs in versions 0 to 3; the command needs version 4"),
        ((6, 7), 1, "knows DescribeLogDirs in versions 6 to 7; the command needs versions 1 to 4"),
    ],
)
def test_broker_without_a_shared_version_is_named_with_what_is_needed(
    theirs: tuple[int, int] | None, oldest: int, reason: str
) -> None:
    with pytest.raises(TooOld) as refused:
        newest_shared("broker:9092", API, theirs, oldest=oldest, newest=4)
    assert reason in str(refused.value)
