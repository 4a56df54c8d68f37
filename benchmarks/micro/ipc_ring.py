"""What the meeting places cost: rings and doorbells between two processes, the pool and the fence in one.

Run it on a quiet machine: `python -m benchmarks.micro.ipc_ring`. Two cores at least, or nothing here
means anything. Read the ratios within one run; `cpu` is the processor time of both sides for each
message.
"""

from __future__ import annotations

import os
import resource
import struct
import time
from collections.abc import Callable
from statistics import median

from appliance.ipc.agent import DutyCycle
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.fence import full_fence
from appliance.ipc.process_table import ProcessTable, process_table_size_bytes
from appliance.ipc.ring import RingReader, RingWriter, ring_size_bytes
from appliance.ipc.shared_memory import (
    Region,
    create_directory,
    directory_candidate,
    remove_directory,
)

MESSAGE = struct.Struct("<QQQQQQQQ")
SLOTS = 4096
ROUNDS = 5


def region(what: str, size_bytes: int) -> Region:
    """A nameless region: unlinked as soon as it is mapped."""
    directory = directory_candidate()
    create_directory(directory)
    made = Region.create(f"{directory}/{what}", size_bytes)
    remove_directory(directory)
    return made


class Meeting:
    """Two rings and two doorbells, as between any two processes; made before the fork."""

    def __init__(self) -> None:
        self.there = region("there", ring_size_bytes(SLOTS))
        self.back = region("back", ring_size_bytes(SLOTS))
        table = ProcessTable(region("processes", process_table_size_bytes(2)).view)
        self.rows = [table.row(0), table.row(1)]
        self.bells = [Doorbell(Doorbell.create_eventfd(), row.sleeping_cell) for row in self.rows]

    def run(self, first: Callable[[], None], second: Callable[[], None]) -> tuple[float, float]:
        """Runs both sides to their end; (seconds, processor seconds of both)."""
        start, before = time.perf_counter(), _cpu_s()
        child = os.fork()
        if child == 0:
            second()
            os._exit(0)
        first()
        os.waitpid(child, 0)
        return time.perf_counter() - start, _cpu_s() - before

    def cycle(self, side: int) -> DutyCycle:
        return DutyCycle(self.bells[side], self.rows[side], monotonic_ns=time.monotonic_ns)


def _cpu_s() -> float:
    own, child = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + child.ru_utime + child.ru_stime


def stream(messages: int, batch: int) -> tuple[float, float]:
    """One way, `batch` messages to a publish: (messages/s, µs of processor time a message)."""
    meeting = Meeting()

    def write() -> None:
        writer, bell = RingWriter(meeting.there.view, MESSAGE), meeting.bells[1]
        cycle = meeting.cycle(0)
        left = messages
        while left:
            sent = 0
            while sent < batch and sent < left and writer.put(left, 1, 2, 3, 4, 5, 6, 7):
                sent += 1
            left -= sent
            if sent:
                writer.publish()
                bell.ring()
            else:
                cycle.wait(1)

    def read() -> None:
        reader = RingReader(meeting.there.view, MESSAGE)
        cycle = meeting.cycle(1)
        cycle.add_inbox(reader)
        left = messages
        while left:
            taken = reader.drain()
            left -= len(taken)
            if not taken:
                cycle.wait()

    seconds, cpu_s = meeting.run(write, read)
    return messages / seconds, cpu_s / messages * 1e6


def round_trips(trips: int, depth: int) -> tuple[float, float]:
    """`depth` messages there and back at a time, both sides blocking: (µs a trip, µs of processor time)."""
    meeting = Meeting()

    def ask() -> None:
        writer, reader = RingWriter(meeting.there.view, MESSAGE), RingReader(meeting.back.view, MESSAGE)
        cycle, bell = meeting.cycle(0), meeting.bells[1]
        cycle.add_inbox(reader)
        for _ in range(trips // depth):
            for _ in range(depth):
                writer.put(0, 1, 2, 3, 4, 5, 6, 7)
            writer.publish()
            bell.ring()
            left = depth
            while left:
                left -= len(reader.drain())
                if left:
                    cycle.wait()

    def answer() -> None:
        reader, writer = RingReader(meeting.there.view, MESSAGE), RingWriter(meeting.back.view, MESSAGE)
        cycle, bell = meeting.cycle(1), meeting.bells[0]
        cycle.add_inbox(reader)
        left = trips // depth * depth
        while left:
            messages = reader.drain()
            if not messages:
                cycle.wait()
                continue
            for message in messages:
                writer.put(*message)
            writer.publish()
            bell.ring()
            left -= len(messages)

    seconds, cpu_s = meeting.run(ask, answer)
    return seconds / trips * 1e6, cpu_s / trips * 1e6


def each_ns(action: Callable[[], object], times: int = 300_000) -> float:
    """Nanoseconds a call, the loop's own cost included."""
    start = time.perf_counter_ns()
    for _ in range(times):
        action()
    return (time.perf_counter_ns() - start) / times


def main() -> None:
    print(f"{'ring, one way':34} {'M messages/s':>14} {'cpu µs':>8}")
    for batch in (1, 8, 32):
        runs = [stream(400_000, batch) for _ in range(ROUNDS)]
        rate, cpu = median(run[0] for run in runs), median(run[1] for run in runs)
        print(f"  publish every {batch:<18} {rate / 1e6:16.2f} {cpu:8.2f}")
    print(f"{'round trip, both sides blocking':34} {'µs a trip':>14} {'cpu µs':>8}")
    for depth in (1, 8, 32):
        runs = [round_trips(60_000, depth) for _ in range(ROUNDS)]
        trip, cpu = median(run[0] for run in runs), median(run[1] for run in runs)
        print(f"  depth {depth:<26} {trip:16.2f} {cpu:8.2f}")
    pool = BufferPool(region("pool", 64 << 20).view)
    meeting = Meeting()
    idle = meeting.cycle(0)
    print(f"{'one process':34} {'ns':>14}")
    steps: dict[str, Callable[[], object]] = {
        "take and give 16 KiB": lambda: pool.give(pool.take(16_384)),  # type: ignore[arg-type]
        "take and give 1 MiB": lambda: pool.give(pool.take(1 << 20)),  # type: ignore[arg-type]
        "full fence": full_fence,
        "ring a process that is awake": meeting.bells[1].ring,
        "look at the sockets (wait(0))": lambda: idle.wait(0),
        "nothing": lambda: None,
    }
    for name, action in steps.items():
        print(f"  {name:32} {median(each_ns(action) for _ in range(ROUNDS)):16.0f}")


if __name__ == "__main__":
    main()
