"""What a lookup by offset and by timestamp costs, µs of wall time each, at few and at many segments.

    python -m benchmarks.micro.log_lookup [--segments 10,10000] [--directory DIR]

The log has small segments, so that ten thousand of them fit on any disk; a lookup costs a binary search among
segments, one in an index, and a scan of at most `index.interval.bytes`. *Anywhere* opens the files of a segment
nearly every time (four sealed segments keep theirs), *near* looks again where it has just looked.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from appliance.clock import ManualClock
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.protocol.records.record import Record, encode_batch

ROUNDS = 3
LOOKUPS = 2000
START_MS = 1_700_000_000_000
BATCHES_A_SEGMENT = 16
BATCH_VALUE_BYTES = 1000


def filled(directory: Path, segments: int) -> PartitionLog:
    """A log of so many segments; timestamps rise by 1 ms a record."""
    clock = ManualClock(START_MS)
    batch_bytes = len(encode_batch([Record(bytes(BATCH_VALUE_BYTES), timestamp_ms=START_MS)]))
    settings = LogSettings(
        segment_bytes=batch_bytes * BATCHES_A_SEGMENT,
        message_timestamp_after_max_ms=2**62,
    )
    log = PartitionLog.open(directory / "t-0", settings=settings, clock=clock)
    for number in range(segments * BATCHES_A_SEGMENT):
        batch = encode_batch([Record(bytes(BATCH_VALUE_BYTES), timestamp_ms=START_MS + number)])
        log.append(memoryview(batch), leader_epoch=0)
    return log


def median_us(action: Callable[[int], object], places: list[int]) -> float:
    """The median of rounds, each the mean of its lookups."""
    rounds = []
    for _ in range(ROUNDS):
        started = time.perf_counter_ns()
        for place in places:
            action(place)
        rounds.append((time.perf_counter_ns() - started) / len(places) / 1000)
    return statistics.median(rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--segments", default="10,10000", help="numbers of segments, with commas")
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    print(f"{'lookup, µs':34} " + " ".join(f"{n + ' segments':>16}" for n in arguments.segments.split(",")))
    rows: dict[str, list[float]] = {}
    for segments in map(int, arguments.segments.split(",")):
        directory = Path(tempfile.mkdtemp(dir=arguments.directory))
        try:
            log = filled(directory, segments)
            end = log.log_end_offset
            anywhere = [number * 7919 * 16 % end for number in range(LOOKUPS)]
            near = [end // 2] * LOOKUPS

            def by_offset(offset: int, log: PartitionLog = log, end: int = end) -> object:
                return log.read(offset, max_bytes=1 << 20, upper_bound=end)

            def by_time(offset: int, log: PartitionLog = log, end: int = end) -> object:
                return log.offset_for_timestamp(START_MS + offset, upper_bound=end)

            rows.setdefault("by offset, anywhere", []).append(median_us(by_offset, anywhere))
            rows.setdefault("by offset, near", []).append(median_us(by_offset, near))
            by_time(0)  # the largest timestamps of all segments are read once
            rows.setdefault("by timestamp, anywhere", []).append(median_us(by_time, anywhere))
            rows.setdefault("by timestamp, near", []).append(median_us(by_time, near))
            log.close(clean=False)
        finally:
            shutil.rmtree(directory)
    for name, values in rows.items():
        print(f"{name:34} " + " ".join(f"{value:16.2f}" for value in values))


if __name__ == "__main__":
    main()
