"""The end of a move between log directories, beside the requests: the new place is made sure of, then the old one goes.

    swap (owner, one rename)    <target>/t-0, with moved-here in it     and    <source>/t-0
    1  target forced            its content and its name
    2  source renamed           <source>/t-0.<uuid>-delete
    3  moved-here removed

Killed, or without power, before 2: both are called `t-0`, and the next start opens both. The target counts, which was
appended to since, unless it is the shorter one: then what it holds more was acknowledged to nobody (it is forced before
it may be, under `durability = "fsync"`), while the source holds what was (`LogDirectories`). Before 3 the mark means
nothing any more, and goes with the next start. Its removal is forced before another move may begin.

The slot's other process may be given the partition meanwhile. Whoever settles holds the target directory's lock; who
lets the partition go calls it off, if it has not begun; who opens the partition settles it anew, under the same lock.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from appliance.cluster import TopicPartition
from appliance.log.checkpoint import sync_directory
from appliance.log.faults import storage_fault, storage_faults
from appliance.log.file_names import DIRECTORY_DELETED, MOVED_HERE, marked_directory_name
from appliance.log.flush import flush_files
from appliance.log.lock_file import lock_within


@dataclass(slots=True)
class Settlement:
    """Steps 1 to 3 of one move, to be run once, on any thread. `files` of the target may not be on the disk yet.

    `called_off`: it does nothing; it may be set as long as it has not begun.
    """

    partition: TopicPartition
    source: Path
    target: Path
    files: tuple[Path, ...]
    called_off: bool = False

    def run(self) -> None:
        """Does them.

        Raises:
            StorageFault: one failed; those after it were not begun.
        """
        with settling(self.target, waits=True):
            if not self.called_off:
                self._run()

    def _run(self) -> None:
        flush_files(self.files)
        with storage_faults(self.target):
            with suppress(FileNotFoundError):  # deleted since
                sync_directory(self.target)
            sync_directory(self.target.parent)
        with storage_faults(self.source):
            aside = self.source.with_name(marked_directory_name(self.partition, DIRECTORY_DELETED))
            os.rename(self.source, aside)
            sync_directory(self.source.parent)
        take_mark_off(self.target)


def take_mark_off(directory: Path) -> None:
    """Removes the mark of a move that is over, and forces that: else, after the next one, both places would bear it.

    Raises:
        StorageFault: it failed.
    """
    with storage_faults(directory), suppress(FileNotFoundError):
        os.unlink(f"{directory}/{MOVED_HERE}")
        sync_directory(directory)


@contextmanager
def settling(target: Path, *, waits: bool) -> Iterator[bool]:
    """Keep every other process from settling the move to `target`; yield whether none does. A process that dies
    lets go.

    Raises:
        StorageFault: the directory cannot be opened, or it `waits` and somebody holds the lock for longer than
            `lock_file.WAIT_MAX_MS`.
    """
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield True  # deleted since
        return
    except OSError as error:
        raise storage_fault(error, target) from error
    try:
        try:
            if waits:
                lock_within(descriptor, target)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(descriptor)
