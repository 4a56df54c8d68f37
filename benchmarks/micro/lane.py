"""One record a request: the shared-memory lane beside TCP, and beside two processes that ring eventfds.

python -m benchmarks.micro.lane DATA_DIR HOST:PORT TOPIC [REQUESTS]

Against a running appliance with `shared.memory.lanes.max`. A request is a Produce of one record of 100 bytes, acks=1.
Rounds alternate. The figures are the median of the rounds' medians and the best of them, and the processor time of one
request in the workers, in the network processes and in this client, all in microseconds. `sleep` is woken for each
answer. `spin` looks at the ring until the answer is there. `look` gives its core away between looks, for 200 us, and
sleeps then.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from appliance.cli.status import processes_of
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.records.record import Record, encode_batch
from appliance_client import shared_memory as shm

ROUNDS: Final = 5
LOOK_NS: Final = 200_000
ROLES: Final = ("ioproc", "netproc")


def produce(topic: str) -> bytes:
    """Return a request."""
    name, batch = topic.encode(), encode_batch([Record(b"x" * 100)])
    head = struct.pack(">hhih", ApiKey.PRODUCE, 8, 1, -1) + struct.pack(">hhii", -1, 1, 30_000, 1)
    return head + struct.pack(">h", len(name)) + name + struct.pack(">iii", 1, 0, len(batch)) + batch


def over_tcp(host: str, port: int, request: bytes) -> Callable[[], object]:
    """Return what asks once by TCP."""
    sock = socket.create_connection((host, port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = struct.pack(">i", len(request)) + request

    def ask() -> object:
        sock.sendall(frame)
        return sock.recv(4096)

    return ask


def over_lane(data_dir: Path, request: bytes, *, look_ns: int, yields: bool) -> Callable[[], object]:
    """Return what asks once over a lane."""
    sock = shm.say_hello(data_dir)
    sock.setblocking(True)
    sock.send(shm.HELLO.pack(shm.MAGIC, shm.VERSION, 0, -1))
    lane = shm.receive_lane(sock)

    def ask() -> object:
        lane.put([request])
        lane.publish()
        until_ns = time.monotonic_ns() + look_ns
        while look_ns and lane.is_empty() and time.monotonic_ns() < until_ns:
            if yields:
                os.sched_yield()
        lane.words[shm.CLIENT_SLEEPS] = 1
        shm.full_fence()
        while lane.is_empty():
            sock.recv(16)
        lane.words[shm.CLIENT_SLEEPS] = 0
        return lane.take()

    return ask


def ping_pong() -> Callable[[], object]:
    """Return what rings a process and waits for its ring: the least that two wake-ups cost."""
    there, here = os.eventfd(0), os.eventfd(0)
    child = os.fork()
    if not child:
        while True:
            os.eventfd_read(there)
            os.eventfd_write(here, 1)
    atexit.register(os.kill, child, signal.SIGKILL)

    def ask() -> object:
        os.eventfd_write(there, 1)
        return os.eventfd_read(here)

    return ask


def processor_ns(pids: dict[str, list[int]]) -> dict[str, int]:
    """Return the processor time that the processes of each role have used so far, and this one."""
    used = {role: sum(_of_process(pid) for pid in pids[role]) for role in ROLES}
    return {**used, "client": time.process_time_ns()}


def _of_process(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks)


def p50_us(ask: Callable[[], object], count: int) -> float:
    """Return the median time of one."""
    took: list[int] = []
    for _ in range(count):
        began = time.perf_counter_ns()
        ask()
        took.append(time.perf_counter_ns() - began)
    return statistics.median(took) / 1000


def main() -> None:
    data_dir, address, topic, *rest = sys.argv[1:]
    host, _, port = address.rpartition(":")
    count = int(rest[0]) if rest else 5_000
    request = produce(topic)
    ways = {
        "tcp": over_tcp(host, int(port), request),
        "lane, sleep": over_lane(Path(data_dir), request, look_ns=0, yields=False),
        "lane, spin": over_lane(Path(data_dir), request, look_ns=10**12, yields=False),
        "lane, look": over_lane(Path(data_dir), request, look_ns=LOOK_NS, yields=True),
        "eventfd ping-pong": ping_pong(),
    }
    rows = processes_of(Path(data_dir).resolve()) or []
    pids = {
        role: [row["pid"] for row in rows if row["pid"] and row["role"].startswith(role)] for role in ROLES
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    used: dict[str, dict[str, int]] = {name: dict.fromkeys((*ROLES, "client"), 0) for name in ways}
    for _ in range(ROUNDS):
        for name, ask in ways.items():
            before = processor_ns(pids)
            found[name].append(p50_us(ask, count))
            for role, now in processor_ns(pids).items():
                used[name][role] += now - before[role]
    print(f"{'':20} {'median':>8} {'best':>8}" + "".join(f" {role:>8}" for role in (*ROLES, "client")))
    for name, medians in found.items():
        line = f"{name:20} {statistics.median(medians):8.1f} {min(medians):8.1f}"
        print(line + "".join(f" {each / count / ROUNDS / 1000:8.1f}" for each in used[name].values()))


if __name__ == "__main__":
    main()
