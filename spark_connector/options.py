"""The options of `format("appliance")`: the names that spark-sql-kafka's users know, and some of our own.

    where     path (or load(path))            the data directory, or several: commas or a JSON array
    what      subscribe · subscribePattern · assign            exactly one
    from      startingOffsets · startingTimestamp · startingOffsetsByTimestamp          at most one
    to        endingOffsets · endingTimestamp · endingOffsetsByTimestamp   at most one; batch only
    read      kafka.isolation.level (isolationLevel) · failOnDataLoss · includeHeaders · columns · view
    split     minPartitions · maxRecordsPerPartition · splitBytes
    stream    maxOffsetsPerTrigger · minOffsetsPerTrigger · maxTriggerDelay · commitGroup
    files     endAt · onCorruptBatch · leaseDuration · pushdown · timestampDisorder

Differences from spark-sql-kafka, on purpose: two ways to say one bound are refused instead of ranked; an unknown
option is refused; options that only say how to reach a broker (`kafka.bootstrap.servers`, `kafka.security.protocol`, …)
are taken and not used, since no broker is asked.

Source of names and rules: Spark's `KafkaSourceProvider.scala`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from importlib.util import find_spec
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from spark_connector import option_values as values
from spark_connector.directory import Isolation
from spark_connector.option_values import InvalidOption, OffsetsByPartition

EARLIEST: Final = -2
LATEST: Final = -1

COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS_COLUMN: Final = "headers"

DEFAULT_SPLIT_BYTES: Final = 64 << 20
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60 * 1000

T = TypeVar("T")


class View(StrEnum):
    """What a row is. All but `RECORDS` are answered from headers and indexes; no record is decoded."""

    RECORDS = "records"
    BATCHES = "batches"
    SEGMENTS = "segments"
    TRANSACTIONS = "transactions"
    PARTITIONS = "partitions"


class Way(StrEnum):
    """How a bound is said."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMP = "timestamp"
    TIMESTAMPS = "timestamps"


@dataclass(frozen=True, slots=True)
class Bound:
    """From where, or to where. `option` is the name under which it was given.

    `numbers` are offsets (-2 earliest, -1 latest) or timestamps by topic and partition; `timestamp_ms` is that of all.
    """

    way: Way
    option: str
    numbers: OffsetsByPartition = field(default_factory=dict)
    timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class Choice:
    """Which topics: by name, by pattern, or by partition. Exactly one of the three is not None."""

    names: tuple[str, ...] | None = None
    pattern: str | None = None
    partitions: dict[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """All options with their defaults filled in. See the head of this file."""

    paths: tuple[str, ...]
    choice: Choice
    starting: Bound
    ending: Bound
    missing_timestamp_is_latest: bool
    isolation: Isolation
    fail_on_data_loss: bool
    columns: tuple[str, ...]
    view: View
    min_partitions: int | None
    max_records_per_partition: int | None
    split_bytes: int
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    ends_durable: bool
    skips_corrupt: bool
    lease_ms: int | None
    pushes_down: bool
    disorder_ms: int | None
    commit_group: str | None
    client: dict[str, str]
    ignored: tuple[str, ...]


_NAMES: Final = {
    name.lower(): name
    for name in (
        "path",
        "paths",
        "subscribe",
        "subscribePattern",
        "assign",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "isolationLevel",
        "kafka.isolation.level",
        "failOnDataLoss",
        "includeHeaders",
        "columns",
        "view",
        "minPartitions",
        "maxRecordsPerPartition",
        "splitBytes",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "commitGroup",
        "endAt",
        "onCorruptBatch",
        "leaseDuration",
        "pushdown",
        "timestampDisorder",
    )
}
KNOWN: Final = tuple(_NAMES.values())
"""The names of all options."""
_OPTION: Final = "option."
_ABOUT_A_BROKER: Final = frozenset(
    (
        "groupidprefix",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
    )
)
_REFUSED: Final = {
    "kafka.auto.offset.reset": "where to begin is said by startingOffsets",
    "kafka.key.deserializer": "keys are bytes; decode them in the query",
    "kafka.value.deserializer": "values are bytes; decode them in the query",
    "kafka.enable.auto.commit": "offsets are committed by the query's checkpoint; commitGroup also tells a group",
    "kafka.interceptor.classes": "no consumer is used",
}
_ONLY_BATCH: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_ONLY_STREAM: Final = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "commitGroup")


def columns_of(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that the options ask for, where no schema was given.

    Raises:
        InvalidOption: an unknown column, or one that contradicts `includeHeaders`.
    """
    return _columns(_Given(given))


def refuse_unknown(given: Mapping[str, str]) -> None:
    """Looks at the names alone.

    Raises:
        InvalidOption: one is not known.
    """
    _Given(given).refuse_unknown()


def view_of(given: Mapping[str, str]) -> View:
    """The view that the options ask for."""
    return View(_Given(given).read("view", values.choice, View.RECORDS.value, tuple(View)))


def read_options(given: Mapping[str, str], *, streaming: bool) -> Options:
    """The options under their names, in whatever case.

    Raises:
        InvalidOption: one is unknown, wrong, missing, or contradicts another.
    """
    options = _Given(given)
    options.refuse_unknown()
    for name in _ONLY_BATCH:
        if streaming and options.has(name):
            raise InvalidOption(name, "a stream has no end")
    if streaming and view_of(given) is not View.RECORDS:
        raise InvalidOption("view", "only records can be streamed")
    most = options.read("maxOffsetsPerTrigger", values.number, None)
    least = options.read("minOffsetsPerTrigger", values.number, None)
    if most is not None and least is not None and least > most:
        raise InvalidOption("minOffsetsPerTrigger", f"{least} is more than maxOffsetsPerTrigger, {most}")
    group = options.text("commitGroup")
    if group is not None and not options.has("kafka.bootstrap.servers"):
        raise InvalidOption("commitGroup", "needs kafka.bootstrap.servers, which is not given")
    if group is not None and find_spec("confluent_kafka") is None:
        raise InvalidOption(
            "commitGroup", "needs the package confluent-kafka, which is not installed (extra `cli`)"
        )
    starting, ending = _starting(options, streaming=streaming), _ending(options)
    _refuse_backwards(starting, ending)
    return Options(
        paths=_paths(options),
        choice=_choice(options),
        starting=starting,
        ending=ending,
        missing_timestamp_is_latest=options.read(
            "startingOffsetsByTimestampStrategy", values.choice, "error", ("error", "latest")
        )
        == "latest",
        isolation=_isolation(options),
        fail_on_data_loss=options.read("failOnDataLoss", values.boolean, True),
        columns=_columns(options),
        view=view_of(given),
        min_partitions=options.read("minPartitions", values.number, None),
        max_records_per_partition=options.read("maxRecordsPerPartition", values.number, None),
        split_bytes=options.read("splitBytes", values.size_bytes, DEFAULT_SPLIT_BYTES),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=options.read(
            "maxTriggerDelay", values.duration_ms, DEFAULT_MAX_TRIGGER_DELAY_MS
        ),
        ends_durable=options.read("endAt", values.choice, "high-watermark", ("high-watermark", "durable"))
        == "durable",
        skips_corrupt=options.read("onCorruptBatch", values.choice, "fail", ("fail", "skip")) == "skip",
        lease_ms=options.read("leaseDuration", values.duration_ms, None),
        pushes_down=options.read("pushdown", values.choice, "auto", ("auto", "off")) == "auto",
        disorder_ms=options.read("timestampDisorder", values.duration_ms, None),
        commit_group=group,
        client=options.client(),
        ignored=options.ignored(streaming=streaming),
    )


class _Given:
    """The options as they came, under lower-cased names; read by their proper ones."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self.texts = {str(name).lower(): given[name] for name in given}

    def has(self, name: str) -> bool:
        return name.lower() in self.texts

    def text(self, name: str) -> str | None:
        return self.texts.get(name.lower())

    def read(self, name: str, reader: Callable[..., T], default: Any, *more: Any) -> Any:
        text = self.text(name)
        return default if text is None else reader(name, text, *more)

    def one_of(self, names: Iterable[str]) -> str | None:
        """The one of `names` that is given; None if none is. Two contradict each other."""
        found = [name for name in names if self.has(name)]
        if len(found) > 1:
            raise InvalidOption(found[1], f"{found[0]} says the same thing; give one of them")
        return found[0] if found else None

    def refuse_unknown(self) -> None:
        for name in self.texts:
            if name in _REFUSED:
                raise InvalidOption(name, _REFUSED[name])
            if name not in _NAMES and name not in _ABOUT_A_BROKER and not name.startswith("kafka."):
                raise InvalidOption(name, f"is not known; {_meant(name)}")

    def client(self) -> dict[str, str]:
        """What is said about reaching a broker, without the prefix."""
        return {
            name.removeprefix("kafka."): text
            for name, text in self.texts.items()
            if name.startswith("kafka.") and name not in _NAMES and name != "kafka.group.id"
        }

    def ignored(self, *, streaming: bool) -> tuple[str, ...]:
        """Names that were given and have no effect."""
        about_a_broker = () if self.has("commitGroup") and streaming else self.texts
        names = [
            name
            for name in about_a_broker
            if name in _ABOUT_A_BROKER or (name.startswith("kafka.") and name not in _NAMES)
        ]
        if not streaming:
            names += [name for name in _ONLY_STREAM if self.has(name)]
        return tuple(sorted(names))


def _meant(name: str) -> str:
    """The options whose names are near, or all of them."""
    near = get_close_matches(name, _NAMES, n=1, cutoff=0.7)
    if near:
        return f"did you mean {_NAMES[near[0]]}?"
    return f"known are {', '.join(sorted(_NAMES.values()))}"


def of_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a table that is being created; None where the options are not a table's.

    Spark's catalog hands a source all properties of the table: each option under its name and under `option.` and its
    name, the path as a URI in `location` and `path`, and properties such as `owner` and `provider`.
    """
    texts = {str(name).lower(): given[name] for name in given}
    if "provider" not in texts or "owner" not in texts:
        return None
    found = {name.removeprefix(_OPTION): text for name, text in texts.items() if name.startswith(_OPTION)}
    if "path" in texts and not found.keys() & {"path", "paths"}:
        found["path"] = json.dumps([_local(texts["path"])])
    return found


def _local(uri: str) -> str:
    """The path of a file URI as Spark writes it (`file:/data`); any other address as it is."""
    return unquote(uri.removeprefix("file:")) if uri.startswith("file:/") and "://" not in uri else uri


def _paths(options: _Given) -> tuple[str, ...]:
    name = options.one_of(("path", "paths"))
    if name is None:
        raise InvalidOption(
            "path",
            "is missing: the data directory to read, as option or as load(path). (A table that was created with a list"
            " of columns does not hand its options over: create it without one.)",
        )
    # Executors have working directories of their own.
    return tuple(
        path if "://" in path else os.path.abspath(path)
        for path in values.names(name, options.text(name) or "")
    )


def _choice(options: _Given) -> Choice:
    name = options.one_of(("subscribe", "subscribePattern", "assign"))
    if name is None:
        raise InvalidOption(
            "subscribe", "is missing: one of subscribe, subscribePattern, assign says what to read"
        )
    text = options.text(name) or ""
    if name == "subscribe":
        return Choice(names=values.names(name, text))
    if name == "assign":
        return Choice(partitions=values.partitions(name, text))
    try:
        re.compile(text)
    except re.error as fault:
        raise InvalidOption(name, f"{text!r} is no pattern: {fault}") from None
    return Choice(pattern=text)


def _starting(options: _Given, *, streaming: bool) -> Bound:
    name = options.one_of(("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"))
    if name is None:
        return Bound(Way.LATEST if streaming else Way.EARLIEST, "startingOffsets")
    bound = _bound(name, options.text(name) or "")
    if not streaming and bound.way is Way.LATEST:
        raise InvalidOption(name, "a batch query that starts at latest reads nothing")
    if not streaming and bound.way is Way.OFFSETS:
        _refuse(bound, LATEST, "a batch query that starts at latest (-1) reads nothing")
    return bound


def _ending(options: _Given) -> Bound:
    name = options.one_of(_ONLY_BATCH)
    if name is None:
        return Bound(Way.LATEST, "endingOffsets")
    bound = _bound(name, options.text(name) or "")
    if bound.way is Way.EARLIEST:
        raise InvalidOption(name, "a query that ends at earliest reads nothing")
    if bound.way is Way.OFFSETS:
        _refuse(bound, EARLIEST, "a query that ends at earliest (-2) reads nothing")
    return bound


def _bound(name: str, text: str) -> Bound:
    if name.endswith("OffsetsByTimestamp"):
        return Bound(Way.TIMESTAMPS, name, values.numbers_by_partition(name, text, least=0))
    if name.endswith("Timestamp"):
        return Bound(Way.TIMESTAMP, name, timestamp_ms=values.number(name, text, least=0))
    word = text.strip().lower()
    if word in ("earliest", "latest"):
        return Bound(Way(word), name)
    return Bound(Way.OFFSETS, name, values.numbers_by_partition(name, text, least=EARLIEST))


def _refuse_backwards(starting: Bound, ending: Bound) -> None:
    """Refuses an end before the begin, as far as the options alone say it."""
    if starting.way is ending.way is Way.TIMESTAMP and ending.timestamp_ms < starting.timestamp_ms:
        raise InvalidOption(ending.option, f"is before {starting.option}")
    if starting.way is not ending.way:
        return
    for topic, numbers in ending.numbers.items():
        for partition, end in numbers.items():
            begin = starting.numbers.get(topic, {}).get(partition, EARLIEST)
            if 0 <= end < begin:
                raise InvalidOption(
                    ending.option, f"{end} of {topic}-{partition} is before {begin}, its {starting.option}"
                )


def _refuse(bound: Bound, number: int, reason: str) -> None:
    if any(number in by_partition.values() for by_partition in bound.numbers.values()):
        raise InvalidOption(bound.option, reason)


def _isolation(options: _Given) -> Isolation:
    name = options.one_of(("kafka.isolation.level", "isolationLevel"))
    if name is None:
        return Isolation.READ_UNCOMMITTED
    return Isolation(values.choice(name, options.text(name) or "", tuple(Isolation)))


def _columns(options: _Given) -> tuple[str, ...]:
    includes = options.read("includeHeaders", values.boolean, None)
    if options.has("view") and view_of(options.texts) is not View.RECORDS:
        for name in ("columns", "includeHeaders"):
            if options.has(name):
                raise InvalidOption(name, "is about records; of a view select what you want")
    if not options.has("columns"):
        return (*COLUMNS, HEADERS_COLUMN) if includes else COLUMNS
    known = {name.lower(): name for name in (*COLUMNS, HEADERS_COLUMN)}
    found = []
    for name in values.names("columns", options.text("columns") or ""):
        if name.lower() not in known:
            raise InvalidOption("columns", f"{name} is none of {', '.join(known.values())}")
        found.append(known[name.lower()])
    if includes is not None and includes != (HEADERS_COLUMN in found):
        raise InvalidOption("includeHeaders", f"contradicts columns, {options.text('columns')}")
    return tuple(found)
