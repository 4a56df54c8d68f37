"""What an append and a lookup cost, in one process, without network: µs of CPU each, median of rounds.

    python benchmarks/micro/log_append.py [--directory DIR]

Each size is appended until 256 MiB (or 200,000 batches) are written. Beside it stands what the machine takes for
the bytes alone: CRC-32C of the batch plus one pwrite of it into preallocated room. The difference is ours.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from appliance.clock import SystemClock
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.protocol.records.crc32c import checksum
from appliance.protocol.records.record import Record, encode_batch

ROUNDS = 3
BYTES = 256 << 20
BATCHES_MAX = 100_000


def batch_of(count: int, value_bytes: int, *, vary_bytes: int = 0) -> memoryview:
    now_ms = SystemClock().now_ms()
    return memoryview(
        encode_batch(
            [
                Record(bytes(value_bytes + (i * 7919 % vary_bytes if vary_bytes else 0)), timestamp_ms=now_ms)
                for i in range(count)
            ]
        )
    )


def in_fresh_directory(parent: Path, action: Callable[[Path], float]) -> float:
    rounds = []
    for _ in range(ROUNDS):
        directory = Path(tempfile.mkdtemp(dir=parent))
        try:
            rounds.append(action(directory))
        finally:
            shutil.rmtree(directory)
    return statistics.median(rounds)


def bare_us(directory: Path, batch: memoryview, times: int) -> float:
    descriptor = os.open(directory / "bare", os.O_RDWR | os.O_CREAT)
    stretch = 32 << 20
    allocated = position = 0
    started = time.thread_time_ns()
    for _ in range(times):
        checksum(batch[21:])
        if position + len(batch) > allocated:
            os.posix_fallocate(descriptor, allocated, stretch)
            allocated += stretch
        os.pwrite(descriptor, batch, position)
        position += len(batch)
    spent_ns = time.thread_time_ns() - started
    os.close(descriptor)
    return spent_ns / times / 1000


def append_us(directory: Path, batch: memoryview, times: int) -> float:
    log = PartitionLog.open(directory / "t-0", settings=LogSettings(), clock=SystemClock())
    append = log.append
    started = time.thread_time_ns()
    for _ in range(times):
        append(batch, leader_epoch=0)
    spent_ns = time.thread_time_ns() - started
    log.close(clean=False)
    return spent_ns / times / 1000


def lookups(directory: Path) -> None:
    log = PartitionLog.open(
        directory / "t-0", settings=LogSettings(segment_bytes=4 << 20), clock=SystemClock()
    )
    batch = batch_of(16, 1000)
    for _ in range(4000):
        log.append(batch, leader_epoch=0)
    end = log.log_end_offset

    def measured(name: str, offsets: list[int], action: Callable[[int], object]) -> None:
        rounds = []
        for _ in range(ROUNDS):
            started = time.thread_time_ns()
            for offset in offsets:
                action(offset)
            rounds.append((time.thread_time_ns() - started) / len(offsets) / 1000)
        print(f"{name:42} {statistics.median(rounds):10.2f}")

    def read(offset: int) -> object:
        return log.read(offset, max_bytes=1 << 20, upper_bound=end)

    tail = [end - 16] * 20_000
    spread = [offset * 7919 % end for offset in range(5000)]
    measured("read, last batch", tail, read)
    measured("read, at the end (empty)", [end] * 20_000, read)
    measured("read, in order through 16 segments", list(range(0, end, 16)), read)
    measured("read, anywhere in 16 segments", spread, read)
    log.close(clean=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parent: Path = parser.parse_args().directory
    print(f"{'append':42} {'µs':>10} {'bare µs':>10} {'ours µs':>10} {'GB/s':>7}")
    for name, batch in (
        ("100 B, one record", batch_of(1, 100)),
        ("1 KiB, one record", batch_of(1, 1024)),
        ("16 KiB, 16 records", batch_of(16, 1000)),
        ("16 KiB, 150 records of 100 B", batch_of(150, 100)),
        ("16 KiB, 110 records of 100 to 200 B", batch_of(110, 100, vary_bytes=100)),
        ("1 MiB, 1,000 records", batch_of(1000, 1000)),
        ("1 MiB, 9,300 records of 100 B", batch_of(9300, 100)),
        ("1 MiB, 6,500 records of 100 to 200 B", batch_of(6500, 100, vary_bytes=100)),
    ):
        times = min(BYTES // len(batch), BATCHES_MAX)
        bare = in_fresh_directory(parent, lambda at, b=batch, n=times: bare_us(at, b, n))  # type: ignore[misc]
        ours = in_fresh_directory(parent, lambda at, b=batch, n=times: append_us(at, b, n))  # type: ignore[misc]
        rate = len(batch) / ours / 1000
        print(f"{name:42} {ours:10.2f} {bare:10.2f} {ours - bare:10.2f} {rate:7.2f}")
    print(f"\n{'lookup':42} {'µs':>10}")
    directory = Path(tempfile.mkdtemp(dir=parent))
    try:
        lookups(directory)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
