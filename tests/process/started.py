"""One process of an instance, started as by the supervisor; the test is the supervisor and all other processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.channels.child import Child
from appliance.channels.control_channel import Assign, AssignedPartition, Envelope, ReplicaHello, WorkerHello
from appliance.channels.controller_link import CONTROLLER_SOCKET
from appliance.channels.roles import Role, RoleKind, running_roles
from appliance.channels.supervision import (
    Heartbeat,
    Message,
    PeerDown,
    PeerUp,
    Ready,
    Stop,
    SupervisionSocket,
    socket_pair,
)
from appliance.channels.wiring import Wiring
from appliance.config import load_settings
from appliance.control.controller.control_socket import ControlSocket
from appliance.control.supervisor.entry_points import ENTRY_POINTS, load
from appliance.control.supervisor.fork import fork_child
from appliance.ipc.doorbell import Doorbell
from appliance.ipc.process_table import ProcessRow, ProcessTable
from appliance.ipc.shared_memory import Region, remove_directory
from tests.support.private_directory import new_private_directory
from tests.support.ready import is_readable
from tests.support.wire import free_ports

PATIENCE_S: Final = 60.0
LOOK_S: Final = 0.02
ALARM_S: Final = 240
SLOTS: Final = 2
TOKENS: Final = {
    "listeners": "PLAINTEXT://127.0.0.1:9092,TOKENS://127.0.0.1:9192",
    "listener.security.protocol.map": "TOKENS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "OAUTHBEARER",
    "sasl.oauthbearer.jwks.endpoint.url": "file:///no/such/directory/keys",
}
"""Options with which there is a key process."""


class Shared:
    """The shared memory of an instance whose processes all are in their first life, as one of them meets it."""

    def __init__(self, kind: RoleKind, directory: Path, options: Mapping[str, str] | None = None) -> None:
        data_dir = directory / "data"
        data_dir.mkdir()
        told = {"data.dir": str(data_dir), "slots": str(SLOTS), "network.processes": "2", **(options or {})}
        if kind is RoleKind.AUDITOR:  # it runs only where there is a journal
            told |= {"audit.log.events": "changes", "audit.log.topic": "true"}
        if kind is RoleKind.SERVICES:
            told |= {"services.processes": "1"}
        if kind is RoleKind.KEYS:
            told = {**TOKENS, **told}
        if kind is RoleKind.METRICS:
            told = {"metrics.listener": f"127.0.0.1:{free_ports(1)}", **told}
        if kind is RoleKind.CONSOLE:
            told = {"console.listener": f"127.0.0.1:{free_ports(1)}", **told}
        settings = load_settings(None, told)
        bells = {role: Doorbell.create_eventfd() for role in running_roles(settings)}
        self.wiring = Wiring(settings, "appliance-test", new_private_directory(), bells)
        self.wiring.create_standing_regions()
        self.generations: dict[Role, int] = {}
        for role in self.wiring.running:
            self.wiring.create_for(role, 1, self.generations)
            self.generations[role] = 1
        self.role = next(role for role in self.wiring.running if role.kind is kind)

    @property
    def peers(self) -> dict[Role, int]:
        """The living generation of every other process."""
        return {role: generation for role, generation in self.generations.items() if role is not self.role}

    def child(
        self, theirs: socket.socket, listeners: Mapping[tuple[str, int], socket.socket] | None = None
    ) -> Child:
        """What the supervisor gives the process."""
        return Child(self.role, 1, self.peers, self.wiring, SupervisionSocket(theirs), listeners or {})

    def remove(self) -> None:
        """Remove everything that was shared."""
        remove_directory(self.wiring.runtime_dir)
        for eventfd in self.wiring.doorbells.values():
            os.close(eventfd)


class Started(Shared):
    """A process of this kind, the first of its kind, and the test's ends of everything that it shares."""

    def __init__(
        self,
        kind: RoleKind,
        directory: Path,
        *,
        partitions: Sequence[AssignedPartition] = (),
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(kind, directory, options)
        self._table = Region.open(self.wiring.processes_name)
        self._partitions = tuple(partitions)
        self._errors = directory / "errors"
        self.supervision = self._fork()
        self._control: ControlSocket | None = None
        if kind in (RoleKind.IOPROC, RoleKind.REPLICA):
            self._control = ControlSocket(self.wiring.zmq_address(CONTROLLER_SOCKET))

    def _fork(self) -> SupervisionSocket:
        ours, theirs = socket_pair()
        listeners: dict[tuple[str, int], socket.socket] = {}
        if self.role.kind is RoleKind.ACCEPTOR:
            listeners = {("PLAINTEXT", slot): socket.create_server(("127.0.0.1", 0)) for slot in range(SLOTS)}
            for listener in listeners.values():
                listener.setblocking(False)
        child = self.child(theirs, listeners)

        def let_go() -> None:
            ours.close()
            signal.alarm(ALARM_S)
            os.dup2(os.open(self._errors, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)

        self.pid = fork_child(child, load(ENTRY_POINTS[self.role.kind]), let_go=let_go)
        self._pidfd = os.pidfd_open(self.pid)
        theirs.close()
        for listener in listeners.values():
            listener.close()
        return SupervisionSocket(ours)

    @property
    def row(self) -> ProcessRow:
        """Its row of the process table."""
        return ProcessTable(self._table.view).row(self.wiring.process_row(self.role))

    def errors(self) -> str:
        """What it has logged."""
        return self._errors.read_text() if self._errors.exists() else ""

    # What it says

    def wait_for(self, wanted: Message) -> list[Message]:
        """What it has said up to `wanted`; the test assigns partitions meanwhile, where the process asks for them."""
        said: list[Message] = []
        until = time.monotonic() + PATIENCE_S
        while wanted not in said:
            assert time.monotonic() < until, f"it never says {wanted}: {said}, {self.errors()}"
            if is_readable(self.supervision, within_s=LOOK_S):
                heard = self.supervision.receive()
                assert heard is not None, f"it has ended before it said {wanted}: {self.errors()}"
                said += heard
            self._answer_hellos()
        return said

    def wait_ready(self) -> list[Message]:
        """What it has said up to Ready."""
        return self.wait_for(Ready())

    def answers(self, number: int) -> None:
        """Return once it has carried out everything that was sent before."""
        beat = Heartbeat(number)
        self.supervision.send(beat)
        self.wait_for(beat)

    def _answer_hellos(self) -> None:
        if self._control is None:
            return
        for sender, envelope in self._control.receive():
            if isinstance(envelope.body, WorkerHello | ReplicaHello):
                self._control.send(sender, Envelope(1, Assign(1, "c", True, self._partitions)))

    # What it is told

    def lose(self, peer: Role) -> None:
        """`peer` dies."""
        generation = self.generations[peer]
        self.supervision.send(PeerDown(peer.kind, peer.index, peer.slot, generation))
        self.wiring.remove_for(peer, generation)

    def bring_back(self, peer: Role) -> None:
        """The next life of `peer` serves."""
        generation = self.generations[peer] + 1
        others = {role: other for role, other in self.generations.items() if role is not peer}
        self.wiring.create_for(peer, generation, others)
        self.generations[peer] = generation
        self.supervision.send(PeerUp(peer.kind, peer.index, peer.slot, generation))

    def stop(self, within_ms: int) -> None:
        self.supervision.send(Stop(within_ms))

    def maps(self, peer: Role, generation: int) -> bool:
        """Whether it maps a ring that it shares with this generation of `peer`."""
        mark, rings = f"{peer.token}.g{generation}", f"{self.wiring.runtime_dir}/ring-"
        for line in Path(f"/proc/{self.pid}/maps").read_text().splitlines():
            # A fork also maps what tests before this one have left mapped, which lies in other directories.
            _, ring, parties = line.removesuffix(" (deleted)").partition(rings)
            if ring and mark in parties.split("-"):
                return True
        return False

    # The end

    def exit_code(self, *, within_s: float) -> int:
        """Its exit code; fails when it does not end in time."""
        assert is_readable(self._pidfd, within_s=within_s), f"it goes on: {self.errors()}"
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        """End it, and remove everything that was shared."""
        with suppress(ProcessLookupError, ChildProcessError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._pidfd)
        self.supervision.close()
        if self._control is not None:
            self._control.close()
        self._table.close()
        self.remove()
