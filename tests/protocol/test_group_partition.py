"""A group lies in the partition in which Kafka's clients and tools look for it."""

from __future__ import annotations

import tracemalloc

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


def test_long_ids_take_little_memory_and_are_hashed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def counted(text: str) -> int:
        hashed.append(text)
        return java_hash(text)

    monkeypatch.setattr("appliance.protocol.group_partition.java_hash", counted)
    long_ids = [f"{number}" + 3_000 * "g" for number in range(40)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        first = [group_partition(each, 50) for each in long_ids]
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()
    assert first == [abs(java_hash(each)) % 50 for each in long_ids]
    assert [group_partition(each, 50) for each in long_ids] == first
    assert hashed == long_ids


def test_longest_and_shortest_ids_agree_with_the_hash() -> None:
    for length in (127, 128, 129):
        assert group_partition(length * "z", 1_000_003) == abs(java_hash(length * "z")) % 1_000_003
