"""What a worker counts in its row of the process table, for whoever looks.

| counter | holds |
|---|---|
| 0 | which of its slot's log directories have failed, a bit each, by their place in `log.dirs` |
| 1 | partitions that are offline |
| 2 | partitions that are on their way to another log directory |
| 3 | producer ids that are remembered, as of the last checkpoint |
| 4 | producer ids that were forgotten since the start, because there were too many |
| 5 | partitions that lost records in this life of the worker: every in-sync copy was damaged |
| 6 | damaged batches that were repaired from another copy in this life of the worker |
| 7 | the errno with which the log directory that failed last did so; 0 where none is known |
"""

from __future__ import annotations

from typing import Final

from appliance.ipc.process_table import COUNTER_0, ProcessRow

FAILED_DIRECTORIES: Final = COUNTER_0
OFFLINE_PARTITIONS: Final = COUNTER_0 + 1
MOVING_PARTITIONS: Final = COUNTER_0 + 2
PRODUCER_IDS: Final = COUNTER_0 + 3
FORGOTTEN_PRODUCER_IDS: Final = COUNTER_0 + 4
LOST_PARTITIONS: Final = COUNTER_0 + 5
REPAIRED_BATCHES: Final = COUNTER_0 + 6
FAILED_DIRECTORY_ERRNO: Final = COUNTER_0 + 7

DIRECTORIES_MAX: Final = 63
"""Log directories of a slot: a bit each in a signed word."""


def has_failed(row: ProcessRow, directory: int) -> bool:
    """Whether the worker says that this log directory has failed."""
    return bool(row.cells[FAILED_DIRECTORIES] >> directory & 1)


def directories_of(bits: int) -> list[int]:
    """The indexes that FAILED_DIRECTORIES names."""
    return [index for index in range(DIRECTORIES_MAX) if bits >> index & 1]
