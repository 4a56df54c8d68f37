"""Bounded reads of topics into Arrow, without a consumer of one's own. `Consumer.poll_arrow` reads without end.

from appliance_client.arrow import read_arrow

frame = read_arrow("greetings", bootstrap_servers="localhost:9092").to_pandas()
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import index
from typing import Any, Final

import pyarrow as pa

from appliance_client.arrow_reading import SCHEMA, schema_of
from appliance_client.consumer import Consumer
from appliance_client.errors import OptionError, TimedOutError
from appliance_client.values import TopicPartition

__all__ = ["SCHEMA", "read_arrow", "read_arrow_batches"]

Place = str | int | datetime | Mapping[int, int]
"""earliest, latest, an offset, a time, or an offset for each partition."""

_POLL_MS: Final = 500
_TOPIC_MS: Final = 3000
"""A topic that does not exist after this time is a mistyped one."""
_1970: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_EDGES: Final = ("earliest", "latest")


def read_arrow(topic: str, **how: Any) -> pa.Table:
    """The records of a topic from `start` to `end`, as a table. Arguments as `read_arrow_batches`."""
    columns = how.get("columns")
    return pa.Table.from_batches(read_arrow_batches(topic, **how), schema_of(columns))


def read_arrow_batches(
    topic: str,
    *,
    start: Place = "earliest",
    end: Place = "latest",
    partitions: Iterable[int] | None = None,
    columns: Sequence[str] | None = None,
    max_records: int | None = None,
    **options: Any,
) -> Iterator[pa.RecordBatch]:
    """The same in record batches, for what does not fit into memory. The end is looked up once, at the beginning.

    Args:
        start, end: "earliest", "latest", an offset, a `datetime` (the first record at or after it; in UTC where it has
            no time zone), or an offset for each partition: all of a partition that is not named. `end` is exclusive;
            with read_committed "latest" is the last stable offset.
        columns: some of `SCHEMA`'s; others are not decoded.
        max_records: end after so many.
        options: those of a consumer, `bootstrap_servers` among them.

    Raises:
        OptionError: an argument cannot be used.
        BrokerError: there is no such topic. It is not created.
        TimedOutError: no progress for `default.api.timeout.ms`.
        ClientError: as `Consumer.poll`.
    """
    schema_of(columns)
    for name in (*options, *(options.get("config") or ())):
        if name in ("group_id", "group.id"):
            raise OptionError("read_arrow joins no group; use Consumer.poll_arrow")
    if max_records is not None and max_records < 0:
        raise OptionError(f"max_records is {max_records}: a number of records from 0 on, or None")
    own = {"auto_offset_reset": "none", "allow_auto_create_topics": False}
    with Consumer(**{**own, **options}) as consumer:
        yield from _read(consumer, topic, start, end, partitions, columns, max_records)


def _read(  # noqa: PLR0917
    consumer: Consumer,
    topic: str,
    start: Place,
    end: Place,
    partitions: Iterable[int] | None,
    columns: Sequence[str] | None,
    max_records: int | None,
) -> Iterator[pa.RecordBatch]:
    known = _partitions(consumer, topic)
    wanted = sorted(known if partitions is None else set(partitions))
    if unknown := set(wanted) - known:
        raise OptionError(f"{topic} has partitions 0 to {len(known) - 1}, not {min(unknown)}")
    for what, given in (("start", start), ("end", end)):
        strange = [each for each in given if each not in known] if isinstance(given, Mapping) else ()
        if strange:
            raise OptionError(f"{what} names {strange[0]!r}, which is no partition of {topic}")
    places = [TopicPartition(topic, each) for each in wanted]
    first = consumer.beginning_offsets(places)
    last = consumer.end_offsets(places)
    begins = _resolved(consumer, "start", start, first, last)
    # What was deleted meanwhile is no error of somebody who asks for all there is.
    begins = {place: min(max(begins[place], first[place]), last[place]) for place in places}
    ends = {place: min(at, last[place]) for place, at in _resolved(consumer, "end", end, first, last).items()}
    left = {place for place in places if begins[place] < ends[place]}
    consumer.assign(left)
    for place in left:
        consumer.seek(place, begins[place])
    consumer.read_until(ends)
    rows_left = max_records
    limit_s = consumer.default_timeout_s
    due_s = time.monotonic() + limit_s
    before: dict[TopicPartition, int] = {}
    while left and rows_left != 0:
        table = consumer.poll_arrow(_POLL_MS, rows_left, columns)
        if rows_left is not None:
            rows_left -= table.num_rows
        yield from table.to_batches()
        positions = {place: consumer.position(place) for place in left}
        done = [place for place, at in positions.items() if at >= ends[place]]
        if positions != before:
            before, due_s = positions, time.monotonic() + limit_s
        elif time.monotonic() > due_s:
            raise TimedOutError(f"{topic}: no records for {limit_s:.0f} s, at {positions} before {ends}")
        if done:
            consumer.pause(*done)
            left.difference_update(done)


def _partitions(consumer: Consumer, topic: str) -> set[int]:
    try:
        return consumer.partitions_for_topic(topic, _TOPIC_MS)
    except TimedOutError:  # nobody has answered, which may take longer
        return consumer.partitions_for_topic(topic)


def _resolved(
    consumer: Consumer,
    what: str,
    place: Place,
    first: dict[TopicPartition, int],
    last: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    if place == "earliest":
        return dict(first)
    if place == "latest":
        return dict(last)
    if isinstance(place, datetime):
        at = place if place.tzinfo is not None else place.replace(tzinfo=UTC)
        time_ms = -((_1970 - at) // _MS)  # up: a record of the millisecond that is going on is older
        found = consumer.offsets_for_times(dict.fromkeys(first, max(0, time_ms)))
        return {each: last[each] if at is None else at.offset for each, at in found.items()}
    if isinstance(place, Mapping):
        default = first if what == "start" else last
        return {each: _offset(what, place.get(each.partition, default[each])) for each in first}
    return dict.fromkeys(first, _offset(what, place))


def _offset(what: str, given: Any) -> int:
    try:
        offset = -1 if isinstance(given, bool) else index(given)
    except TypeError:
        offset = -1
    if offset < 0:
        raise OptionError(
            f"{what} is {given!r}: {', '.join(_EDGES)}, an offset from 0 on, a datetime or offsets by partition"
        )
    return offset
