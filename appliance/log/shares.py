"""Several processes on one log directory: each worker has the partitions it owns, the replica those that are followed.

A partition is open in one of them at most: which worker owns it never changes in the life of the instance, and the
controller lets it go from hand to hand between that worker and the replica. So its files need nothing else. What is of
the whole directory is kept so:

| file | who |
|---|---|
| `.lock` | a slot's only worker holds it alone; several hold it together, and each a `.lock-workerN` of its own |
| `.lock-followers` | the replica holds it |
| `meta.properties` | whoever comes first makes it |
| checkpoints | each replaces the lines of the partitions it has open, and leaves the others' as they are |
| `.kafka_cleanshutdown` | taken away by who opens first; written by the last that closes in good order |
| `.closed-before` | the name of the instance whose process took it away: the others know by it that nobody else did |
| `.closed-workerN`, `.closed-followers` | what each has closed in good order; removed by each that opens |

Whether the directory was closed in good order is looked at once, before the first of them is forked: nobody has opened
anything by then. It holds for each first life, if it was one of them that took the marker away: until they have their
locks another instance, or Kafka, may be there. Not for a later life, which is there because the one before was killed.

A slot of one worker and no replica has its directories WHOLE, and none of this concerns it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from appliance.errors import StorageFault
from appliance.log.checkpoint import replace_file, sync_directory
from appliance.log.faults import storage_faults
from appliance.log.file_names import CLEAN_SHUTDOWN, LOCK
from appliance.log.lock_file import lock_within, open_lock_file

_CLOSED: Final = ".closed-"
_TAKEN: Final = f"{_CLOSED}before"
_BETWEEN: Final = ".lock-checkpoints"
_OF_SEVERAL: Final = (f"{LOCK}-", _CLOSED)
_FOLLOWERS: Final = "followers"


def _of_worker(index: int) -> str:
    # With a hyphen before the number it would be the name of a partition.
    return f"worker{index}"


@dataclass(frozen=True, slots=True)
class Share:
    """Which of a slot's partitions a process has.

    `worker`: those that this worker owns, of `workers`; None: those that the slot follows. `is_replicated`: whether
    the slot has a replica process.
    """

    worker: int | None = 0
    workers: int = 1
    is_replicated: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether no other process shares the directories."""
        return self == WHOLE

    @property
    def follows(self) -> bool:
        return self.worker is None

    @property
    def is_first(self) -> bool:
        """Whether it is the one that keeps what is of the slot and wants a single hand."""
        return self.worker == 0

    @property
    def name(self) -> str:
        return _FOLLOWERS if self.worker is None else _of_worker(self.worker)

    @property
    def lock(self) -> str:
        """The file that says that the process lives."""
        return LOCK if not self.follows and self.workers == 1 else f"{LOCK}-{self.name}"

    @property
    def locks(self) -> tuple[str, ...]:
        """Those that it takes; that of `lock` alone, any other together with others."""
        return (self.lock,) if self.follows or self.workers == 1 else (LOCK, self.lock)

    @property
    def names(self) -> list[str]:
        """Of all shares, this one among them."""
        workers = [_of_worker(index) for index in range(self.workers)]
        return [*workers, _FOLLOWERS] if self.is_replicated else workers


WHOLE: Final = Share()
LEADERS: Final = Share(is_replicated=True)
FOLLOWERS: Final = Share(None, is_replicated=True)


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Keep the other processes out of what belongs to the whole directory. A process that dies lets go.

    Raises:
        StorageFault: the directory refuses it, or somebody holds the lock for longer than `lock_file.WAIT_MAX_MS`.
    """
    path = directory / _BETWEEN
    with storage_faults(directory):
        descriptor = open_lock_file(path)
    try:
        lock_within(descriptor, path)
        yield
    finally:
        os.close(descriptor)


def take_marker(directory: Path) -> bool:
    """Whether the directory was closed in good order. It is not any more, and that is made sure of before anything is
    opened.

    Raises:
        StorageFault: it failed.
    """
    marker = directory / CLEAN_SHUTDOWN
    with storage_faults(marker):
        if not marker.exists():
            return False
        marker.unlink()
        sync_directory(directory)
    return True


def take_shared_marker(directory: Path, seen_by: str) -> bool:
    """As `take_marker`, also where another of us took it away. `seen_by`: the instance that had seen the marker before
    it forked any of us; empty in a later life.

    Raises:
        StorageFault: it failed.
    """
    taken = directory / _TAKEN
    if take_marker(directory):
        # Without it, on a full disk, those who come after us find nothing clean, and recover what they own.
        with suppress(StorageFault):
            replace_file(taken, seen_by.encode(), durable=False)
        return True
    with storage_faults(taken):
        try:
            if seen_by and taken.read_text() == seen_by:
                return True
        except (FileNotFoundError, ValueError):
            pass
        taken.unlink(missing_ok=True)
    return False


def forget_taken(directory: Path) -> None:
    """Who took the marker before means nothing any more. Raises StorageFault: it failed."""
    with storage_faults(directory):
        (directory / _TAKEN).unlink(missing_ok=True)


class Closed(NamedTuple):
    """A share's last word: the partition directories that it has closed in good order, and whether all others of its
    own were so already when it began, and have not been touched since."""

    directories: frozenset[str]
    began_clean: bool


def say_closed(directory: Path, share: Share, closed: Closed) -> None:
    """Raises StorageFault: it failed."""
    said = {"beganClean": closed.began_clean, "closed": sorted(closed.directories)}
    # The marker alone is read in the next life; this only until then.
    replace_file(directory / f"{_CLOSED}{share.name}", json.dumps(said).encode(), durable=False)


def take_back_closed(directory: Path, share: Share) -> None:
    """From now on partitions may be open: what any of them has said holds no more. Raises StorageFault: it failed."""
    with storage_faults(directory):
        for name in share.names:
            (directory / f"{_CLOSED}{name}").unlink(missing_ok=True)


def all_closed(directory: Path, share: Share) -> list[Closed] | None:
    """What all shares have said; None while one has not."""
    said = []
    for name in share.names:
        try:
            found = json.loads((directory / f"{_CLOSED}{name}").read_bytes())
            said.append(Closed(frozenset(found["closed"]), bool(found["beganClean"])))
        except (OSError, ValueError, KeyError, TypeError):
            return None
    return said


def remove_traces(directory: Path, names: Collection[str]) -> None:
    """Of `names` in a directory that is WHOLE, what those who shared it have left goes."""
    for name in names:
        if name.startswith(_OF_SEVERAL):
            with suppress(OSError):
                (directory / name).unlink()
