"""Where the time of one request goes: the real network process and the real worker, turn by turn, in one process.

    python -m benchmarks.micro.request_path [--requests N] [--profile]

A client on a loopback socket sends one prebuilt Produce (v9, one 100 B record) or Fetch at a time. Then the network
process's turn, the worker's burst and the network process's second turn run one after the other and are timed each,
so there is no waiting, no other core and no scheduler in the figures: only what our code and its system calls cost.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import select
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from uuid import uuid4

from appliance.channels.child import Child
from appliance.channels.control_channel import Assign, AssignedPartition, Envelope
from appliance.channels.roles import Role, RoleKind, services_roles
from appliance.channels.supervision import SupervisionSocket, socket_pair
from appliance.channels.wiring import Wiring
from appliance.clock import SystemClock
from appliance.cluster import BrokerSlot, ClusterImage, PartitionImage, TopicImage
from appliance.config import load_settings
from appliance.ioproc.worker import WorkerAgent
from appliance.ipc.agent import freeze_garbage
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.shared_memory import create_directory, directory_candidate, remove_directory
from appliance.netproc.connection import Connection
from appliance.netproc.fan_out import FanOut
from appliance.netproc.processor import NetworkAgent
from appliance.process.agent import AgentProcess
from appliance.protocol.produce import ProduceMemo
from appliance.protocol.records.record import Record, encode_batch
from tests.support.published import publisher_in

NETPROC, IOPROC = Role(RoleKind.NETPROC), Role(RoleKind.IOPROC, 0, 0)
TOPIC = "bench"


class Bench:
    """Both processes' loops in this one, wired as the supervisor would.

    Args:
        topics: the settings of each topic. Those with names that begin with `__` are internal.
        options: settings of the broker.
    """

    def __init__(
        self,
        data_dir: Path,
        topics: Mapping[str, Mapping[str, str]] | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        wanted = topics or {TOPIC: {}}
        settings = load_settings(
            None, {"data.dir": str(data_dir), "network.processes": "1", **(options or {})}
        )
        memory = directory_candidate()
        create_directory(memory)
        doorbells = {role: Doorbell.create_eventfd() for role in (NETPROC, IOPROC, *services_roles(settings))}
        self.wiring = Wiring(settings, "appliance-bench", memory, doorbells)
        self.wiring.create_standing_regions()
        self.wiring.create_for(NETPROC, 1, {})
        self.wiring.create_for(IOPROC, 1, {NETPROC: 1})
        clock = SystemClock()
        self.supervisors = [socket_pair() for _ in range(2)]
        net, io = (
            AgentProcess(Child(role, 1, {peer: 1}, self.wiring, SupervisionSocket(ends[1])), warn=print)
            for (role, peer), ends in zip(
                ((NETPROC, IOPROC), (IOPROC, NETPROC)), self.supervisors, strict=True
            )
        )
        ids = {name: uuid4() for name in wanted}
        self.worker = WorkerAgent(io, io.controller_link())
        assigned = tuple(
            AssignedPartition(name, ids[name], 0, row, 1, 0, 0, (0,), (0,), dict(configs))
            for row, (name, configs) in enumerate(wanted.items())
        )
        self.worker.host.obey([Envelope(1, Assign(1, "bench", True, assigned))])
        images = {
            name: TopicImage(
                name,
                ids[name],
                (PartitionImage(0, row, 1, 0, 0, (0,), (0,)),),
                dict(configs),
                internal=name.startswith("__"),
            )
            for row, (name, configs) in enumerate(wanted.items())
        }
        slots = (BrokerSlot(0, "127.0.0.1", 9092),)
        publisher_in(memory).publish(ClusterImage(1, "bench", 0, 1, slots, images))
        self.processor = NetworkAgent(
            net,
            net.controller_link(),
            fan_out=FanOut(self.wiring, NETPROC, 1, context=net.context, clock=clock),
        )
        self.client = self._connect(clock)

    def _connect(self, clock: SystemClock) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", 0))
        client = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
        listener.close()
        for sock in (client, ours):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ours.setblocking(False)
        connection = Connection(
            ours, connection_id=1, slot=0, peer_host="bench", peer_port=1, now_ns=clock.monotonic_ns()
        )
        connection.produce_memo = ProduceMemo()
        connection.mask = select.EPOLLIN
        self.processor._sockets.connections.add(connection)
        self.processor._cycle.epoll.register(connection.fd, select.EPOLLIN)
        return client

    def request(self, frame: bytes) -> tuple[int, int, int, int]:
        """ns of: the turn that takes the request, the worker's burst, the turn that answers; answer's bytes."""
        self.client.send(frame)
        clock = time.perf_counter_ns
        begun = clock()
        self.processor.turn()
        taken = clock()
        self.worker.rings.serve()
        served = clock()
        self.processor.turn()
        answered = clock()
        return taken - begun, served - taken, answered - served, len(self.client.recv(1 << 16))

    def close(self) -> None:
        remove_directory(self.wiring.runtime_dir)


def produce_frame() -> bytes:
    records = bytes(encode_batch([Record(bytes(100), timestamp_ms=SystemClock().now_ms())]))
    name = TOPIC.encode()
    body = struct.pack(">bhib", 0, 1, 30_000, 2) + bytes([len(name) + 1]) + name
    length = len(records) + 1
    body += b"\x02" + struct.pack(">i", 0) + bytes([length & 0x7F | 0x80, length >> 7]) + records + b"\0\0\0"
    header = struct.pack(">hhih", 0, 9, 7, 5) + b"bench" + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def fetch_frame() -> bytes:
    name = TOPIC.encode()
    body = struct.pack(">iiiibii", -1, 0, 1, 1 << 20, 0, 0, -1) + bytes([2, len(name) + 1]) + name
    body += b"\x02" + struct.pack(">iiqiqi", 0, -1, 0, -1, -1, 200) + b"\0\0\x01\x01\0"
    header = struct.pack(">hhih", 1, 12, 7, 5) + b"bench" + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def measure(bench: Bench, name: str, frame: bytes, requests: int) -> None:
    for _ in range(200):
        bench.request(frame)
    rows = [bench.request(frame)[:3] for _ in range(requests)]
    columns = [statistics.median(column) / 1000 for column in zip(*rows, strict=True)]
    print(f"{name:<10}" + "".join(f"{column:>12.1f}" for column in (*columns, sum(columns))))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--requests", type=int, default=20_000)
    options.add_argument("--profile", action="store_true")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        bench = Bench(Path(directory))
        freeze_garbage()
        try:
            print(f"{'µs':<10}{'take':>12}{'worker':>12}{'answer':>12}{'all':>12}")
            for name, frame in (("produce", produce_frame()), ("fetch", fetch_frame())):
                measure(bench, name, frame, given.requests)
                if given.profile:
                    profile = cProfile.Profile()
                    profile.runcall(measure, bench, name, frame, given.requests)
                    pstats.Stats(profile).sort_stats("tottime").print_stats(35)
        finally:
            bench.close()


if __name__ == "__main__":
    main()
