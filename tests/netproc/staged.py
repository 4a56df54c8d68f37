"""A stage of arriving connections over real sockets, turned by the test; no process."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from socket import SocketType
from typing import Any

from appliance.channels.connection_channel import Assignment
from appliance.ipc.agent import DutyCycle
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.process_table import ProcessTable, process_table_size_bytes
from appliance.netproc.arrival_stage import ArrivalStage
from tests.support.wire import PATIENCE_S


class Staged:
    """What surrounds a stage in a network process. A subclass makes the stage with `cycle` and `note_failure`."""

    stage: ArrivalStage[Any]

    def __init__(self, listener: str) -> None:
        row = ProcessTable(memoryview(bytearray(process_table_size_bytes(1)))).row(0)
        self.cycle = DutyCycle(
            Doorbell(Doorbell.create_eventfd(), row.sleeping_cell), row, monotonic_ns=time.monotonic_ns
        )
        self.lines: list[str] = []
        self.failed: list[tuple[int, str | None]] = []
        self.claims: list[tuple[str, str]] = []
        self.begun = 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.listener_name = listener
        self._clients: list[socket.socket] = []

    def note_failure(self, assignment: Assignment, why: str | None, mechanism: str, claimed: str) -> None:
        self.failed.append((assignment.connection_id, why))
        self.claims.append((mechanism, claimed))

    def arrive(self, host: str = "127.0.0.1") -> socket.socket:
        """A client's socket, whose other end is in the stage."""
        client = socket.create_connection(self.server.getsockname(), PATIENCE_S)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        accepted, address = self.server.accept()
        ours = SocketType(socket.AF_INET, socket.SOCK_STREAM, 0, accepted.detach())
        ours.setblocking(False)
        self.begun += 1
        self._clients.append(client)
        self.stage.begin(Assignment(self.begun, 0, self.listener_name, host, address[1]), ours)
        return client

    def turn(self, timeout_ms: int = 20) -> None:
        for descriptor, _ in self.cycle.wait(timeout_ms):
            self.stage.on_ready(descriptor)
        self.stage.turn()

    def turn_until(self, is_done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not is_done():
            assert time.monotonic() < deadline, (self.failed, self.lines)
            self.turn()

    def close(self) -> None:
        self.stage.close()
        for client in self._clients:
            client.close()
        self.server.close()
