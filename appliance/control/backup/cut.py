"""The moment that a backup shows: what each partition holds, and the metadata of the same moment.

While the appliance runs, both come from its shared memory, so no process of it takes part:

    metadata image, version v            the metadata, by `metadata_sources.py`
    partition table, four copies:        1  __transaction_state: high watermarks        ┐
                                         2  the other internal topics                   │ some 100 µs
                                         3  all other topics                            │
                                         4  __transaction_state again: must be as in 1  ┘
    metadata image again: must be version v

**Offsets.** A consumer commits what it has read, and reads below the high watermark. Internal topics come before the
others, so no committed offset in the backup lies above the records in it.

**Transactions.** A coordinator writes its decision, then the markers, then that the transaction is complete. If
nothing was written to `__transaction_state` between 1 and 4, the markers that the logs have are those of decisions
that the backup has, and each complete transaction has all its markers. A decision without all its markers is finished
by the coordinator of the restored appliance, as after a crash. If something was written, the copies are taken again.

A stopped appliance says the same in its state files, if it was stopped cleanly. Its data directory is locked meanwhile.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from appliance.channels import runtime_directory
from appliance.channels.metadata_image import ImageReader
from appliance.channels.partition_table import (
    FILES_VERSION,
    HIGH_WATERMARK,
    LOG_START,
    RESTART_LOG_END,
    ROW_WORDS,
    SERVING_INCARNATION,
    SLOT_WORDS,
    WATERMARK_INCARNATION,
)
from appliance.channels.wiring import IMAGE
from appliance.cluster import TRANSACTION_STATE, ClusterImage, TopicPartition, is_internal
from appliance.control.backup.metadata_sources import (
    EmbeddedMetadata,
    MetadataMoved,
    MetadataSource,
    ZooKeeperMetadata,
)
from appliance.control.backup.segments import read_regular
from appliance.control.store.embedded_store import DATABASE_NAME
from appliance.control.store.left_sessions import DIRECTORY as SESSIONS
from appliance.errors import CorruptFile, HostFault, OperatorFault, StorageFault
from appliance.ipc.shared_memory import Region
from appliance.log.checkpoint import read_offsets
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    LOG,
    META_PROPERTIES,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    parse_partition_directory_name,
    parse_segment_file_name,
)
from appliance.log.known_directories import KnownDirectories, used_directories
from appliance.log.lock_file import open_lock_file
from appliance.log.meta_properties import read_properties
from appliance.log.partition_metadata import read_topic_id
from appliance.log.partition_state import FILE_BYTES, STATE, Mode, PartitionState, decode

LOCK: Final = ".lock"
RUN_FILE: Final = "run.json"
PATIENCE_S: Final = 30.0
QUIET_TRIES: Final = 20_000
_NAMED_MAX: Final = 5
_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class CutPartition:
    """A partition at the moment: records in `[log_start, high_watermark)`, in the files of `directory`.

    `files_version` is that of the partition table; 0 if the appliance is stopped.
    """

    name: TopicPartition
    topic_id: UUID
    replicas: tuple[int, ...]
    log_start: int
    high_watermark: int
    directory: Path
    recovery_point: int
    row: int = -1
    files_version: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """The moment. `slots` has the `meta.properties` of each slot.

    `metadata` is the content of the metadata store, and `metadata_file` its name in the backup.
    """

    cluster_id: str
    metadata: bytes
    metadata_file: str
    partitions: tuple[CutPartition, ...]
    slots: Mapping[int, bytes]
    created_ms: int


@contextmanager
def opened(data_dir: Path, zookeeper: str | None = None) -> Iterator[RunningSource | StoppedSource]:
    """The appliance on a data directory, running or stopped; a stopped one cannot start in the body.

    Args:
        zookeeper: where its metadata are if they are in ZooKeeper; a running appliance says so by itself.

    Raises:
        OperatorFault: this is no data directory, nobody knows where its ZooKeeper is, or this user may not read it.
        HostFault: the appliance stopped just now.
    """
    try:
        owner = data_dir.stat().st_uid
        if os.geteuid() not in (0, owner):
            raise PermissionError
        facts = _run_facts(data_dir)
        metadata = _metadata_of(data_dir, zookeeper, facts)
        pid = facts.get("pid")
        memory = runtime_directory.find(data_dir, owner=owner, pid=pid if isinstance(pid, int) else None)
    except FileNotFoundError:
        raise OperatorFault(f"{data_dir}: no such directory") from None
    except PermissionError:
        raise OperatorFault(
            f"this user cannot read {data_dir}: run the command as the appliance's own user or as root"
        ) from None
    with storage_faults(data_dir):
        lock = open_lock_file(data_dir / LOCK, writable=False)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if memory is None or not facts:
                raise HostFault(f"the appliance on {data_dir} is starting or stopping; try again") from None
            with closing(RunningSource(data_dir, memory, owner, facts, metadata)) as source:
                yield source
            return
        yield StoppedSource(data_dir, metadata)
    finally:
        metadata.close()
        os.close(lock)


def _metadata_of(data_dir: Path, zookeeper: str | None, facts: Mapping[str, Any]) -> MetadataSource:
    """Where the metadata are. Raises OperatorFault."""
    if (data_dir / DATABASE_NAME).exists():
        if zookeeper is not None:
            raise OperatorFault(f"the metadata of {data_dir} are in {DATABASE_NAME}, not in ZooKeeper")
        return EmbeddedMetadata(data_dir)
    if not (data_dir / SESSIONS).exists():
        raise OperatorFault(f"{data_dir} is no data directory of an appliance: {DATABASE_NAME} is not there")
    connect = zookeeper or facts.get("zookeeper_connect")
    if not isinstance(connect, str):
        raise OperatorFault(
            f"the metadata of {data_dir} are in ZooKeeper, and the appliance does not run: give --zookeeper"
            " HOST:PORT/CHROOT, as zookeeper.connect has it"
        )
    return ZooKeeperMetadata(connect)


class RunningSource:
    """An appliance that runs, through its shared memory, which is mapped read-only."""

    __slots__ = ("_directories", "_image", "_metadata", "_pointer", "_table", "data_dir")

    def __init__(
        self,
        data_dir: Path,
        memory: Path,
        owner: int,
        facts: Mapping[str, Any],
        metadata: MetadataSource,
    ) -> None:
        self.data_dir = data_dir
        self._metadata = metadata
        self._pointer = Region.open(f"{memory}/{IMAGE}", owner=owner, writable=False)
        self._table = Region.open(f"{memory}/partitions", owner=owner, writable=False)
        self._image = ImageReader(memory, self._pointer.view, owner=owner)
        self._directories = [[Path(each) for each in slot] for slot in facts["log_dirs"]]

    def close(self) -> None:
        self._pointer.close()
        self._table.close()

    @property
    def log_directories(self) -> list[Path]:
        return [directory for slot in self._directories for directory in slot]

    def cut(self) -> Cut:
        """Make the cut, at most PATIENCE_S after the call.

        Raises:
            HostFault: partitions have no leader or are not recovered, or the metadata change all the time.
            StorageFault: the metadata cannot be read.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._cut()
            except (MetadataMoved, HostFault) as fault:
                if time.monotonic() > deadline:
                    if isinstance(fault, HostFault):
                        raise
                    raise HostFault(f"the metadata changed all the time for {PATIENCE_S:.0f} s") from fault
                time.sleep(_PAUSE_S)

    def _cut(self) -> Cut:
        image = self._image.current()
        if image is None:
            raise HostFault("the appliance has not published its metadata yet; try again")
        metadata = self._metadata.content(image.cluster_id)
        created_ms, watermarks, rows = self._watermarks(image)
        if self._image.version != image.version:
            raise MetadataMoved
        points: dict[Path, Mapping[TopicPartition, int]] = {}
        partitions = []
        for topic in image.topics.values():
            for each in topic.partitions:
                name = TopicPartition(topic.name, each.partition)
                log_start, version = rows[each.row, LOG_START], rows[each.row, FILES_VERSION]
                directory = self._directory_of(name, each.leader)
                if directory is None:
                    if watermarks[name]:
                        raise HostFault(
                            f"the files of {name} are not there; its log directory may have failed"
                        )
                    continue
                if version % 2:
                    raise MetadataMoved
                if directory.parent not in points:
                    points[directory.parent] = recovery_points(directory.parent)
                partitions.append(
                    CutPartition(
                        name=name,
                        topic_id=topic.topic_id,
                        replicas=each.replicas,
                        log_start=min(log_start, watermarks[name]),
                        high_watermark=watermarks[name],
                        directory=directory,
                        recovery_point=points[directory.parent].get(name, 0),
                        row=each.row,
                        files_version=version,
                    )
                )
        slots = {
            slot: properties
            for slot, directories in enumerate(self._directories)
            if (properties := slot_properties(directories)) is not None
        }
        return Cut(image.cluster_id, metadata, self._metadata.file, tuple(partitions), slots, created_ms)

    def has_same_files(self, partition: CutPartition) -> bool:
        """Whether the names of its segments still mean the files of the cut."""
        at = partition.row * self._row_words + FILES_VERSION
        return bool(self._cells[at] == partition.files_version)

    @property
    def _row_words(self) -> int:
        return ROW_WORDS + SLOT_WORDS * len(self._directories)

    @property
    def _cells(self) -> memoryview:
        return self._table.view.cast("B").cast("q")

    def _watermarks(
        self, image: ClusterImage
    ) -> tuple[int, dict[TopicPartition, int], dict[tuple[int, int], int]]:
        """The wall clock, the high watermarks, and log starts and files versions by row."""
        transactions, internal, others = [], [], []
        for topic in image.topics.values():
            for each in topic.partitions:
                entry = (TopicPartition(topic.name, each.partition), each.row, each.incarnation)
                if topic.name == TRANSACTION_STATE:
                    transactions.append(entry)
                elif is_internal(topic.name):
                    internal.append(entry)
                else:
                    others.append(entry)
        every = [*transactions, *internal, *others]
        words = self._row_words
        length = (max((row for _, row, _ in every), default=-1) + 1) * words
        cells = self._cells[:length]
        tables = copy_while_quiet(
            lambda: memoryview(bytes(cells)).cast("q"),
            [row * words + HIGH_WATERMARK for _, row, _ in transactions],
        )
        created_ms = time.time_ns() // 1_000_000
        self._check_led(every, tables)
        found = {
            name: table[row * words + HIGH_WATERMARK]
            for table, entries in zip(tables, (transactions, internal, others), strict=False)
            for name, row, _ in entries
        }
        rows = {
            (row, word): tables[2][row * words + word]
            for _, row, _ in every
            for word in (LOG_START, FILES_VERSION)
        }
        return created_ms, found, rows

    def _check_led(self, every: list[tuple[TopicPartition, int, int]], tables: list[memoryview]) -> None:
        """Raises HostFault where a partition has no leader, or its high watermark is from a checkpoint still."""
        words = self._row_words
        without = [
            str(name)
            for name, row, incarnation in every
            for table in tables
            if table[row * words + SERVING_INCARNATION] != incarnation
            or table[row * words + WATERMARK_INCARNATION] != incarnation
            or table[row * words + HIGH_WATERMARK] < table[row * words + RESTART_LOG_END]
        ]
        if without:
            names = list(dict.fromkeys(without))
            more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
            raise HostFault(
                f"partitions have no leader, or it is not ready: {', '.join(names[:_NAMED_MAX])}{more};"
                " see `appliance partitions list --unavailable`"
            )

    def _directory_of(self, name: TopicPartition, slot: int) -> Path | None:
        if not 0 <= slot < len(self._directories):
            raise MetadataMoved
        found = [each / str(name) for each in self._directories[slot] if (each / str(name)).is_dir()]
        if len(found) > 1:  # an interrupted move between directories has left one
            found.sort(key=lambda each: state.sequence if (state := read_state(each)) else -1)
        return found[-1] if found else None


def copy_while_quiet(copy: Callable[[], memoryview], cells: Sequence[int]) -> list[memoryview]:
    """Four copies of a table, one after the other, between the first and last of which no cell of `cells` changed.

    They must be four. The cells of one copy are not of one instant: with two kinds of partitions out of the same copy,
    a marker can come between the one and the other, and the end of its transaction after it.

    Raises:
        HostFault: the cells change all the time.
    """
    for _ in range(QUIET_TRIES):
        tables = [copy() for _ in range(4)]
        if all(tables[0][cell] == tables[3][cell] for cell in cells):
            return tables
    raise HostFault("transactions end all the time; the cut was not made")


class StoppedSource:
    """A data directory whose appliance is stopped, and stays so."""

    __slots__ = ("_metadata", "data_dir")

    def __init__(self, data_dir: Path, metadata: MetadataSource) -> None:
        self.data_dir = data_dir
        self._metadata = metadata

    @property
    def log_directories(self) -> list[Path]:
        return [directory for directories in self._directories().values() for directory in directories]

    def has_same_files(self, partition: CutPartition) -> bool:
        """Nobody writes them."""
        return True

    def cut(self) -> Cut:
        """What the state files say.

        Raises:
            OperatorFault: a log was not closed cleanly.
            StorageFault: a file cannot be read. CorruptFile: one does not parse.
        """
        slots: dict[int, bytes] = {}
        best: dict[TopicPartition, tuple[tuple[int, bool, int], CutPartition]] = {}
        holders: dict[TopicPartition, set[int]] = {}
        cluster = ""
        for slot, directories in sorted(self._directories().items()):
            for directory in directories:
                with storage_faults(directory):
                    names = sorted(os.listdir(directory))
                    if META_PROPERTIES in names:
                        slots.setdefault(slot, read_regular(directory / META_PROPERTIES))
                        cluster = read_properties(directory / META_PROPERTIES).get("cluster.id", cluster)
                points = recovery_points(directory)
                for name in filter(None, map(parse_partition_directory_name, names)):
                    found = _stopped_partition(directory / str(name), name, points.get(name, 0))
                    if found is not None:
                        holders.setdefault(name, set()).add(slot)
                        best[name] = max(best.get(name, found), found, key=lambda each: each[0])
        partitions = tuple(
            CutPartition(
                each.name,
                each.topic_id,
                tuple(sorted(holders[each.name])),
                each.log_start,
                each.high_watermark,
                each.directory,
                each.recovery_point,
            )
            for _, each in sorted(best.values(), key=lambda found: found[1].name)
        )
        if not slots:
            raise OperatorFault(f"{self.data_dir} has no log directory")
        try:
            metadata = self._metadata.content(cluster)
        except MetadataMoved:
            raise HostFault(
                "somebody changes the metadata all the time, and the appliance is stopped"
            ) from None
        return Cut(cluster, metadata, self._metadata.file, partitions, slots, time.time_ns() // 1_000_000)

    def _directories(self) -> dict[int, list[Path]]:
        """The log directories of each slot. Raises StorageFault where a disk that was used is not mounted."""
        used_directories(self.data_dir)
        found: dict[int, list[Path]] = {}
        for path in self.data_dir.glob("slot-*.log-dirs.json"):
            number = path.name.removeprefix("slot-").removesuffix(".log-dirs.json")
            if number.isdigit():
                found[int(number)] = KnownDirectories(path).paths
        for path in self.data_dir.glob("slot-*"):
            number = path.name.removeprefix("slot-")
            if number.isdigit() and path.is_dir():
                found.setdefault(int(number), [path])
        return found


def _stopped_partition(
    directory: Path, name: TopicPartition, recovery_point: int
) -> tuple[tuple[int, bool, int], CutPartition] | None:
    """A partition in a log directory, and its rank among the replicas; the highest goes into the backup.

    The leader epoch comes first: a slot that led before and was not heard of since has `leads` in its state file still,
    and may lack what its successor acknowledged.
    """
    with storage_faults(directory / STATE):
        state = read_state(directory)
    topic_id = read_topic_id(directory)
    if topic_id is None or state is None:
        if has_records(directory):
            missing = STATE if state is None else PARTITION_METADATA
            raise OperatorFault(
                f"{directory} has records, and its {missing} is missing, damaged or of another version: start the"
                " appliance, and back up while it runs or after a clean stop"
            )
        return None
    if state.mode is not Mode.CLOSED:
        raise OperatorFault(
            f"{directory} was not closed cleanly: start the appliance, and back up while it runs or after a clean stop"
        )
    cut = CutPartition(name, topic_id, (), state.log_start, state.high_watermark, directory, recovery_point)
    return (state.leader_epoch, state.leads, state.high_watermark), cut


def has_records(directory: Path) -> bool:
    """Whether a segment of a partition's directory has bytes. Raises StorageFault."""
    with storage_faults(directory), os.scandir(directory) as entries:
        return any(
            (parsed := parse_segment_file_name(entry.name)) is not None
            and parsed[1] == LOG
            and entry.stat(follow_symlinks=False).st_size > 0
            for entry in entries
        )


def read_state(directory: Path) -> PartitionState | None:
    """The state file of a partition's directory; None if there is none, or it is being written for the first time."""
    try:
        descriptor = os.open(directory / STATE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        for _ in range(100):
            if (found := decode(os.pread(descriptor, FILE_BYTES, 0))) is not None:
                return found
            time.sleep(0.001)
        return None
    finally:
        os.close(descriptor)


def slot_properties(directories: Sequence[Path]) -> bytes | None:
    """`meta.properties` of the first log directory of a slot that can be read; None if there is none.

    Each directory of a slot has one. A directory whose disk failed must not take the slot out of the backup.
    """
    for directory in directories:
        with suppress(StorageFault):
            if content := read_regular(directory / META_PROPERTIES):
                return content
    return None


def recovery_points(directory: Path) -> Mapping[TopicPartition, int]:
    """The recovery points of a log directory; none where the file is damaged, so that more is read at the start."""
    try:
        return read_offsets(directory / RECOVERY_POINTS)
    except CorruptFile:
        return {}


def _run_facts(directory: Path) -> dict[str, Any]:
    with suppress(FileNotFoundError, ValueError):
        facts = json.loads((directory / RUN_FILE).read_text(encoding="utf-8"))
        if isinstance(facts, dict) and isinstance(facts.get("log_dirs"), list):
            return facts
    return {}
