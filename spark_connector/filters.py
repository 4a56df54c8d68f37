"""Spark's filters as constraints on what is read.

A filter on topic, partition or offset is done by reading nothing else, so Spark need not look again. One on the
timestamp is done too, and left to Spark besides: the values of another session's time zone are nobody's to guess.
Everything else is Spark's.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import VariantVal

from spark_connector.constraints import Constraints

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_NEVER_NULL: Final = ("topic", "partition", "offset", "timestamp", "timestampType")
_to_python: Final = VariantVal.toPython


def hold_any_time() -> None:
    """Has PySpark hand over conditions with times that Python's datetime cannot hold; they say nothing then.

    In UTC `timestamp < '9999-12-31 23:59'` of a session west of Greenwich lies in the year 10000, and PySpark fails
    before it asks a source anything. With None in its place the condition is Spark's alone.
    """

    def held(value: VariantVal) -> Any:
        try:
            return _to_python(value)
        except OverflowError:
            return None

    VariantVal.toPython = held  # type: ignore[assignment,method-assign]


def constrain(filters: Iterable[Filter]) -> tuple[Constraints, list[Filter]]:
    """The constraints that follow from filters which all hold, and the filters that Spark must still apply."""
    constraints, left = Constraints(), []
    for each in filters:
        narrowed = _narrowed(constraints, each)
        if narrowed is not None:
            constraints = narrowed
        if narrowed is None or _column(each) == "timestamp":
            left.append(each)
    return constraints, left


def _column(condition: Any) -> str | None:
    attribute = getattr(condition, "attribute", None)
    return attribute[0] if attribute is not None and len(attribute) == 1 else None


def _narrowed(constraints: Constraints, condition: Filter) -> Constraints | None:
    """`constraints` and the filter; None where the filter says nothing that can be read by."""
    column = _column(condition)
    if isinstance(condition, IsNotNull):
        return constraints if column in _NEVER_NULL else None
    if isinstance(condition, In):
        if column == "topic" and all(isinstance(value, str) for value in condition.value):
            return constraints.with_topics(condition.value)
        if column == "partition" and all(_is_integer(value) for value in condition.value):
            return constraints.with_partitions(condition.value)
        return None
    value = getattr(condition, "value", None)
    if isinstance(condition, EqualTo | EqualNullSafe):
        if column == "topic" and isinstance(value, str):
            return constraints.with_topics((value,))
        if column == "partition" and isinstance(value, int) and not isinstance(value, bool):
            return constraints.with_partitions((value,))
    bounds = _bounds(condition, _ordinal(column, value))
    if bounds is None:
        return None
    first, until = bounds
    if column == "timestamp":
        return constraints.with_timestamps_us(first, until)
    return constraints.with_offsets(
        **({} if first is None else {"first": first}), **({} if until is None else {"until": until})
    )


def _ordinal(column: str | None, value: Any) -> int | None:
    """The value of an offset, or of a timestamp in microseconds; None for anything else."""
    if column == "offset" and _is_integer(value):
        return int(value)
    if column == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // _MICROSECOND
    return None


def _bounds(condition: Filter, value: int | None) -> tuple[int | None, int | None] | None:
    if value is None:
        return None
    match condition:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, None
        case GreaterThanOrEqual():
            return value, None
        case LessThan():
            return None, value
        case LessThanOrEqual():
            return None, value + 1
    return None


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
