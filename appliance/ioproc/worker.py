"""The duty cycle of an I/O worker: serve the rings, obey controller and supervisor; sleep when there is nothing.

Does: owns mmap'd segments and indexes, offsets, producer state and high watermark of the partitions it leads.
Never: talks to a client's socket; waits for a disk flush (answers may: `group_commit`); polls while idle.
Dies: the supervisor restarts it; the log recovers from its recovery point, and network processes answer what was
under way with a retriable error. Whatever was answered before is in the page cache and survives.

`request_rings.py` serves requests, `leader_host.py` opens partitions and keeps them in order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from appliance.channels.control_channel import WorkerHello
from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import CONTROLLER
from appliance.channels.supervision import (
    Heartbeat,
    Message,
    PeerDown,
    PeerUp,
    Stop,
    SupervisionSocket,
)
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.ioproc.leader_host import LeaderHost
from appliance.ipc.brief_wait import BriefWait
from appliance.partition_host.host_process import HostProcess
from appliance.partition_host.run_state import RunState

BURSTS_A_LOOK: Final = 8
# From an answer to the client's next request: two socket calls, two wake-ups and the network process twice.
NEXT_REQUEST_NS: Final = 150_000


class Worker:
    """One worker's loop and its state. `run` returns when the supervisor said stop and the logs are closed."""

    def __init__(
        self,
        attachment: Attachment,
        controller: ControllerLink,
        supervision: SupervisionSocket,
        *,
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        self._attachment = attachment
        self._controller = controller
        self._process = HostProcess(attachment, controller, supervision, clock=clock, warn=warn)
        self._cycle = self._process.cycle
        self._brief_wait = BriefWait(clock.monotonic_ns, limit_ns=NEXT_REQUEST_NS)
        self._run_state = RunState(supervision)
        self.host = LeaderHost(self._process, controller, run_state=self._run_state)
        self.rings = self.host.rings
        self._say_hello()

    # The cycle

    def run(self) -> None:
        """Serves until told to stop."""
        controller_fd, supervision_fd = self._controller.fileno(), self._process.supervision_fd
        controller, run_state, host, rings = self._controller, self._run_state, self.host, self.rings
        rounds = 0
        while run_state.is_running:
            # Under load the rings are looked at again before the sockets are: a system call saved per burst.
            rounds += 1
            if rings.serve() and rounds % BURSTS_A_LOOK:
                if rings.was_lone:
                    self._brief_wait.look_out(rings.readers())
                continue
            host.before_sleep()
            for descriptor, _ in self._cycle.wait(1 if rings.owed else None):
                if descriptor == supervision_fd:
                    self._supervised(self._process.supervision.receive())
                elif descriptor == controller_fd:
                    controller.wants_look = True
                else:
                    host.look_at_directories()
            host.expire()
            if controller.wants_look:
                host.obey(controller.receive())
            host.turn()
        rings.serve()
        self._close()

    # The supervisor's and the controller's words

    def _say_hello(self) -> None:
        """To each life of the controller: it answers the first hello of ours that it hears with all our partitions."""
        role = self._attachment.role
        self._controller.ask(WorkerHello(role.slot, role.index, self._attachment.generation))

    def _supervised(self, messages: list[Message] | None) -> None:
        if messages is None:
            self._process.warn("the supervisor is gone; stopping")
            self._run_state.is_running = False
            return
        for message in messages:
            match message:
                case PeerUp() if message.role == CONTROLLER:
                    self._say_hello()
                    self.host.new_controller()
                case PeerUp():
                    if self._attachment.peer_up(message.role, message.generation):
                        reader = self._attachment.inbound.get(message.role)
                        if reader is not None:
                            self._cycle.add_inbox(reader)
                        self.host.peer_up(message.role)
                case PeerDown():
                    if self._attachment.generations.get(message.role) == message.generation:
                        reader = self._attachment.inbound.get(message.role)
                        if reader is not None:
                            self._cycle.remove_inbox(reader)
                        self.host.peer_down(message.role)
                        self._attachment.peer_down(message.role)
                case Stop():
                    self._run_state.is_running = False
                case Heartbeat():
                    self._process.supervision.send(message)
                case _:
                    self._process.warn(f"unexpected word of the supervisor: {message}")

    def _close(self) -> None:
        self.host.close()
        self._process.close()
        self._controller.close()

    def statistics(self) -> dict[str, int]:
        """Partitions led, answers kept back."""
        return self.host.statistics()
