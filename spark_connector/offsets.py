"""From options to partitions and offsets: which are chosen, where each begins, where each ends."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from spark_connector.bounds import end_offset, offset_for_timestamp
from spark_connector.directory import Directories, PartitionView, meant
from spark_connector.errors import DataLost, UnknownTopic
from spark_connector.option_values import InvalidOption
from spark_connector.options import EARLIEST, LATEST, Bound, Choice, Options, Way

Name = tuple[str, int]
"""Topic and partition."""

_INTERNAL: Final = ("__consumer_offsets", "__transaction_state")


def chosen(directories: Directories, choice: Choice) -> list[Name]:
    """The partitions that are asked for, in order.

    A pattern has to match the whole name, and never means an internal topic.

    Raises:
        UnknownTopic: a topic or partition that was named is not there.
    """
    topics = directories.topics()
    missing: list[str] = []
    if choice.partitions is not None:
        wanted = [(name, partition) for name, numbers in choice.partitions.items() for partition in numbers]
        missing = [
            f"{name}-{partition}" for name, partition in wanted if partition not in topics.get(name, ())
        ]
    elif choice.names is not None:
        missing = [name for name in choice.names if name not in topics]
    if missing:
        raise UnknownTopic(f"{', '.join(missing)}: not in {directories.where}{meant(missing[0], topics)}")
    return _among(topics, choice)


def chosen_there(directories: Directories, choice: Choice) -> list[Name]:
    """What of the partitions that are asked for is there, in order; one that is missing hides no other."""
    return _among(directories.topics(), choice)


def asks_for(choice: Choice, name: Name) -> bool:
    """Whether the partition is one of those asked for, there or not."""
    topic, partition = name
    if choice.partitions is not None:
        return partition in choice.partitions.get(topic, ())
    if choice.names is not None:
        return topic in choice.names
    assert choice.pattern is not None
    return topic not in _INTERNAL and re.fullmatch(choice.pattern, topic) is not None


def _among(topics: Mapping[str, Iterable[int]], choice: Choice) -> list[Name]:
    names = ((topic, partition) for topic, numbers in topics.items() for partition in numbers)
    return sorted(name for name in names if asks_for(choice, name))


def check_named(bound: Bound, names: Iterable[Name]) -> None:
    """Holds the partitions that a bound names against those that are read: they have to be the same.

    Raises:
        InvalidOption: one is missing, or named and not read.
    """
    if bound.way not in (Way.OFFSETS, Way.TIMESTAMPS):
        return
    given = {(topic, number) for topic, numbers in bound.numbers.items() for number in numbers}
    wanted = set(names)
    if given != wanted:
        missing = ", ".join(f"{topic}-{number}" for topic, number in sorted(wanted - given))
        surplus = ", ".join(f"{topic}-{number}" for topic, number in sorted(given - wanted))
        parts = [f"does not name {missing}"] * bool(missing) + [f"names {surplus}, not read"] * bool(surplus)
        raise InvalidOption(bound.option, "has to name every partition: " + "; ".join(parts))


def start_of(view: PartitionView, options: Options) -> int:
    """The first offset to read, as the options say it; it may lie outside of the log.

    Raises:
        InvalidOption: no record is as late as the timestamp that was given.
    """
    bound = options.starting
    number = bound.numbers.get(view.topic, {}).get(view.partition, EARLIEST)
    if bound.way is Way.EARLIEST or (bound.way is Way.OFFSETS and number == EARLIEST):
        return view.log_start_offset
    end = end_offset(view, options.isolation, durable=options.ends_durable)
    if bound.way is Way.LATEST or (bound.way is Way.OFFSETS and number == LATEST):
        return end
    if bound.way is Way.OFFSETS:
        return number
    timestamp_ms = bound.timestamp_ms if bound.way is Way.TIMESTAMP else number
    found = offset_for_timestamp(view, timestamp_ms, end=end)
    if found is not None:
        return found
    if options.missing_timestamp_is_latest:
        return end
    raise InvalidOption(
        bound.option,
        f"{view.name} has no record of {timestamp_ms} or later;"
        " startingOffsetsByTimestampStrategy=latest would begin at its end",
    )


def end_of(view: PartitionView, options: Options) -> int:
    """Where to stop, exclusive, as the options say it; it may lie outside of the log."""
    bound = options.ending
    end = end_offset(view, options.isolation, durable=options.ends_durable)
    number = bound.numbers.get(view.topic, {}).get(view.partition, LATEST)
    if bound.way is Way.LATEST or (bound.way is Way.OFFSETS and number == LATEST):
        return end
    if bound.way is Way.OFFSETS:
        return number
    timestamp_ms = bound.timestamp_ms if bound.way is Way.TIMESTAMP else number
    found = offset_for_timestamp(view, timestamp_ms, end=end)
    return end if found is None else found


def within(view: PartitionView, start: int, end: int, *, options: Options) -> tuple[int, int, str | None]:
    """[start, end) as far as it is there, and what is not, in words.

    Raises:
        DataLost: something is not, and `failOnDataLoss` holds.
    """
    most = max(end_offset(view, options.isolation, durable=options.ends_durable), view.log_start_offset)
    there = min(max(start, view.log_start_offset), most), min(end, most)
    if start >= view.log_start_offset and start <= most and end <= most:
        return start, max(start, end), None
    lost = (
        f"{view.name}: offsets {start} to {end - 1} were asked for, and there are only"
        f" {view.log_start_offset} to {most - 1}"
    )
    if options.fail_on_data_loss:
        raise DataLost(f"{lost}; failOnDataLoss=false would read the records that exist")
    return there[0], max(there), lost


def by_name(views: Iterable[PartitionView]) -> Mapping[Name, PartitionView]:
    """The views under topic and partition."""
    return {(view.topic, view.partition): view for view in views}
