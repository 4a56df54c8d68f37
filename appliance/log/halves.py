"""Two processes on one log directory: the worker has the partitions that the slot leads, the replica those it follows.

A partition is open in one of them at most, as the controller lets it go from hand to hand; its files need nothing else.
What is of the whole directory is kept so:

| file | who |
|---|---|
| `.lock` | the worker holds it; the replica holds `.lock-followers` |
| `meta.properties` | whoever comes first makes it |
| checkpoints | each replaces the lines of the partitions it has open, and leaves the others' as they are |
| `.kafka_cleanshutdown` | read, removed and written by the worker, if the replica has closed all of its own first |
| `.followers-closed` | written by the replica when it has closed in good order: its partitions, one a line |

A slot without a replica has its directories WHOLE, and none of this concerns it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from typing import Final

from appliance.cluster import TopicPartition
from appliance.log.checkpoint import replace_file
from appliance.log.faults import storage_faults
from appliance.log.file_names import (
    LOCK,
    parse_partition_directory_name,
    partition_directory_name,
)

FOLLOWERS_LOCK: Final = ".lock-followers"
FOLLOWERS_CLOSED: Final = ".followers-closed"
_BETWEEN: Final = ".lock-checkpoints"


class Half(Enum):
    """Which of a slot's partitions a process has."""

    WHOLE = "whole"
    LEADERS = "leaders"
    FOLLOWERS = "followers"

    @property
    def lock(self) -> str:
        """The file that says that the process lives."""
        return FOLLOWERS_LOCK if self is Half.FOLLOWERS else LOCK


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Keeps the other half out of checkpoints and `meta.properties` meanwhile; a process that dies lets go.

    Raises:
        StorageFault: the directory refuses it.
    """
    with storage_faults(directory):
        descriptor = os.open(directory / _BETWEEN, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def say_followers_closed(directory: Path, partitions: Iterable[TopicPartition]) -> None:
    """The replica's last word on a directory. Raises StorageFault: it failed."""
    lines = sorted(map(partition_directory_name, partitions))
    replace_file(directory / FOLLOWERS_CLOSED, "".join(f"{line}\n" for line in lines).encode())


def take_back_followers_closed(directory: Path) -> None:
    """From now on they may be open. Raises StorageFault: it failed."""
    with storage_faults(directory):
        (directory / FOLLOWERS_CLOSED).unlink(missing_ok=True)


def followers_closed(directory: Path) -> set[TopicPartition] | None:
    """The partitions that the replica has closed in good order; None where it has not said so."""
    with suppress(OSError):
        names = (directory / FOLLOWERS_CLOSED).read_text().splitlines()
        return {found for found in map(parse_partition_directory_name, names) if found is not None}
    return None
