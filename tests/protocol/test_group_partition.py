"""A group lies in the partition in which Kafka's clients and tools look for it."""

from __future__ import annotations

import pytest

from appliance.protocol.group_partition import group_partition, java_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("my-group", -1906497762),
        ("polygenelubricants", -(2**31)),
        ("é", 233),
        ("\U0001f600", 1772899),
    ],
)
def test_hash_is_that_of_a_java_string(text: str, expected: int) -> None:
    assert java_hash(text) == expected


def test_partition_is_never_negative() -> None:
    assert group_partition("polygenelubricants", 50) == 0
    assert group_partition("my-group", 50) == 12
