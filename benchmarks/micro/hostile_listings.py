"""A good client's OffsetFetch and OffsetCommit beside 30 connections that ask for the list of all groups without end.

`python -m benchmarks.micro.hostile_listings [GROUPS …]` (2,000 and 10,000 where none is given), on a quiet machine. It
prints p50, p99 and the longest wait, alone, beside the hostile connections, and after they have closed with everything
unanswered; then the memory of the coordinator and of the network processes. Ends with 1 where a p99 is over BOUND_S, or
where the memory is not back after a minute.
"""

from __future__ import annotations

import select
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import quantiles

from appliance.protocol import messages
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.list_groups import ListGroupsRequest
from appliance.protocol.apis.offset_fetch import OffsetFetchGroup, OffsetFetchRequest, OffsetFetchTopic
from tests.support.broker import Appliance
from tests.support.wire import WireSocket
from tests.system.offsets import commit, commit_request
from tests.system.raw import ask, create_topic, private_bytes

CONNECTIONS = 30
LISTS_AHEAD = 64
MEASURED_S = 10.0
PAUSE_S = 0.005
BOUND_S = 0.5
BACK_WITHIN_S = 60.0
BACK_BYTES = 16 << 20
"""What a process may keep over what it had before: free lists, its allocator's arenas."""
TOPIC = "t"

Waits = dict[str, list[float]]


class Hostile:
    """Connections that keep LISTS_AHEAD lists asked for and read what comes; one that is closed comes again."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._one = messages.encode_request(ApiKey.LIST_GROUPS, 4, ListGroupsRequest(), 1)
        self._running = True
        self._poll = select.poll()
        self._sockets: dict[int, socket.socket] = {}
        self._left: dict[int, int] = {}
        self.reset = 0
        for _ in range(CONNECTIONS):
            self._connect()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _connect(self) -> None:
        sock = socket.create_connection(("127.0.0.1", self._port))
        sock.sendall(self._one * LISTS_AHEAD)
        self._sockets[sock.fileno()] = sock
        self._left[sock.fileno()] = 0
        self._poll.register(sock, select.POLLIN)

    def _read(self) -> None:
        while self._running:
            for descriptor, _ in self._poll.poll(100):
                try:
                    self._read_some(descriptor)
                except OSError:
                    self._poll.unregister(descriptor)
                    self._sockets.pop(descriptor).close()
                    self.reset += 1
                    self._connect()

    def _read_some(self, descriptor: int) -> None:
        sock, left = self._sockets[descriptor], self._left
        if not left[descriptor]:
            left[descriptor] = int.from_bytes(sock.recv(4, socket.MSG_WAITALL))
            sock.sendall(self._one)
        some = sock.recv(min(left[descriptor], 1 << 20))
        if not some:
            raise ConnectionResetError
        left[descriptor] -= len(some)

    def close(self) -> None:
        """Leave in the midst of it."""
        self._running = False
        self._thread.join()
        for each in self._sockets.values():
            each.close()


def make_groups(port: int, groups: int) -> None:
    """`groups` groups with an offset each."""
    with WireSocket(port, timeout_s=120) as connection:
        assert commit(connection, commit_request("good", TOPIC, 1)) == [0]
        for at in range(0, groups, 50):
            names = [f"group-{number}" for number in range(at, min(at + 50, groups))]
            connection.send(
                b"".join(
                    messages.encode_request(ApiKey.OFFSET_COMMIT, 8, commit_request(name, TOPIC, 1), 1)
                    for name in names
                )
            )
            for _ in names:
                connection.read_frame()


def measure(port: int, duration_s: float) -> Waits:
    """Seconds that each request of one good client took."""
    wanted = OffsetFetchGroup("good", (OffsetFetchTopic(TOPIC, partition_indexes=(0,)),))
    fetch = OffsetFetchRequest(groups=(wanted,))
    waits: Waits = {"OffsetFetch": [], "OffsetCommit": []}
    with WireSocket(port, timeout_s=600) as connection:
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            began = time.perf_counter()
            ask(connection, ApiKey.OFFSET_FETCH, fetch, version=8)
            waits["OffsetFetch"].append(time.perf_counter() - began)
            began = time.perf_counter()
            commit(connection, commit_request("good", TOPIC, 2), version=8)
            waits["OffsetCommit"].append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
    return waits


def show(when: str, waits: Waits) -> bool:
    """Print a line a kind of request; whether all are within the bound."""
    is_good = True
    for name, seconds in waits.items():
        cuts = quantiles(seconds, n=100) if len(seconds) > 1 else seconds * 99
        is_good = is_good and cuts[98] <= BOUND_S
        told = " ".join(f"{1000 * each:>9.1f}" for each in (cuts[49], cuts[98], max(seconds)))
        print(f"{when:<22} {name:<13} {len(seconds):>6} {told}", flush=True)
    return is_good


def memory(broker: Appliance) -> dict[int, int]:
    return {pid: private_bytes(pid) for role in ("coordinator", "netproc") for pid in broker.pids(role)}


def is_back(broker: Appliance, before: dict[int, int]) -> bool:
    """Whether the memory is what it was, within BACK_WITHIN_S."""
    began = time.monotonic()
    while True:
        now = memory(broker)
        if all(now[pid] - held <= BACK_BYTES for pid, held in before.items()):
            print(f"memory back after {time.monotonic() - began:.1f} s")
            return True
        if time.monotonic() - began > BACK_WITHIN_S:
            print("memory not back:", {pid: f"{(now[pid] - before[pid]) >> 20} MiB more" for pid in before})
            return False
        time.sleep(0.5)


def run(groups: int) -> bool:
    """One appliance with so many groups; whether all bounds hold."""
    with tempfile.TemporaryDirectory() as directory:
        broker = Appliance(Path(directory, "data"), settings={"offsets.topic.num.partitions": 8})
        broker.start()
        try:
            create_topic(broker.port, TOPIC)
            make_groups(broker.port, groups)
            print(f"\n{groups} groups; ms: p50, p99, longest")
            is_good = show("alone", measure(broker.port, MEASURED_S / 4))
            before = memory(broker)
            hostile = Hostile(broker.port)
            time.sleep(1)
            is_good &= show("beside hostile ones", measure(broker.port, MEASURED_S))
            hostile.close()
            print(f"the appliance has closed {hostile.reset} of the hostile connections")
            is_good &= show("after they have left", measure(broker.port, MEASURED_S / 4))
            return is_good & is_back(broker, before)
        finally:
            broker.stop()


def main() -> int:
    """Measure each number of groups that was asked for; the exit code."""
    held = [run(int(each)) for each in sys.argv[1:] or ("2000", "10000")]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
