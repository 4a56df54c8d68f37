"""Requests over each way into a broker, from one Python program: TCP, ZeroMQ, a shared-memory lane; and what is below.

    python lanes.py latency TOPIC SECONDS tcp=HOST:PORT [zeromq=ENDPOINT] [lane=DATA_DIR] [floors=yes] [pids=N,N]
    python lanes.py frames  TOPIC SECONDS (the same, without floors)
    python lanes.py local   TOPIC SECONDS lane=DATA_DIR records=N

`latency` sends Produce requests of one record of 100 B, acks=1, and waits for each answer. `frames` reads batches of a
megabyte by Fetch. `local` reads a partition's files and asks the broker nothing. Ways take turns of a few milliseconds,
so that what drifts drifts under all of them. With `pids` the broker's processor time is taken around each turn.
It prints JSON: way → figures.

Floors are the same exchange without a broker: a ZeroMQ echo in another process, and two processes that ring eventfds.
It is run by its path, on a module path that begins with the build of the native client that is measured.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq

from appliance_client import shared_memory as shm
from benchmarks.load.hostile import text
from benchmarks.load.transactions import connect
from benchmarks.load.ways import Meter, Pieces, Tcp, Way, fetch, plain_batch, produce, produced

TURN_REQUESTS: Final = 200
TURN_FRAMES: Final = 64
WARM_UP_TURNS: Final = 3
WINDOW: Final = 1 << 26
LARGE_RECORDS: Final = 9000
"""Records of 100 B in a batch of 1 MB."""
LARGE_BATCHES: Final = 64
IN_FLIGHT: Final = 4
REQUEST, RESPONSE, CREDIT = 5, 6, 7
MORE: Final = 1

Context = zmq.Context[zmq.Socket[bytes]]


def header(kind: int, token: bytes = bytes(16)) -> bytes:
    """Of a message of docs/zeromq.md."""
    return struct.pack(">HBBI16s", 0x4B5A, 1, kind, 0, token)


def dealer(context: Context, endpoint: str) -> zmq.Socket[bytes]:
    """A connected DEALER."""
    made = context.socket(zmq.DEALER)
    made.set(zmq.LINGER, 0)
    made.connect(endpoint)
    return made


class ZeroMq(Way):
    """A session as docs/zeromq.md has it, which gives credit for all that comes. No frame of an answer is copied."""

    def __init__(self, context: Context, listener: str) -> None:
        with dealer(context, listener) as hello:
            hello.send_multipart([header(1), struct.pack(">Bi", 1, -1) + text("bench")])
            welcome = hello.recv_multipart()[1]
        self._socket = dealer(context, welcome[7 : 7 + int.from_bytes(welcome[5:7])].decode())
        self._socket.send_multipart([header(3), struct.pack(">iQ", 0, WINDOW) + text("bench")])
        self._token = self._socket.recv_multipart()[1][:16]
        self._request = header(REQUEST, self._token)

    def send(self, request: bytes) -> None:
        self._socket.send_multipart([self._request, request])

    def receive(self) -> Pieces:
        body: Pieces = []
        while True:
            head, *frames = self._socket.recv_multipart(copy=False)
            _, _, kind, flags, mark, _ = struct.unpack(">HBBIQQ", head.buffer)
            if mark:
                self._socket.send_multipart([header(CREDIT, self._token), struct.pack(">QQ", mark, WINDOW)])
            if kind != RESPONSE:
                continue
            body += [frame.buffer for frame in frames]
            if not flags & MORE:
                return body


class Lane(Way):
    """A shared-memory lane, whose client sleeps until its answer is there."""

    def __init__(self, data_dir: Path) -> None:
        self._socket = shm.say_hello(data_dir)
        self._socket.setblocking(True)
        self._socket.send(shm.HELLO.pack(shm.MAGIC, shm.VERSION, 0, -1))
        self._lane = shm.receive_lane(self._socket)

    def send(self, request: bytes) -> None:
        if not self._lane.put([request]):
            raise SystemExit("the lane has no room for a request")
        self._lane.publish()

    def receive(self) -> Pieces:
        lane = self._lane
        while True:
            if lane.is_empty():
                lane.words[shm.CLIENT_SLEEPS] = 1
                shm.full_fence()
                while lane.is_empty():
                    self._socket.recv(16)
                lane.words[shm.CLIENT_SLEEPS] = 0
            answer = lane.take()
            if answer is not None:
                return [memoryview(answer)[4:]]


class Echo(Way):
    """A ZeroMQ ROUTER in another process that sends back what comes."""

    def __init__(self, context: Context, endpoint: str) -> None:
        self._socket = dealer(context, endpoint)
        self._head = header(REQUEST)

    def send(self, request: bytes) -> None:
        self._socket.send_multipart([self._head, request])

    def receive(self) -> Pieces:
        return self._socket.recv_multipart()


class PingPong(Way):
    """Two processes that ring eventfds: the least that two wake-ups cost."""

    def __init__(self) -> None:
        self._there, self._here = os.eventfd(0), os.eventfd(0)
        _forked(self._answer)

    def _answer(self) -> None:
        while True:
            os.eventfd_read(self._there)
            os.eventfd_write(self._here, 1)

    def send(self, request: bytes) -> None:
        os.eventfd_write(self._there, 1)

    def receive(self) -> Pieces:
        os.eventfd_read(self._here)
        return []


def _echo(endpoint: str) -> None:
    router = zmq.Context().socket(zmq.ROUTER)
    router.bind(endpoint)
    while True:
        router.send_multipart(router.recv_multipart())


def _forked(run: Callable[[], None]) -> None:
    """Run it in a process that ends with this one."""
    pid = os.fork()
    if not pid:
        run()
    atexit.register(os.kill, pid, signal.SIGKILL)


def latency(ways: dict[str, Way], topic: str, seconds: float, pids: list[int]) -> dict[str, dict[str, float]]:
    """One request at a time; for each way its percentiles, and how many were acknowledged."""
    request = produce(topic, plain_batch(1))
    taken: dict[str, list[int]] = {name: [] for name in ways}
    meters = {name: Meter(pids) for name in ways}
    acknowledged = 0
    turn, until = 0, time.monotonic() + seconds * len(ways)
    while turn <= WARM_UP_TURNS or time.monotonic() < until:
        for name, way in ways.items():
            is_broker = not isinstance(way, Echo | PingPong)
            some: list[int] = []
            meters[name].start()
            for _ in range(TURN_REQUESTS):
                began = time.perf_counter_ns()
                way.send(request)
                answer = way.receive()
                some.append(time.perf_counter_ns() - began)
                if is_broker:
                    produced(b"".join(answer), topic)
            acknowledged += TURN_REQUESTS if is_broker else 0
            if turn >= WARM_UP_TURNS:
                meters[name].stop()
                taken[name] += some
        turn += 1
        if turn == WARM_UP_TURNS:
            until = time.monotonic() + seconds * len(ways)
    found: dict[str, dict[str, float]] = {"all": {"acknowledged": float(acknowledged)}}
    for name, each in taken.items():
        each.sort()
        found[name] = {
            "requests": float(len(each)),
            **{f"{key}_us": each[int(len(each) * part)] / 1e3 for key, part in PERCENTILES.items()},
            "cpu_us_per_request": meters[name].seconds / len(each) * 1e6,
        }
    return found


PERCENTILES: Final = {"p50": 0.5, "p99": 0.99}


def frames(ways: dict[str, Way], topic: str, seconds: float, pids: list[int]) -> dict[str, dict[str, float]]:
    """Batches of a megabyte, one Fetch each; one at a time, and some in flight."""
    raw = plain_batch(LARGE_RECORDS)
    filler = ways["tcp"]
    for _ in range(LARGE_BATCHES):
        filler.send(produce(topic, raw))
        produced(b"".join(filler.receive()), topic)
    requests = [fetch(topic, number * LARGE_RECORDS, len(raw)) for number in range(LARGE_BATCHES)]
    found: dict[str, dict[str, float]] = {
        "all": {"acknowledged": float(LARGE_RECORDS * LARGE_BATCHES), "batch_bytes": float(len(raw))}
    }
    for in_flight, suffix in ((1, ""), (IN_FLIGHT, f"_{IN_FLIGHT}")):
        times = dict.fromkeys(ways, 0.0)
        sizes = dict.fromkeys(ways, 0)
        meters = {name: Meter(pids) for name in ways}
        for turn in range(1 + max(1, int(seconds * 8))):
            for name, way in ways.items():
                meters[name].start()
                began, size = time.perf_counter(), _read(way, requests, in_flight)
                if turn:
                    times[name] += time.perf_counter() - began
                    sizes[name] += size
                    meters[name].stop()
                if size < len(raw) * TURN_FRAMES:
                    raise SystemExit(f"{name}: {size} bytes were read of {TURN_FRAMES} batches of {len(raw)}")
        for name in ways:
            found[name + suffix] = {
                "mb_s": sizes[name] / times[name] / 1e6,
                "cpu_s_per_gb": meters[name].seconds / sizes[name] * 1e9,
            }
    return found


def _read(way: Way, requests: list[bytes], in_flight: int) -> int:
    size = sent = 0
    for received in range(TURN_FRAMES):
        while sent < min(TURN_FRAMES, received + in_flight):
            way.send(requests[sent % len(requests)])
            sent += 1
        size += sum(map(len, way.receive()))
    return size


def local(
    data_dir: Path, topic: str, seconds: float, pids: list[int], count: int
) -> dict[str, dict[str, float]]:
    """Read a partition from its first record to its last, again and again."""
    from appliance.protocol.columns.batch_headers import walk_headers
    from appliance_client.local_reader import LocalReader

    meter = Meter(pids)
    took_s, size_bytes, until = 0.0, 0, time.monotonic() + seconds
    turn, used_s = 0, 0.0
    while turn < 2 or time.monotonic() < until:
        counted = size = 0
        with LocalReader(data_dir, topic, 0, offset=0) as reader:
            meter.start()
            began, cpu = time.perf_counter(), time.process_time()
            while counted < count:
                content = reader.read()
                counted += int(walk_headers(content).batches["records"].sum())
                size += len(content)
            if turn:  # the first one loads compiled functions
                took_s += time.perf_counter() - began
                used_s += time.process_time() - cpu
                size_bytes += size
                meter.stop()
        turn += 1
    return {
        "local": {
            "mb_s": size_bytes / took_s / 1e6,
            "cpu_s_per_gb": meter.seconds / size_bytes * 1e9,
            "reader_cpu_s_per_gb": used_s / size_bytes * 1e9,
        }
    }


def main() -> None:
    mode, topic, seconds, *rest = sys.argv[1:]
    given = dict(word.split("=", 1) for word in rest)
    pids = [int(pid) for pid in given.get("pids", "").split(",") if pid]
    if mode == "local":
        data_dir, count = Path(given["lane"]), int(given["records"])
        print(json.dumps(local(data_dir, topic, float(seconds), pids, count)))
        return
    with tempfile.TemporaryDirectory() as home:
        ways: dict[str, Way] = {}
        if "floors" in given:  # forked before there is a context or a socket
            _forked(lambda: _echo(f"ipc://{home}/echo"))
            ways["ping_pong"] = PingPong()
        context: Context = zmq.Context()
        if "floors" in given:
            ways["echo"] = Echo(context, f"ipc://{home}/echo")
        ways["tcp"] = Tcp(connect(given["tcp"], timeout_s=None))
        if "zeromq" in given:
            ways["zeromq"] = ZeroMq(context, given["zeromq"])
        if "lane" in given:
            ways["lane"] = Lane(Path(given["lane"]))
        run = {"latency": latency, "frames": frames}[mode]
        print(json.dumps(run(ways, topic, float(seconds), pids)))
        context.destroy(linger=0)


if __name__ == "__main__":
    main()
