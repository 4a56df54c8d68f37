"""Driving a round of compaction as the cleaner and the log's owner do, in one process."""

from __future__ import annotations

from appliance.log.cleaning import LogCleaning
from appliance.log.dirtiness import Dirtiness, Swap, dirtiness
from appliance.log.partition_log import PartitionLog

MAP_BYTES = 1 << 20


def cleaning_of(log: PartitionLog, what: Dirtiness, *, now_ms: int, load_factor: float = 0.9) -> LogCleaning:
    """A round over `log`."""
    return LogCleaning(
        log.directory, what, log.settings, now_ms=now_ms, map_bytes_max=MAP_BYTES, load_factor=load_factor
    )


def clean(log: PartitionLog, round_: LogCleaning) -> None:
    """Drives the round to its end; the log swaps whatever it is asked to."""
    cuts = log.bounds(0).cuts
    steps = round_.steps()
    try:
        step = next(steps)
        while True:
            if isinstance(step, Swap):
                done = log.replace_segments(
                    step.base_offset, step.end_offset, source_bytes=step.source_bytes, cuts=cuts
                )
                assert done, "the owner refused the swap"
                for path in log.directory.glob("*.deleted"):
                    path.unlink()
                step = steps.send(True)
            else:
                step = next(steps)
    except StopIteration:
        return


def compact(log: PartitionLog, *, checkpoint: int, now_ms: int) -> int:
    """One round over all that may be cleaned; where it ended."""
    bounds = log.bounds(log.stable_offset(log.log_end_offset))
    what = dirtiness(log.directory, bounds, log.settings, checkpoint=checkpoint, now_ms=now_ms)
    round_ = cleaning_of(log, what, now_ms=now_ms)
    clean(log, round_)
    return round_.end_offset
