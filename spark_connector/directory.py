"""Where partitions lie, and how far each may be read now.

A path may be the data directory of the appliance (all its slots, wherever `log.dirs` puts them), log directories of
slots, the log directory of an Apache Kafka broker, or any directory of partition directories. Where copies of several
slots are given, the leader's is read, or else the one that may be read furthest: a follower that has the latest epoch
may have little else yet.

The owner writes how far into `<partition>/.state` (`appliance.log.partition_state`), unless Apache Kafka has gone on
with the log since. Apache Kafka writes it to its checkpoint files every few seconds; what it does not write, the last
stable offset, is found by reading.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
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
from appliance.log.known_directories import used_directories
from appliance.log.leader_epochs import LeaderEpochs
from appliance.log.partition_metadata import read_topic_id
from appliance.log.partition_state import (
    NO_ID,
    Mode,
    PartitionState,
    decode,
    read_state,
    state_content,
)
from spark_connector.errors import NotALogDirectory, NotReadable, UnknownTopic
from spark_connector.segments import Listing, listing
from spark_connector.storage import MANIFEST, below, is_address, manifests, shown

JOURNAL: Final = logging.getLogger("spark_connector")
UNKNOWN: Final = -1
_KRAFT_METADATA: Final = "__cluster_metadata"
_LOOKS: Final = 3
_OWNER_PATIENCE_S: Final = 1.0
_OWNER_LOOK_S: Final = 0.05
_LEADER_PATIENCE_S: Final = 5.0
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


@dataclass(slots=True)
class Seen:
    """What was seen in a partition's directory; it need not be looked for again as long as the listing holds."""

    listing: Listing
    epochs: LeaderEpochs | None = None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """A partition at one instant. Offsets, but for what is named as something else; UNKNOWN (-1): nobody says it."""

    topic: str
    partition: int
    topic_id: UUID | None
    directory: str
    """The partition's directory: of the copy that is read."""
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
    leads: bool = True
    """False: of a follower's copy, which may lag, and whose state says nothing of the partition's end."""
    decided: Decided | None = field(default=None, compare=False, repr=False)
    """What the directories remember of its transactions where nobody says the last stable offset."""
    seen: Seen | None = field(default=None, compare=False, repr=False)
    """None in an export that pyarrow reads."""

    @property
    def name(self) -> str:
        """`topic-3`."""
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class _Copy:
    """A directory of a partition's. `content`: of its `.state`; None: there is none."""

    home: str
    directory: str
    content: bytes | None


@dataclass(frozen=True, slots=True)
class _Look:
    """What was made of a copy; the state is None where nobody has said one, or somebody has gone on since."""

    content: bytes | None
    state: PartitionState | None
    view: PartitionView

    @property
    def leads(self) -> bool:
        return self.state is not None and self.state.leads


class Directories:
    """The log directories that a reader was given. Keeps nothing open. Every call looks anew, at what can have changed:
    a partition whose state and names are the same as before costs a read and two looks at the clock of its directory.

    Raises, when it is made:
        NotALogDirectory: a path is missing, unreadable, or holds no partitions and no `meta.properties`.
    """

    __slots__ = (
        "_checkpoints",
        "_decided",
        "_homes",
        "_looks",
        "_waits_for_leaders",
        "addresses",
        "log_directories",
    )

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
        self._homes: Final = tuple(map(str, found))
        self._checkpoints: dict[str, tuple[tuple[int, int, int], Mapping[TopicPartition, int]]] = {}
        self._decided: dict[str, Decided] = {}
        self._looks: dict[str, _Look] = {}
        # Not where the leaders' slots may be others than were given.
        self._waits_for_leaders = len(found) > 1

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
        one in `avoid`. Where nobody leads, it waits some seconds for somebody who does.

        Raises:
            UnknownTopic: it is in none of the directories.
            NotReadable: it is there, and nobody says how far it may be read.
        """
        name = TopicPartition(topic, partition)
        deadline_s = time.monotonic() + _LEADER_PATIENCE_S
        while True:
            view = self._now(name, prefer=prefer, avoid=avoid)
            chosen = prefer is not None or avoid is not None
            if view.leads or not view.is_live or chosen or not self._waits_for_leaders:
                return view
            if time.monotonic() > deadline_s:
                self._waits_for_leaders = False
                JOURNAL.warning("nobody leads %s in %s: followers are read, which may lag", name, self.where)
                return view
            # On the way from slot to slot: who led has let go, and who leads has not come to say so.
            time.sleep(_OWNER_LOOK_S)

    def _now(self, name: TopicPartition, *, prefer: str | None, avoid: str | None) -> PartitionView:
        for look in range(_LOOKS):
            try:
                copies, fault = self._copies(name, avoid)
                preferred = [each for each in copies if each.directory == prefer]
                if preferred:
                    return self._look(name, preferred[0]).view
                return self._best(name, copies, fault) if copies or fault else self._exported(name)
            except (StorageFault, CorruptFile, FileNotFoundError) as fault:
                # Moved or deleted between two looks; anything else stays.
                if look == _LOOKS - 1:
                    raise NotReadable(f"{name}: {fault}") from fault
        raise NotReadable(str(name))

    def again(self, view: PartitionView) -> PartitionView:
        """The look `view` itself while the names in the partition's directory are the same; else a fresh one.

        Raises:
            As `partition`.
        """
        if view.seen is not None and view.seen.listing.holds(view.directory):
            return view
        return self.partition(view.topic, view.partition)

    def partitions(self, topic: str) -> list[PartitionView]:
        """A fresh look at all partitions of a topic.

        Raises:
            As `partition`.
        """
        topics = self.topics()
        numbers = topics.get(topic)
        if numbers is None:
            raise UnknownTopic(f"topic {topic!r} is in none of {self.where}{meant(topic, topics)}")
        return [self.partition(topic, number) for number in numbers]

    def _copies(self, name: TopicPartition, avoid: str | None) -> tuple[list[_Copy], StorageFault | None]:
        """The partition's directories, and why one of them cannot be read."""
        folder = partition_directory_name(name)
        copies, fault = [], None
        for home in self._homes:
            directory = f"{home}/{folder}"
            if directory == avoid:
                continue
            try:
                content = state_content(directory)
            except StorageFault as unreadable:
                fault = unreadable
                continue
            if content is not None or os.path.isdir(directory):
                copies.append(_Copy(home, directory, content))
            else:
                self._looks.pop(directory, None)
        return copies, fault

    def _exported(self, name: TopicPartition) -> PartitionView:
        for address in self.addresses:
            for manifest in _manifests(address):
                for told in manifest["partitions"]:
                    if (manifest["topic"], told["partition"]) == (name.topic, name.partition):
                        return _exported(address, manifest, told)
        raise UnknownTopic(f"partition {name} is in none of {self.where}")

    def _best(
        self, name: TopicPartition, copies: Sequence[_Copy], fault: StorageFault | None
    ) -> PartitionView:
        if len(copies) == 1 and fault is None:
            return self._look(name, copies[0]).view
        looks: list[_Look] = []
        unreadable: Exception | None = fault
        # The owner of a copy that was begun just now may not have come to say anything.
        for copy in sorted(copies, key=lambda each: each.content is None):
            try:
                looks.append(self._look(name, copy, patient=not any(each.leads for each in looks)))
            except (StorageFault, CorruptFile, FileNotFoundError) as said:
                unreadable = said
        if unreadable is not None and not any(each.leads for each in looks):
            raise unreadable
        latest = max(each.view.leader_epoch for each in looks)

        def rank(look: _Look) -> tuple[bool, int, int]:
            view = look.view
            return look.leads and view.leader_epoch == latest, view.high_watermark, view.leader_epoch

        return max(looks, key=rank).view

    def _look(self, name: TopicPartition, copy: _Copy, *, patient: bool = True) -> _Look:
        known = self._looks.get(copy.directory)
        seen = known.view.seen if known is not None else None
        # The state was read before: what it speaks of cannot be missing in names that are still the same.
        if seen is not None and not seen.listing.holds(copy.directory):
            known = seen = None
        if known is not None and seen is not None and known.state is not None:
            same = copy.content is not None and copy.content == known.content
            if same and not self._has_gone_on(name, copy, known.state, seen.listing):
                return known
        look = self._looks[copy.directory] = self._fresh(name, copy, seen, patient=patient)
        return look

    def _fresh(self, name: TopicPartition, copy: _Copy, seen: Seen | None, *, patient: bool) -> _Look:
        """Args: seen: what is known of the directory, and holds."""
        directory, home = Path(copy.directory), copy.home
        state = None if not copy.content else (decode(copy.content) or read_state(directory))
        if state is None and name not in self._offsets(f"{home}/{HIGH_WATERMARKS}") and patient:
            state = _first_state(directory)
            seen = None
        seen = seen or Seen(listing(copy.directory))
        if state is not None and self._is_left_behind(name, copy, state, seen.listing):
            state = None
        if state is not None:
            return _Look(copy.content, state, _said_by_owner(name, copy, state, seen, self._homes))
        bases = seen.listing.living
        first, last = (bases[0], bases[-1]) if bases else (0, 0)
        epochs = LeaderEpochs.load(directory)
        high_watermark = self._offsets(f"{home}/{HIGH_WATERMARKS}").get(name, UNKNOWN)
        if high_watermark == UNKNOWN:
            raise StorageFault(
                f"{directory} has no .state, and {HIGH_WATERMARKS} does not list it, so it is unknown how far to read"
            )
        view = PartitionView(
            topic=name.topic,
            partition=name.partition,
            topic_id=read_topic_id(directory),
            directory=copy.directory,
            homes=self._homes,
            log_start_offset=max(self._offsets(f"{home}/{LOG_STARTS}").get(name, 0), first),
            high_watermark=max(high_watermark, first),
            last_stable_offset=UNKNOWN,
            durable_offset=UNKNOWN,
            log_end_offset=UNKNOWN,
            active_base=last,
            active_bytes=UNKNOWN,
            leader_epoch=epochs.latest,
            incarnation=0,
            clean_generation=0,
            is_compacted=name in self._offsets(f"{home}/{CLEANER_OFFSETS}"),
            is_live=True,
            decided=self._decided.setdefault(copy.directory, Decided()),
            seen=Seen(seen.listing, epochs),
        )
        return _Look(copy.content, None, view)

    def _is_left_behind(
        self, name: TopicPartition, copy: _Copy, state: PartitionState, listed: Listing
    ) -> bool:
        """Whether somebody who writes no state, Apache Kafka, has gone on with the log since."""
        deadline_s = time.monotonic() + _OWNER_PATIENCE_S
        while self._has_gone_on(name, copy, state, listed):
            if time.monotonic() > deadline_s:
                return True
            # Its owner may have started, or moved the log on, and not come to say so.
            time.sleep(_OWNER_LOOK_S)
            found = read_state(Path(copy.directory))
            if found is None or found.sequence != state.sequence:
                return False
            listed = listing(copy.directory)
        return False

    def _has_gone_on(self, name: TopicPartition, copy: _Copy, state: PartitionState, listed: Listing) -> bool:
        if state.mode is Mode.CLOSED:
            if not listed.living or listed.living[-1] != state.active_base:
                return bool(listed.living)
            path = f"{copy.directory}/{segment_file_name(state.active_base, LOG)}"
            return os.stat(path).st_size != state.active_bytes
        path = f"{copy.home}/{HIGH_WATERMARKS}"
        try:
            written_ms = os.stat(path).st_mtime_ns // 1_000_000
        except FileNotFoundError:
            return False
        if written_ms < state.written_ms + _STALE_MS:
            return False
        return self._offsets(path).get(name, UNKNOWN) > state.high_watermark

    def _offsets(self, path: str) -> Mapping[TopicPartition, int]:
        """A checkpoint file; parsed again only if it was replaced."""
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return {}
        mark = (status.st_ino, status.st_mtime_ns, status.st_size)
        known = self._checkpoints.get(path)
        if known is None or known[0] != mark:
            known = self._checkpoints[path] = mark, read_offsets(Path(path))
        return known[1]


def meant(name: str, topics: Iterable[str]) -> str:
    """The end of an error about a topic that is not there: the topic whose name is near, if there is one."""
    near = get_close_matches(name, list(topics), n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def _first_state(directory: Path) -> PartitionState | None:
    """The state of a log that may be so new that its owner has not come to write one; None after some patience."""
    deadline_s = time.monotonic() + _OWNER_PATIENCE_S
    while (state := read_state(directory)) is None and time.monotonic() < deadline_s:
        time.sleep(_OWNER_LOOK_S)
    return state


def _said_by_owner(
    name: TopicPartition, copy: _Copy, state: PartitionState, seen: Seen, homes: tuple[str, ...]
) -> PartitionView:
    first_base = seen.listing.living[0] if seen.listing.living else 0
    return PartitionView(
        topic=name.topic,
        partition=name.partition,
        topic_id=None if state.topic_id == NO_ID else state.topic_id,
        directory=copy.directory,
        homes=homes,
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
        leads=state.leads,
        seen=seen,
    )


def _exported(address: str, manifest: dict[str, Any], told: dict[str, Any]) -> PartitionView:
    """A partition of an export that pyarrow reads."""
    end = told["end_offset"]
    return PartitionView(
        topic=manifest["topic"],
        partition=told["partition"],
        topic_id=None if manifest["topic_id"] is None else UUID(manifest["topic_id"]),
        directory=below(address, f"{manifest['topic']}-{told['partition']}"),
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
            f"{shown(address)}: reading an address needs pyarrow, which is not installed (extra `spark`)"
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
    try:
        used = used_directories(path)
    except (StorageFault, CorruptFile) as fault:
        raise NotALogDirectory(str(fault)) from fault
    if used:
        return used
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
        return (directory / LEADER_EPOCHS).exists() or bool(listing(directory).living)
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
