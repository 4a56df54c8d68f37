"""The agent of an I/O worker: serve the rings, obey controller and supervisor; sleep when there is nothing.

Does: owns mmap'd segments and indexes, offsets, producer state and high watermark of the partitions it leads.
Never: talks to a client's socket; waits for a disk flush (answers may: `group_commit`); polls while idle.
Dies: the supervisor restarts it; the log recovers from its recovery point, and network processes answer what was
under way with a retriable error. Whatever was answered before is in the page cache and survives.

`request_rings.py` serves requests, `leader_host.py` opens partitions and keeps them in order.
"""

from __future__ import annotations

from typing import Final

from appliance.channels.control_channel import WorkerHello
from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import CONTROLLER, Role
from appliance.ioproc.leader_host import LeaderHost
from appliance.ipc.brief_wait import BriefWait
from appliance.partition_host.run_state import RunState
from appliance.process.agent import AgentProcess

BURSTS_A_LOOK: Final = 8
# From an answer to the client's next request: two socket calls, two wake-ups and the network process twice.
NEXT_REQUEST_NS: Final = 150_000


class WorkerAgent:
    """One worker's loop and its state. `run` returns after Stop, when the logs are closed."""

    def __init__(self, process: AgentProcess, controller: ControllerLink) -> None:
        self._process = process
        self._attachment = process.attachment
        self._controller = controller
        self._cycle = process.cycle
        self._brief_wait = BriefWait(process.clock.monotonic_ns, limit_ns=NEXT_REQUEST_NS)
        self._run_state = RunState(process.supervision)
        self.host = LeaderHost(process, controller, run_state=self._run_state)
        self.rings = self.host.rings
        self._say_hello()

    # The cycle

    def run(self) -> None:
        """Serve until Stop."""
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
            for descriptor, _ in self._cycle.wait(rings.sleep_max_ms):
                if descriptor == supervision_fd:
                    self._process.hear(self)
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

    # What the supervisor and the controller send

    def _say_hello(self) -> None:
        """To each life of the controller: it answers the first hello of ours that it hears with all our partitions."""
        role = self._attachment.role
        self._controller.ask(WorkerHello(role.slot, role.index, self._attachment.generation))

    def stop(self, within_ms: int) -> None:
        """End after this turn; logs are flushed and marked clean then."""
        self._run_state.is_running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Greet a controller; serve the next life of a process that has a ring to this one."""
        if peer == CONTROLLER:
            self._say_hello()
            self.host.new_controller()
        elif new_rings:
            self.host.peer_up(peer)

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Drop the requests of a dead process: nobody waits for their answers."""
        if had_rings:
            self.host.peer_down(peer)

    def _close(self) -> None:
        self.host.close()
        self._process.close()
        self._controller.close()

    def statistics(self) -> dict[str, int]:
        """Partitions led, answers kept back."""
        return self.host.statistics()
