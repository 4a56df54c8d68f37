"""Where partitions lie, and how far each may be read now.

A path may be the data directory of the appliance (all its slots), log directories of slots, the log directory of an
Apache Kafka broker, or any directory of partition directories. Of a partition that lies in several, as copies of
several slots, the leader's is read, or else the one that goes furthest.

How far is said by the owner in `<partition>/.state` (`appliance.log.partition_state`), unless Apache Kafka has gone on
with the log since. Apache Kafka says it in its
checkpoint files, which it writes every few seconds; what it does not say, the last stable offset, is found by reading.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from appliance.cluster import TopicPartition
from appliance.errors import CorruptFile, StorageFault
from appliance.log.checkpoint import read_offsets
from appliance.log.file_names import (
    CLEANER_OFFSETS,
    HIGH_WATERMARKS,
    LEADER_EPOCHS,
    LOG,
    LOG_STARTS,
    META_PROPERTIES,
    parse_partition_directory_name,
    partition_directory_name,
    segment_file_name,
)
from appliance.log.leader_epochs import LeaderEpochs
from appliance.log.partition_metadata import read_topic_id
from appliance.log.partition_state import NO_ID, Mode, PartitionState, read_state
from spark_connector.errors import NotALogDirectory, NotReadable, UnknownTopic
from spark_connector.segments import listing
from spark_connector.storage import MANIFEST, below, is_address, manifests, shown

UNKNOWN: Final = -1
_KRAFT_METADATA: Final = "__cluster_metadata"
_LOOKS: Final = 3
_OWNER_PATIENCE_S: Final = 1.0
_OWNER_LOOK_S: Final = 0.05
_STALE_MS: Final = 10_000


class Isolation(StrEnum):
    """Which records are seen, as a Kafka consumer's `isolation.level`."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


@dataclass(slots=True)
class Decided:
    """How far a log was looked through for transactions: below `up_to`, and where those began that are open there."""

    topic_id: UUID | None = None
    up_to: int = 0
    open_since: dict[int, int] = field(default_factory=dict)
    """First offset by producer id."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition at one instant. Offsets, but for what is named as something else; UNKNOWN (-1): nobody says it."""

    topic: str
    partition: int
    topic_id: UUID | None
    directory: str
    """The partition's directory: of the copy that is read."""
    others: tuple[str, ...]
    """The directories of its other copies."""
    homes: tuple[str, ...]
    """The log directories that were looked through."""
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    durable_offset: int
    log_end_offset: int
    active_base: int
    active_bytes: int
    leader_epoch: int
    incarnation: int
    clean_generation: int
    is_compacted: bool
    """Compaction has been at the log, so that offsets may be missing in it."""
    is_live: bool
    """The owner has not closed the log: there may be more by now."""
    decided: Decided | None = field(default=None, compare=False, repr=False)
    """What the directories remember of its transactions where nobody says the last stable offset."""

    @property
    def name(self) -> str:
        """`topic-3`."""
        return f"{self.topic}-{self.partition}"

    def end(self, isolation: Isolation, *, durable: bool = False) -> int:
        """Below which offset may be read now; `durable`: and will be there after a power cut.

        Raises:
            NotReadable: durable, where only Apache Kafka knows.
            StorageFault, ConnectorError: the last stable offset has to be found by reading, and that failed.
        """
        end = self.high_watermark
        if isolation is Isolation.READ_COMMITTED:
            end = self.last_stable_offset
            if end == UNKNOWN:
                from spark_connector.bounds import last_stable_offset

                end = last_stable_offset(self)
        if durable:
            if self.durable_offset == UNKNOWN:
                raise NotReadable(f"{self.directory}: nobody says how far the log is on the disk")
            end = min(end, self.durable_offset)
        return max(end, self.log_start_offset)


class Directories:
    """The log directories that a reader was given. Looks anew with every call; keeps nothing open.

    Raises, when it is made:
        NotALogDirectory: a path is missing, unreadable, or holds no partitions and no `meta.properties`.
    """

    __slots__ = ("_checkpoints", "_decided", "addresses", "log_directories")

    def __init__(self, paths: Sequence[str | Path]) -> None:
        if not paths:
            raise NotALogDirectory("no directory was given")
        found: list[Path] = []
        addresses = [str(path).rstrip("/") for path in paths if is_address(str(path))]
        for address in addresses:
            _manifests(address)
        self.addresses: Final = tuple(addresses)
        for path in paths:
            if is_address(str(path)):
                continue
            for each in _log_directories(Path(path)):
                if each not in found:
                    found.append(each)
        self.log_directories: Final = tuple(found)
        self._checkpoints: dict[Path, tuple[tuple[int, int, int], Mapping[TopicPartition, int]]] = {}
        self._decided: dict[Path, Decided] = {}

    @property
    def where(self) -> str:
        """All of them, for an error's text."""
        return ", ".join([*map(str, self.log_directories), *map(shown, self.addresses)])

    def topics(self) -> dict[str, list[int]]:
        """Topics and their partitions, in order. Internal topics too.

        Raises:
            NotALogDirectory: a directory cannot be read any more.
        """
        found: dict[str, set[int]] = {}
        for directory in self.log_directories:
            for partition in _partitions_in(directory):
                found.setdefault(partition.topic, set()).add(partition.partition)
        for address in self.addresses:
            for manifest in _manifests(address):
                numbers = (each["partition"] for each in manifest["partitions"])
                found.setdefault(manifest["topic"], set()).update(numbers)
        return {topic: sorted(found[topic]) for topic in sorted(found)}

    def partition(
        self, topic: str, partition: int, *, prefer: str | None = None, avoid: str | None = None
    ) -> PartitionView:
        """A fresh look at a partition; at the copy in the directory `prefer` as long as there is one, and never at the
        one in `avoid`.

        Raises:
            UnknownTopic: it is in none of the directories.
            NotReadable: it is there, and nobody says how far it may be read.
        """
        name = partition_directory_name(TopicPartition(topic, partition))
        for look in range(_LOOKS):
            copies = [
                (home, home / name)
                for home in self.log_directories
                if (home / name).is_dir() and str(home / name) != avoid
            ]
            if not copies:
                for address in self.addresses:
                    for manifest in _manifests(address):
                        for told in manifest["partitions"]:
                            if (manifest["topic"], told["partition"]) == (topic, partition):
                                return _exported(address, manifest, told)
                raise UnknownTopic(f"partition {name} is in none of {self.where}")
            try:
                preferred = [each for each in copies if str(each[1]) == prefer]
                return self._best(TopicPartition(topic, partition), preferred or copies)
            except (StorageFault, CorruptFile, FileNotFoundError) as fault:
                # Moved or deleted between two looks; anything else stays.
                if look == _LOOKS - 1:
                    raise NotReadable(f"{name}: {fault}") from fault
        raise NotReadable(name)

    def partitions(self, topic: str) -> list[PartitionView]:
        """A fresh look at all partitions of a topic.

        Raises:
            As `partition`.
        """
        numbers = self.topics().get(topic)
        if numbers is None:
            raise UnknownTopic(f"topic {topic!r} is in none of {self.where}")
        return [self.partition(topic, number) for number in numbers]

    def _best(self, name: TopicPartition, copies: list[tuple[Path, Path]]) -> PartitionView:
        views = [self._view(name, home, directory) for home, directory in copies]
        ranked = sorted(views, key=lambda each: each[0], reverse=True)
        best = ranked[0][1]
        others = tuple(view.directory for _, view in ranked[1:] if view.topic_id == best.topic_id)
        return replace(best, others=others, homes=tuple(map(str, self.log_directories)))

    def _view(
        self, name: TopicPartition, home: Path, directory: Path
    ) -> tuple[tuple[int, bool, int], PartitionView]:
        """With how good the copy is."""
        state = read_state(directory)
        if state is None and name not in self._offsets(home / HIGH_WATERMARKS):
            state = _first_state(directory)
        bases, _ = listing(directory)
        first, last = (bases[0], bases[-1]) if bases else (0, 0)
        if state is not None and self._is_left_behind(name, home, directory, state):
            state = None
        if state is not None:
            rank = (state.leader_epoch, state.leads, state.high_watermark)
            return rank, _said_by_owner(name, directory, state, first)
        epoch = LeaderEpochs.load(directory).latest
        high_watermark = self._offsets(home / HIGH_WATERMARKS).get(name, UNKNOWN)
        if high_watermark == UNKNOWN:
            raise StorageFault(
                f"{directory} has no .state, and {HIGH_WATERMARKS} does not name it: nobody says how far to read"
            )
        view = PartitionView(
            topic=name.topic,
            partition=name.partition,
            topic_id=read_topic_id(directory),
            directory=str(directory),
            others=(),
            homes=(),
            log_start_offset=max(self._offsets(home / LOG_STARTS).get(name, 0), first),
            high_watermark=max(high_watermark, first),
            last_stable_offset=UNKNOWN,
            durable_offset=UNKNOWN,
            log_end_offset=UNKNOWN,
            active_base=last,
            active_bytes=UNKNOWN,
            leader_epoch=epoch,
            incarnation=0,
            clean_generation=0,
            is_compacted=name in self._offsets(home / CLEANER_OFFSETS),
            is_live=True,
            decided=self._decided.setdefault(directory, Decided()),
        )
        return (epoch, False, high_watermark), view

    def _is_left_behind(
        self, name: TopicPartition, home: Path, directory: Path, state: PartitionState
    ) -> bool:
        """Whether somebody who writes no state, Apache Kafka, has gone on with the log since."""
        deadline_s = time.monotonic() + _OWNER_PATIENCE_S
        while self._has_gone_on(name, home, directory, state):
            if time.monotonic() > deadline_s:
                return True
            # Its owner may have started, or moved the log on, and not come to say so.
            time.sleep(_OWNER_LOOK_S)
            found = read_state(directory)
            if found is None or found.sequence != state.sequence:
                return False
        return False

    def _has_gone_on(self, name: TopicPartition, home: Path, directory: Path, state: PartitionState) -> bool:
        if state.mode is Mode.CLOSED:
            bases, _ = listing(directory)
            if not bases or bases[-1] != state.active_base:
                return bool(bases)
            size_bytes = os.stat(directory / segment_file_name(bases[-1], LOG)).st_size
            return size_bytes != state.active_bytes
        try:
            written_ms = os.stat(home / HIGH_WATERMARKS).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return False
        if written_ms < state.written_ms + _STALE_MS:
            return False
        return self._offsets(home / HIGH_WATERMARKS).get(name, UNKNOWN) > state.high_watermark

    def _offsets(self, path: Path) -> Mapping[TopicPartition, int]:
        """A checkpoint file; parsed again only if it was replaced."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return {}
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._checkpoints.get(path)
        if known is None or known[0] != mark:
            known = self._checkpoints[path] = mark, read_offsets(path)
        return known[1]


def _first_state(directory: Path) -> PartitionState | None:
    """The state of a log that may be so new that its owner has not come to write one; None after some patience."""
    deadline_s = time.monotonic() + _OWNER_PATIENCE_S
    while (state := read_state(directory)) is None and time.monotonic() < deadline_s:
        time.sleep(_OWNER_LOOK_S)
    return state


def _said_by_owner(
    name: TopicPartition, directory: Path, state: PartitionState, first_base: int
) -> PartitionView:
    return PartitionView(
        topic=name.topic,
        partition=name.partition,
        topic_id=None if state.topic_id == NO_ID else state.topic_id,
        directory=str(directory),
        others=(),
        homes=(),
        # Retention may have gone on since the record was written.
        log_start_offset=max(state.log_start, first_base),
        high_watermark=max(state.high_watermark, first_base),
        last_stable_offset=max(state.last_stable, first_base),
        durable_offset=state.durable,
        log_end_offset=state.log_end,
        active_base=state.active_base,
        active_bytes=state.active_bytes,
        leader_epoch=state.leader_epoch,
        incarnation=state.incarnation,
        clean_generation=state.generation,
        is_compacted=state.generation > 0,
        is_live=state.mode is not Mode.CLOSED,
    )


def _exported(address: str, manifest: dict[str, Any], told: dict[str, Any]) -> PartitionView:
    """A partition of an export that pyarrow reads."""
    end = told["end_offset"]
    return PartitionView(
        topic=manifest["topic"],
        partition=told["partition"],
        topic_id=None if manifest["topic_id"] is None else UUID(manifest["topic_id"]),
        directory=below(address, f"{manifest['topic']}-{told['partition']}"),
        others=(),
        homes=(address,),
        log_start_offset=told["log_start_offset"],
        high_watermark=end,
        last_stable_offset=end,
        durable_offset=UNKNOWN,
        log_end_offset=end,
        active_base=UNKNOWN,
        active_bytes=UNKNOWN,
        leader_epoch=told["leader_epoch"],
        incarnation=0,
        clean_generation=0,
        is_compacted=True,
        is_live=False,
    )


def _manifests(address: str) -> list[dict[str, Any]]:
    try:
        found = manifests(address)
    except (OSError, ValueError) as error:
        raise NotALogDirectory(shown(f"{address}: {error}")) from error
    except ImportError as error:
        raise NotALogDirectory(
            f"{shown(address)}: pyarrow is not installed, which reads addresses"
        ) from error
    if not found:
        raise NotALogDirectory(f"{shown(address)} holds no {MANIFEST} of `appliance export segments`")
    return found


def _log_directories(path: Path) -> list[Path]:
    """The log directories that a path stands for."""
    try:
        names = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
    except OSError as error:
        raise NotALogDirectory(f"{path}: {error.strerror or error}") from error
    if (path / META_PROPERTIES).exists():
        return [path]
    inside = [path / name for name in names if (path / name / META_PROPERTIES).exists()]
    if inside:
        return inside
    if any(parse_partition_directory_name(name) and _is_partition(path / name) for name in names):
        return [path]
    raise NotALogDirectory(
        f"{path} is no data directory of the appliance and no log directory: it has no {META_PROPERTIES},"
        " and no directory of a partition"
    )


def _is_partition(directory: Path) -> bool:
    try:
        return (directory / LEADER_EPOCHS).exists() or bool(listing(directory)[0])
    except OSError:
        return False


def _partitions_in(directory: Path) -> Iterable[TopicPartition]:
    try:
        names = [entry.name for entry in os.scandir(directory) if entry.is_dir()]
    except OSError as error:
        raise NotALogDirectory(f"{directory}: {error.strerror or error}") from error
    for name in names:
        found = parse_partition_directory_name(name)
        if found is not None and found.topic != _KRAFT_METADATA:
            yield found
