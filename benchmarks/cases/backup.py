"""Backup and restore of a running appliance, beside `cp -r` and `rsync` of its data directory, in turns.

    first     into an empty target: `appliance backup`, `cp -r`, `rsync -a`
    again     nothing new:          `appliance backup`,          `rsync -a`
    more      1/16 more records:    `appliance backup`,          `rsync -a`
    verify    `appliance backup verify`
    restore   into an empty directory: `appliance restore`, `cp -r`, `rsync -a`

Each time ends when the bytes are on the disk: backup and restore flush by themselves, and `sync -f` follows the copies.
The dirty pages of before are written first. All ways are on one disk, and read what the page cache holds. MB/s count
the bytes that the backup holds, for all ways. A copy of a running appliance is no backup: it shows no one moment.
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.brokers.broker import SpawnedBroker
from benchmarks.cases.case import Bench, Case, Figures
from benchmarks.load import generators
from benchmarks.machine import GIB
from benchmarks.void import Void

PARTITIONS = 4
RECORD_BYTES = 1024
MORE_SHARE = 16
ROOM_SHARE = 8
"""Of the payload: the logs, three targets, one restored directory, and what `more` adds to them."""
PATIENCE_S = 3600.0
_turns = itertools.count()


class Way(Protocol):
    """A way to copy a data directory, and back. Both return seconds, until the bytes are on the disk, or raise Void."""

    @property
    def name(self) -> str:
        """As the figures name it."""

    @property
    def is_incremental(self) -> bool:
        """Whether a second time into the same target is of interest."""

    def back_up(self, data_dir: Path, target: Path) -> float:
        """Copy into `target`, which does not exist or is of the same way."""

    def restore(self, target: Path, data_dir: Path) -> float:
        """Copy into `data_dir`, which does not exist."""


@dataclass(frozen=True, slots=True)
class Copier:
    """A program that takes the source and the target."""

    words: tuple[str, ...]
    is_incremental: bool

    @property
    def name(self) -> str:
        return self.words[0]

    def back_up(self, data_dir: Path, target: Path) -> float:
        target.mkdir(exist_ok=True)
        os.sync()
        began = time.monotonic()
        _ended([*self.words, f"{data_dir}/.", str(target)])
        _ended(["sync", "-f", str(target)])
        return time.monotonic() - began

    def restore(self, target: Path, data_dir: Path) -> float:
        return self.back_up(target, data_dir)


@dataclass(slots=True)
class OfAppliance:
    """The commands of the appliance that is measured; what the last one said."""

    environment: dict[str, str]
    name: str = "appliance"
    is_incremental: bool = True
    told: dict[str, Any] = field(default_factory=dict)

    def run(self, *arguments: str | Path) -> float:
        words = [sys.executable, "-m", "appliance", *map(str, arguments), "--json"]
        os.sync()
        began = time.monotonic()
        said = _ended(words, environment={**os.environ, **self.environment})
        seconds = time.monotonic() - began
        self.told = json.loads(said)
        return seconds

    def back_up(self, data_dir: Path, target: Path) -> float:
        return self.run("backup", data_dir, target)

    def restore(self, target: Path, data_dir: Path) -> float:
        return self.run("restore", target, data_dir)


COPIERS = (Copier(("cp", "-r"), is_incremental=False), Copier(("rsync", "-a"), is_incremental=True))


def copiers() -> list[Copier]:
    """Those that this host has."""
    return [each for each in COPIERS if shutil.which(each.name)]


def _backup(bench: Bench) -> Figures:
    assert isinstance(bench.broker, SpawnedBroker)
    appliance = OfAppliance(bench.broker.environment())
    payload = bench.scale.backlog_bytes
    place = bench.broker.data_dir / "backups"
    place.mkdir()
    if shutil.disk_usage(place).free < ROOM_SHARE * payload:
        raise Void(f"less than {ROOM_SHARE * payload >> 20} MiB are free below {place}")
    data_dir = bench.broker.data_dir / "kept"
    topic = bench.topic(PARTITIONS)
    records = _fill(bench, topic, payload, before=0)
    ways = rotated([appliance, *copiers()], next(_turns))
    taken = {way.name: way.back_up(data_dir, place / way.name) for way in ways}
    held = appliance.told["bytes"]
    _check(appliance, "copied_bytes", payload)
    figures = {f"{name}_mb_s": held / seconds / 1e6 for name, seconds in taken.items()}
    for what in ("again", "more"):
        if what == "more":
            records = _fill(bench, topic, payload // MORE_SHARE, before=records)
        for way in (each for each in ways if each.is_incremental):
            figures[f"{way.name}_{what}_s"] = way.back_up(data_dir, place / way.name)
        figures[f"appliance_{what}_copied_mb"] = appliance.told["copied_bytes"] / 1e6
    _check(appliance, "copied_bytes", payload // MORE_SHARE)
    held = appliance.told["bytes"]
    figures["verify_mb_s"] = held / appliance.run("backup", "verify", place / appliance.name) / 1e6
    for way in ways:
        seconds = way.restore(place / way.name, place / "restored")
        figures[f"{way.name}_restore_mb_s"] = held / seconds / 1e6
        shutil.rmtree(place / "restored")
    _check(appliance, "written_bytes", records * RECORD_BYTES)
    shutil.rmtree(place)
    return figures


def _check(appliance: OfAppliance, name: str, length_bytes: int) -> None:
    """Raises Void if the last command has handled fewer bytes than the records have."""
    if appliance.told[name] < length_bytes:
        raise Void(f"{name} is {appliance.told[name]}, and the records have {length_bytes} bytes")


def _fill(bench: Bench, topic: str, length_bytes: int, *, before: int) -> int:
    """Append so many bytes of records. Return how many records the topic has."""
    records = length_bytes // RECORD_BYTES
    generators.stream_in(
        bench.broker.address, topic, records=records, record_bytes=RECORD_BYTES, partition=None
    )
    bench.check_records(topic, before + records, partitions=PARTITIONS)
    return before + records


def rotated(ways: Sequence[Way], turn: int) -> list[Way]:
    """Another one first each turn."""
    first = turn % len(ways)
    return [*ways[first:], *ways[:first]]


def _ended(words: Sequence[str], environment: dict[str, str] | None = None) -> str:
    """What a command that succeeds has printed. Raises Void."""
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env=environment, timeout=PATIENCE_S
    )
    if done.returncode:
        raise Void(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


CASES = (
    Case(
        "backup",
        "1 GiB of 1 KiB records in 4 partitions: backup while it runs, a later backup, verify and restore, each on the"
        " disk; beside `cp -r` and `rsync -a` of the data directory, in turns",
        _backup,
        not_for=frozenset({"mock", "kafka"}),
        by_name=True,
        lends_bytes=2 * GIB,
        own=True,
    ),
)
