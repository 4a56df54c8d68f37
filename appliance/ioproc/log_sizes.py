"""The sizes of a worker's logs, for the metrics process: written every ROUND_MS, in slices of SLICE partitions.

Only where there is a metrics process. A log with many segments costs a few microseconds, so a slice takes less than a
millisecond, and requests are served between two slices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from appliance.channels.traffic_table import LOG_BYTES, LOG_SEGMENTS, LOG_WORDS
from appliance.ioproc.partition import Partition
from appliance.ipc.agent import Timer

ROUND_MS: Final = 5_000
SLICE: Final = 200


class LogSizes:
    """The rounds of one worker.

    Args:
        view: the region `logs` (`channels.traffic_table`).
        by_row: the partitions that the worker leads, by their rows.
        after_ms: calls an action after some milliseconds.
    """

    __slots__ = ("_after_ms", "_by_row", "_cells", "_next")

    def __init__(
        self,
        view: memoryview,
        by_row: Sequence[Partition | None],
        *,
        after_ms: Callable[[int, Callable[[], None]], Timer],
    ) -> None:
        self._cells = view.cast("B").cast("q")
        self._by_row = by_row
        self._after_ms = after_ms
        self._next = 0
        after_ms(0, self._slice)

    def _slice(self) -> None:
        """Write the sizes of some partitions; the next slice comes in the next turn."""
        by_row, row, left = self._by_row, self._next, SLICE
        while left and row < len(by_row):
            partition = by_row[row]
            if partition is not None:
                self._write(row, partition)
                left -= 1
            row += 1
        is_done = row >= len(by_row)
        self._next = 0 if is_done else row
        self._after_ms(ROUND_MS if is_done else 1, self._slice)

    def _write(self, row: int, partition: Partition) -> None:
        cells, at, log = self._cells, row * LOG_WORDS, partition.log
        if cells[at] != partition.incarnation:
            cells[at] = 0
        cells[at + LOG_BYTES] = log.size_bytes
        cells[at + LOG_SEGMENTS] = log.segment_count
        cells[at] = partition.incarnation
