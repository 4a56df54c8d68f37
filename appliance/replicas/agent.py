"""The agent of a replica process: woken by leaders, copies what they have more, says so; sleeps when there is nothing.

Does: keeps the logs that its slot follows, and their words in the partition table.
Never: serves a client; writes to a log that its slot leads; looks whether there is something (it is told).
Dies: the supervisor restarts it; its slot's logs are recovered, cut where they part from the leader's, and catch up.

`follower_host.py` opens copies and keeps them in order, `fetcher.py` copies.
"""

from __future__ import annotations

from appliance.channels.control_channel import ReplicaHello
from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import CONTROLLER, Role, RoleKind
from appliance.partition_host.run_state import RunState
from appliance.process.agent import AgentProcess
from appliance.replicas.follower_host import FollowerHost


class ReplicaAgent:
    """A replica process's loop and its state. `run` returns after Stop, when the logs are closed."""

    def __init__(self, process: AgentProcess, controller: ControllerLink) -> None:
        self._process = process
        self._attachment = process.attachment
        self._controller = controller
        self._cycle = process.cycle
        self._run_state = RunState(process.supervision)
        self.host = FollowerHost(process, controller, run_state=self._run_state)
        self._say_hello()

    # The cycle

    def run(self) -> None:
        """Follow until Stop."""
        controller_fd, supervision_fd = self._controller.fileno(), self._process.supervision_fd
        controller, run_state, host = self._controller, self._run_state, self.host
        fetcher, lines = host.fetcher, host.lines
        while run_state.is_running:
            if fetcher.turn():
                wait_ms: int | None = 0
            else:
                host.before_sleep()
                wait_ms = 1 if lines.owed else None
            for descriptor, _ in self._cycle.wait(wait_ms):
                if descriptor == supervision_fd:
                    self._process.hear(self)
                elif descriptor == controller_fd:
                    controller.wants_look = True
                else:
                    host.look_at_directories()
            if controller.wants_look:
                host.obey(controller.receive())
                self._process.carry_out(self, run_state.take_overheard())
            host.turn()
        self._close()

    # What the supervisor and the controller send

    def _say_hello(self) -> None:
        self._controller.ask(ReplicaHello(self._attachment.role.slot, self._attachment.generation))

    def stop(self, within_ms: int) -> None:
        """End after this turn; logs are flushed and marked clean then."""
        self._run_state.is_running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Greet a controller; copy what the next life of a leader's worker has."""
        if peer == CONTROLLER:
            self._say_hello()
            return
        if new_rings:
            self.host.peer_up(peer)
        if peer.kind is RoleKind.IOPROC:
            self.host.fetcher.look_at_all(peer)

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Forget what a dead worker or cleaner shared with this process."""
        if had_rings:
            self.host.peer_down(peer)

    def _close(self) -> None:
        self.host.close()
        self._process.close()
        self._controller.close()

    def statistics(self) -> dict[str, int]:
        """Partitions followed, and those with something to copy."""
        return self.host.statistics()
