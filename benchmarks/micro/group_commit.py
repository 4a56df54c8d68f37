"""Acknowledged records a second under `durability = "fsync"`, beside the bare fdatasync rate of the disk.

    python -m benchmarks.micro.group_commit [--directory DIR] [--seconds N]

Each producer has a connection of its own and one request of one 100-byte record under way (acks=all), to one partition.
*bare* is a loop of one pwrite of such a batch into preallocated room and one fdatasync, in this process: what a log
without group commit could acknowledge at most. A ratio above 1 is the group commit's.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

from appliance.protocol.records.record import Record, encode_batch
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.raw import create_topic, produce

PRODUCERS = (1, 16, 64)
BATCH = encode_batch([Record(bytes(100))])


def bare_rate(directory: Path, seconds: float) -> float:
    """Batches a second, each forced by itself."""
    descriptor = os.open(directory / "bare", os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, 64 << 20)
    os.fsync(descriptor)
    count = 0
    started = time.monotonic()
    while time.monotonic() - started < seconds:
        os.pwrite(descriptor, BATCH, count * len(BATCH))
        os.fdatasync(descriptor)
        count += 1
    os.close(descriptor)
    return count / (time.monotonic() - started)


def acknowledged_rate(port: int, producers: int, seconds: float) -> float:
    """Records a second, all producers together."""
    counts = [0] * producers
    deadline = time.monotonic() + seconds

    def run(number: int) -> None:
        with WireSocket(port) as connection:
            while time.monotonic() < deadline:
                assert produce(connection, "t", BATCH).error == 0
                counts[number] += 1

    threads = [threading.Thread(target=run, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path())
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(dir=arguments.directory))
    bare = bare_rate(root, arguments.seconds)
    print(f"bare fdatasync: {bare:,.0f}/s")
    try:
        for durability in ("fsync", "page-cache"):
            broker = Appliance(root / durability, settings={"durability": durability})
            broker.start()
            try:
                assert create_topic(broker.port, "t") == 0
                for producers in PRODUCERS:
                    rate = acknowledged_rate(broker.port, producers, arguments.seconds)
                    print(
                        f"{durability:10} {producers:3} producers: {rate:8,.0f}/s  {rate / bare:.2f} × bare"
                    )
            finally:
                broker.stop()
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    main()
