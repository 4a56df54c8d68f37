"""What Spark's filters say about what has to be read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql import datasource as f

from spark_connector.constraints import OFFSET_MAX, Constraints
from spark_connector.filters import constrain

NOW = datetime(2024, 5, 17, 12, 0, 0, 1500, tzinfo=UTC)
NOW_US = (NOW - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (f.EqualTo(("topic",), "orders"), Constraints(topics=frozenset({"orders"}))),
        (f.In(("topic",), ("a", "b")), Constraints(topics=frozenset({"a", "b"}))),
        (f.EqualNullSafe(("partition",), 3), Constraints(partitions=frozenset({3}))),
        (f.In(("partition",), (1, 3)), Constraints(partitions=frozenset({1, 3}))),
        (f.EqualTo(("offset",), 7), Constraints(offset_from=7, offset_until=8)),
        (f.GreaterThan(("offset",), 7), Constraints(offset_from=8)),
        (f.GreaterThanOrEqual(("offset",), -7), Constraints(offset_from=0)),
        (f.LessThan(("offset",), 7), Constraints(offset_until=7)),
        (f.LessThanOrEqual(("offset",), 7), Constraints(offset_until=8)),
        (f.IsNotNull(("offset",)), Constraints()),
    ],
)
def test_what_is_done_by_reading_is_not_left_to_spark(condition: f.Filter, expected: Constraints) -> None:
    assert constrain([condition]) == (expected, [])


@pytest.mark.parametrize(
    ("condition", "from_ms", "until_ms"),
    [
        (f.GreaterThan(("timestamp",), NOW), NOW_US // 1000 + 1, None),
        (f.GreaterThanOrEqual(("timestamp",), NOW), NOW_US // 1000 + 1, None),
        (f.GreaterThanOrEqual(("timestamp",), NOW - timedelta(microseconds=500)), NOW_US // 1000, None),
        (f.LessThan(("timestamp",), NOW), None, NOW_US // 1000 + 1),
        (f.LessThanOrEqual(("timestamp",), NOW - timedelta(microseconds=500)), None, NOW_US // 1000 + 1),
        (f.LessThan(("timestamp",), NOW - timedelta(microseconds=500)), None, NOW_US // 1000),
        (
            f.EqualTo(
                ("timestamp",), (NOW - timedelta(microseconds=500)).astimezone(timezone(timedelta(hours=5)))
            ),
            NOW_US // 1000,
            NOW_US // 1000 + 1,
        ),
    ],
)
def test_a_time_is_read_by_and_left_to_spark_besides(
    condition: f.Filter, from_ms: int | None, until_ms: int | None
) -> None:
    assert constrain([condition]) == (Constraints(from_ms=from_ms, until_ms=until_ms), [condition])


@pytest.mark.parametrize(
    "condition",
    [
        f.EqualTo(("key",), b"x"),
        f.EqualTo(("offset",), True),
        f.EqualTo(("offset",), None),
        f.EqualTo(("headers", "key"), "x"),
        f.In(("offset",), (1, 2)),
        f.In(("topic",), ("a", None)),
        f.GreaterThan(("topic",), "a"),
        f.GreaterThan(("partition",), 1),
        f.GreaterThan(("timestamp",), datetime(2024, 5, 17)),
        f.LessThan(("timestamp",), None),  # a time that Python cannot hold
        f.IsNotNull(("key",)),
        f.IsNull(("offset",)),
        f.Not(f.EqualTo(("offset",), 1)),
        f.StringStartsWith(("topic",), "o"),
    ],
)
def test_anything_else_is_sparks(condition: f.Filter) -> None:
    assert constrain([condition]) == (Constraints(), [condition])


def test_all_filters_hold() -> None:
    found, left = constrain(
        [
            f.GreaterThan(("offset",), 5),
            f.GreaterThan(("offset",), 3),
            f.LessThan(("offset",), 9),
            f.In(("partition",), (1, 2)),
            f.EqualTo(("partition",), 3),
            f.EqualTo(("topic",), "a"),
        ]
    )
    assert (found, left) == (
        Constraints(topics=frozenset({"a"}), partitions=frozenset(), offset_from=6, offset_until=9),
        [],
    )
    assert not found.allows("a", 3)
    assert found.offset_until < OFFSET_MAX
