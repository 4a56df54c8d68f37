"""Compaction: MB/s and peak memory of one round, in one process, for a number of keys.

    python -m benchmarks.micro.compaction [--keys 1000000] [--value-bytes 100] [--codec none] [--directory DIR]

A log of twice as many records as keys, keys of 16 bytes in random order and batches of 100, is compacted. MB/s are the
bytes of the dirty part, once, over the time of both passes. Peak memory is the growth of the resident set over what the
process had before; the map's share is told apart.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import tempfile
import time
from pathlib import Path

from appliance.clock import SystemClock
from appliance.log.cleaning import LogCleaning
from appliance.log.config import LogSettings
from appliance.log.dirtiness import Swap, dirtiness
from appliance.log.partition_log import PartitionLog
from appliance.protocol.records.compression import Codec
from appliance.protocol.records.record import Record, encode_batch

BATCH_RECORDS = 100


def fill(log: PartitionLog, keys: int, value_bytes: int, *, codec: Codec) -> None:
    """Two records a key, on average."""
    chance = random.Random(5)
    now_ms = SystemClock().now_ms()
    value = chance.randbytes(value_bytes)
    for _ in range(2 * keys // BATCH_RECORDS):
        batch = encode_batch(
            [
                Record(value, b"%016d" % chance.randrange(keys), timestamp_ms=now_ms)
                for _ in range(BATCH_RECORDS)
            ],
            codec=codec,
        )
        log.append(memoryview(batch), leader_epoch=0)
    log.roll()


def in_child(directory: Path, settings: LogSettings, map_bytes: int) -> None:
    """One round, in this process, which has nothing else."""
    now_ms = SystemClock().now_ms()
    log = PartitionLog.open(directory, settings=settings, clock=SystemClock(), clean=True)
    what = dirtiness(directory, log.bounds(log.log_end_offset), settings, checkpoint=0, now_ms=now_ms)
    before = resource.getrusage(resource.RUSAGE_SELF)
    before_s, before_cpu = time.monotonic(), before.ru_utime + before.ru_stime
    end, rounds, map_peak, read = 0, 0, 0, what.dirty_bytes
    while what.dirty_bytes:
        round_ = LogCleaning(directory, what, settings, now_ms=now_ms, map_bytes_max=map_bytes)
        steps = round_.steps()
        step = next(steps, None)
        while step is not None:
            try:
                if isinstance(step, Swap):
                    done = log.replace_segments(
                        step.base_offset,
                        step.end_offset,
                        source_bytes=step.source_bytes,
                        cuts=log.bounds(0).cuts,
                    )
                    for path in directory.glob("*.deleted"):
                        path.unlink()
                    step = steps.send(done)
                else:
                    step = next(steps)
            except StopIteration:
                step = None
        rounds += 1
        end = round_.end_offset
        map_peak = max(map_peak, round_.statistics.map_bytes)
        what = dirtiness(directory, log.bounds(log.log_end_offset), settings, checkpoint=end, now_ms=now_ms)
    after = resource.getrusage(resource.RUSAGE_SELF)
    took_s = time.monotonic() - before_s
    cpu_s = after.ru_utime + after.ru_stime - before_cpu
    left = sum(path.stat().st_size for path in directory.glob("*.log"))
    print(
        f"{read / 1e6:.0f} MB became {left / 1e6:.0f} MB in {rounds} rounds, {took_s:.1f} s:"
        f" {read / 1e6 / took_s:.0f} MB/s, {cpu_s / (read / 1e9):.1f} CPU s/GB;"
        f" peak +{(after.ru_maxrss - before.ru_maxrss) / 1024:.0f} MiB, of it the map {map_peak / 2**20:.0f} MiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--value-bytes", type=int, default=100)
    parser.add_argument("--codec", default="none", choices=[codec.name.lower() for codec in Codec])
    parser.add_argument("--map-bytes", type=int, default=128 << 20)
    parser.add_argument("--directory", type=Path)
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="compaction-", dir=arguments.directory))
    settings = LogSettings(
        segment_bytes=256 << 20, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0
    )
    try:
        # Filled by a child too, so that its memory is not the measured one's.
        if (child := os.fork()) == 0:
            log = PartitionLog.open(directory, settings=settings, clock=SystemClock())
            fill(log, arguments.keys, arguments.value_bytes, codec=Codec[arguments.codec.upper()])
            log.close(clean=True)
            os._exit(0)
        os.waitpid(child, 0)
        in_child(directory, settings, arguments.map_bytes)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
