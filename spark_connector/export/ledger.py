"""What an export has undertaken and what of it is done: files in `_appliance`, beside the data.

    DIR/
      date=2026-11-21/orders-0-4000-8999-0.parquet    records 4000 to 8999 of partition 0, first file of that day
      _appliance/                                     (readers of Parquet pass over names that begin with _)
        export.json                                   which topic, by name and id, and how it is read
        plan-00000002.json                            the ranges of the newest run; written before any of them is read
        done-00000002/0-4000-9000.json                a range whose files all stand
        work/                                         files being written
        lock                                          held while somebody exports

**Exactly once.** A run begins by writing down its ranges of offsets. A task writes its range's files under `work`,
flushes them, renames them to their places and only then says that the range is done. Whoever dies leaves ranges that
are not done: the next run takes up the same ranges, so that the same names are written again, over what stands there
already. A new plan begins where the last one ended, and only when all of it is done.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from appliance.errors import CorruptFile, OperatorFault

HOME: Final = "_appliance"
VERSION: Final = 1


class OtherExport(OperatorFault):
    """The directory holds something else than what was asked for."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is exported. `topic_id` is empty where the directory does not know it."""

    topic: str
    topic_id: str
    isolation: str
    headers: bool


@dataclass(frozen=True, slots=True, order=True)
class Range:
    """Offsets [start, end) of a partition: what one task exports."""

    partition: int
    start: int
    end: int

    @property
    def mark(self) -> str:
        """The name of the file that says that it is done."""
        return f"{self.partition}-{self.start}-{self.end}.json"

    def stem(self, topic: str) -> str:
        """How the names of its files begin, the last offset included as in Kafka's own names of ranges."""
        return f"{topic}-{self.partition}-{self.start}-{self.end - 1}-"


@dataclass(frozen=True, slots=True)
class Done:
    """What came of a range: rows, files with their bytes, and offsets that were deleted before they were exported."""

    rows: int
    files: int
    size_bytes: int
    lost: int


@dataclass(frozen=True, slots=True)
class Run:
    """One plan. `ends`: where each partition's next plan begins, once this one is done."""

    number: int
    ranges: tuple[Range, ...]
    ends: dict[int, int]


class Ledger:
    """The files above, for one export directory. What is written is on the disk when a call returns."""

    __slots__ = ("directory", "home")

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        self.home: Final = directory / HOME

    @contextmanager
    def held(self) -> Iterator[None]:
        """Makes the directory if need be, and keeps others from exporting to it. Raises OperatorFault, OSError."""
        if not self.home.is_dir() and self.directory.is_dir() and any(self.directory.iterdir()):
            raise OtherExport(
                f"{self.directory} is not empty and holds no export; give a directory of its own"
            )
        self.home.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.home / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OperatorFault(f"another export to {self.directory} is under way") from None
            yield
        finally:
            os.close(descriptor)

    def undertake(self, subject: Subject) -> None:
        """Says what is exported, or checks that it is what was exported here before. Raises OtherExport."""
        path = self.home / "export.json"
        wanted = {"version": VERSION, **asdict(subject)}
        if not path.exists():
            self._write(path, wanted)
            return
        found = _read(path)
        for name, value in wanted.items():
            if found.get(name) == value:
                continue
            if name == "topic_id":
                raise OtherExport(
                    f"{self.directory} holds a topic {subject.topic} that was deleted; the one of today has another id"
                )
            raise OtherExport(
                f"{self.directory} holds an export with {name} = {found.get(name)!r}, not {value!r}"
            )

    def run(self) -> Run | None:
        """The newest plan; None before the first. Raises CorruptFile."""
        numbers = sorted(self.home.glob("plan-*.json"))
        if not numbers:
            return None
        told = _read(numbers[-1])
        try:
            return Run(
                int(numbers[-1].stem.removeprefix("plan-")),
                tuple(Range(*each) for each in told["ranges"]),
                {int(partition): end for partition, end in told["ends"].items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as fault:
            raise CorruptFile(f"{numbers[-1]}: {fault}") from fault

    def plan(self, ranges: Sequence[Range], ends: dict[int, int]) -> Run:
        """Writes a new plan down; the one before must be done."""
        last = self.run()
        run = Run(1 if last is None else last.number + 1, tuple(ranges), dict(ends))
        self.marks(run).mkdir(exist_ok=True)
        self._write(
            self.home / f"plan-{run.number:08}.json",
            {"ranges": [[each.partition, each.start, each.end] for each in run.ranges], "ends": run.ends},
        )
        if last is not None:  # what was done is told by the new plan's beginnings
            (self.home / f"plan-{last.number:08}.json").unlink(missing_ok=True)
            shutil.rmtree(self.marks(last), ignore_errors=True)
        return run

    def marks(self, run: Run) -> Path:
        """Where tasks say that a range is done."""
        return self.home / f"done-{run.number:08}"

    def done(self, run: Run) -> dict[Range, Done]:
        """Of a plan, what is done. Raises CorruptFile."""
        try:
            names = {entry.name for entry in os.scandir(self.marks(run))}
        except FileNotFoundError:
            return {}
        return {each: Done(**_read(self.marks(run) / each.mark)) for each in run.ranges if each.mark in names}

    def _write(self, path: Path, content: object) -> None:
        write_whole(path, content, aside=self.home)


def write_whole(path: Path, content: object, *, aside: Path) -> None:
    """Writes JSON so that `path` has all of it or is not there, power cut or not; first in the directory `aside`."""
    fresh = aside / f".{path.name}.{os.getpid()}"
    with open(fresh, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    flush_directory(path.parent)


def flush_directory(path: Path) -> None:
    """Names in it are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except ValueError as fault:
        raise CorruptFile(f"{path}: {fault}") from fault
    if not isinstance(found, dict):
        raise CorruptFile(f"{path} is no JSON object")
    return found
