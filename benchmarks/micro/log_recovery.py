"""How long a log that was not closed takes to open: seconds, and MB/s, by how much lies past its recovery point.

    python -m benchmarks.micro.log_recovery [--gigabytes 1] [--directory DIR]

*Cold* is read from the disk (the pages were dropped first), *warm* from the page cache. Beside them stands what the
machine takes to read the bytes and compute their CRC-32C: recovery can be no faster. After a recovery point at the
log end, and after a clean stop, nothing is read.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from appliance.clock import SystemClock
from appliance.log.config import LogSettings
from appliance.log.partition_log import PartitionLog
from appliance.protocol.records.crc32c import checksum
from appliance.protocol.records.record import Record, encode_batch

GIGABYTE = 1 << 30
RECORDS_A_BATCH = 16
VALUE_BYTES = 1000


def fill(directory: Path, size_bytes: int) -> int:
    """Appends so many bytes and leaves the log as a crash does; its end."""
    log = PartitionLog.open(directory, settings=LogSettings(), clock=SystemClock())
    batch = memoryview(
        encode_batch([Record(os.urandom(VALUE_BYTES), timestamp_ms=SystemClock().now_ms())] * RECORDS_A_BATCH)
    )
    for _ in range(size_bytes // len(batch)):
        log.append(batch, leader_epoch=0)
    end = log.log_end_offset
    log.close(clean=False)
    return end


def drop_pages(directory: Path) -> None:
    """Lets the kernel forget the content of the files, so that the next reader meets the disk."""
    for path in directory.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def opened_s(directory: Path, *, recovery_point: int) -> float:
    started = time.perf_counter()
    log = PartitionLog.open(
        directory, settings=LogSettings(), clock=SystemClock(), recovery_point=recovery_point
    )
    spent = time.perf_counter() - started
    log.close(clean=False)
    return spent


def bare_s(directory: Path) -> float:
    started = time.perf_counter()
    for path in sorted(directory.glob("*.log")):
        with path.open("rb", buffering=0) as file:
            while piece := file.read(1 << 20):
                checksum(piece)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    size_bytes = int(arguments.gigabytes * GIGABYTE)
    parent = Path(tempfile.mkdtemp(dir=arguments.directory))
    directory = parent / "t-0"
    try:
        end = fill(directory, size_bytes)
        print(f"{size_bytes / 1e9:.1f} GB of batches of {RECORDS_A_BATCH} records of {VALUE_BYTES} B")
        print(f"{'':44} {'s':>8} {'MB/s':>8}")

        def told(name: str, action: Callable[[], float], *, cold: bool = False) -> None:
            if cold:
                drop_pages(directory)
            spent = action()
            print(f"{name:44} {spent:8.2f} {size_bytes / spent / 1e6:8.0f}")

        told("bytes read and CRC-32C alone, cold", lambda: bare_s(directory), cold=True)
        told("recovery, cold", lambda: opened_s(directory, recovery_point=0), cold=True)
        told("bytes read and CRC-32C alone, warm", lambda: bare_s(directory))
        told("recovery, warm", lambda: opened_s(directory, recovery_point=0))
        told("recovery, recovery point at the end", lambda: opened_s(directory, recovery_point=end))
    finally:
        shutil.rmtree(parent)


if __name__ == "__main__":
    main()
