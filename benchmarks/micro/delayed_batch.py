"""What delayed records cost on their way in: the real network process and the real worker, in one process.

    python -m benchmarks.micro.delayed_batch [--requests N] [--records N] [--profile]

A client on a loopback socket sends one Produce at a time, a batch of 100 B records of an idempotent producer, all of
them with a delay, and waits for its answer. The figures are processor time of each process's turns for one record, in
µs: the median of all requests. So neither waiting nor another program is in them.

    plain     the same batch, to a topic without delayed delivery
    exact     each record waits on an exact level
    levels    all records wait on one level
    spread    the delays of the records go over all levels, as many batches as there are levels
    half      every second record has a delay
    zstd      as exact, compressed

`--profile` prints where the time goes; it shows compiled functions only as far as they are called from outside.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import select
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from appliance.clock import SystemClock
from appliance.delivery.levels import Levels
from appliance.ipc.agent import freeze_garbage
from appliance.protocol.records.compression import Codec, compress
from appliance.protocol.records.record import Record, encode_record, frame_batch
from benchmarks.micro.request_path import Bench

PRODUCER_ID = 7
HOUR_MS = 3_600_000
PLAIN, EXACT, LEVELS = "plain", "exact", "levels"
NAMES = {PLAIN: PLAIN, EXACT: EXACT, LEVELS: LEVELS, "spread": LEVELS, "half": EXACT, "zstd": EXACT}
"""The topic of each case."""


def topics() -> dict[str, dict[str, str]]:
    """Return the settings of the topics, the internal ones included."""
    from appliance.config import load_settings

    services = load_settings(None, {"data.dir": "/"}).services
    internal = Levels(services.delay_levels, services.delay_exact_levels).topics
    modes = {mode: {"delivery.delay.enable": "true", "delivery.delay.mode": mode} for mode in (EXACT, LEVELS)}
    return {PLAIN: {}, **modes, **{name: {} for name in internal}}


class Requests:
    """The Produce requests of one case, each with the next sequence numbers."""

    def __init__(self, case: str, records: int) -> None:
        self.name = NAMES[case].encode()
        self.count = records
        self.codec = Codec.ZSTD if case == "zstd" else Codec.NONE
        self.now_ms = SystemClock().now_ms()
        self.sequence = 0
        spread_ms = 2 * HOUR_MS // records
        self.payload = compress(
            self.codec,
            b"".join(
                encode_record(
                    Record(
                        b"%d" % number + bytes(100 - len(str(number))),
                        headers=(
                            (
                                "other" if case == "half" and number & 1 else "delivery.at",
                                b"%d" % (self.now_ms + (number * spread_ms if case == "spread" else HOUR_MS)),
                            ),
                        ),
                    ),
                    offset_delta=number - 1,
                    timestamp_delta_ms=0,
                )
                for number in range(1, records + 1)
            ),
        )

    def next(self) -> bytes:
        """Return the bytes of the next request (v9)."""
        batch = frame_batch(
            self.payload,
            count=self.count,
            attributes=self.codec,
            base_timestamp_ms=self.now_ms,
            max_timestamp_ms=self.now_ms,
            producer_id=PRODUCER_ID,
            producer_epoch=0,
            base_sequence=self.sequence,
        )
        self.sequence += self.count
        length = bytearray()
        left = len(batch) + 1
        while left > 0x7F:
            length.append(left & 0x7F | 0x80)
            left >>= 7
        length.append(left)
        body = struct.pack(">bhib", 0, -1, 30_000, 2) + bytes([len(self.name) + 1]) + self.name
        body += b"\x02" + struct.pack(">i", 0) + length + batch + b"\0\0\0"
        header = struct.pack(">hhih", 0, 9, 7, 5) + b"bench" + b"\0"
        return struct.pack(">i", len(header) + len(body)) + header + body


def _timed(action: Callable[[], object]) -> int:
    began = time.thread_time_ns()
    action()
    return time.thread_time_ns() - began


def request(bench: Bench, frame: bytes) -> tuple[int, int]:
    """Return the ns of the network process's and of the worker's turns, until the client has its answer.

    Raises:
        SystemExit: the answer is an error.
    """
    net = io = 0
    client, left = bench.client, memoryview(frame)
    answers = select.poll()
    answers.register(client, select.POLLIN)
    client.setblocking(False)
    while left or not answers.poll(0):
        if left:
            with suppress(BlockingIOError):
                left = left[client.send(left) :]
        net += _timed(bench.processor.turn)
        io += _timed(bench.worker.rings.serve)
    answer = client.recv(1 << 16)
    topic_at = 4 + 4 + 1 + 1  # length, correlation id, no tagged fields, one topic
    error_at = topic_at + answer[topic_at] + 1 + 4
    error = int.from_bytes(answer[error_at : error_at + 2], "big")
    if error:
        raise SystemExit(f"the broker has answered error {error}")
    return net, io


def measure(bench: Bench, case: str, *, requests: int, records: int) -> None:
    """Print the line of one case."""
    made = Requests(case, records)
    for _ in range(10):
        request(bench, made.next())
    rows = [request(bench, made.next()) for _ in range(requests)]
    net, io = (statistics.median(column) / 1000 / records for column in zip(*rows, strict=True))
    print(f"{case:<10}{net:>12.3f}{io:>12.3f}{net + io:>12.3f}", flush=True)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=200)
    options.add_argument("--records", type=int, default=1_000)
    options.add_argument("--profile", action="store_true")
    options.add_argument("--only", choices=NAMES)
    given = options.parse_args()
    for case in (given.only,) if given.only else NAMES:
        with tempfile.TemporaryDirectory() as directory:
            bench = Bench(Path(directory), topics(), {"services.processes": "1"})
            freeze_garbage()
            try:
                if case == next(iter(NAMES)) or given.only:
                    print(f"{'µs/record':<10}{'network':>12}{'worker':>12}{'all':>12}")
                if given.profile:
                    profile = cProfile.Profile()
                    profile.runcall(measure, bench, case, requests=given.requests, records=given.records)
                    pstats.Stats(profile).sort_stats("tottime").print_stats(25)
                else:
                    measure(bench, case, requests=given.requests, records=given.records)
            finally:
                bench.close()


if __name__ == "__main__":
    main()
