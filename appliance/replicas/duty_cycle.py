"""The duty cycle of a replica: woken by leaders, copies what they have more, says so; sleeps when there is nothing.

Does: keeps the logs that its slot follows, and their words in the partition table.
Never: serves a client; writes to a log that its slot leads; looks whether there is something (it is told).
Dies: the supervisor restarts it; its slot's logs are recovered, cut where they part from the leader's, and catch up.

`follower_host.py` opens copies and keeps them in order, `fetcher.py` copies.
"""

from __future__ import annotations

import logging

from appliance.channels.control_channel import ReplicaHello
from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import CONTROLLER, RoleKind
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
from appliance.partition_host.host_process import HostProcess
from appliance.partition_host.run_state import RunState
from appliance.replicas.follower_host import FollowerHost

_logger = logging.getLogger(__name__)


class Replica:
    """One replica process's loop and its state. `run` returns when the supervisor said stop and the logs are closed."""

    def __init__(
        self,
        attachment: Attachment,
        controller: ControllerLink,
        supervision: SupervisionSocket,
        *,
        clock: Clock,
    ) -> None:
        self._attachment = attachment
        self._controller = controller
        self._process = HostProcess(attachment, controller, supervision, clock=clock, warn=_logger.warning)
        self._cycle = self._process.cycle
        self._run_state = RunState(supervision)
        self.host = FollowerHost(self._process, controller, run_state=self._run_state)
        self._say_hello()

    # The cycle

    def run(self) -> None:
        """Follows until told to stop."""
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
                    self._supervised(self._process.supervision.receive())
                elif descriptor == controller_fd:
                    controller.wants_look = True
                else:
                    host.look_at_directories()
            if controller.wants_look:
                host.obey(controller.receive())
                self._supervised(run_state.take_overheard())
            host.turn()
        self._close()

    # The supervisor's and the controller's words

    def _say_hello(self) -> None:
        self._controller.ask(ReplicaHello(self._attachment.role.slot, self._attachment.generation))

    def _supervised(self, messages: list[Message] | None) -> None:
        if messages is None:
            _logger.warning("the supervisor is gone; stopping")
            self._run_state.is_running = False
            return
        attachment = self._attachment
        for message in messages:
            match message:
                case PeerUp() if message.role == CONTROLLER:
                    self._say_hello()
                case PeerUp():
                    if attachment.peer_up(message.role, message.generation):
                        self._cycle.add_inbox(attachment.inbound[message.role])
                        self.host.peer_up(message.role)
                    if message.role.kind is RoleKind.IOPROC:
                        self.host.fetcher.look_at_all(message.role)
                case PeerDown():
                    if attachment.generations.get(message.role) == message.generation:
                        reader = attachment.inbound.get(message.role)
                        if reader is not None:
                            self._cycle.remove_inbox(reader)
                        self.host.peer_down(message.role)
                        attachment.peer_down(message.role)
                case Stop():
                    self._run_state.is_running = False
                case Heartbeat():
                    self._process.supervision.send(message)
                case _:
                    _logger.warning("unexpected word of the supervisor: %s", message)

    def _close(self) -> None:
        self.host.close()
        self._process.close()
        self._controller.close()

    def statistics(self) -> dict[str, int]:
        """Partitions followed, and those with something to copy."""
        return self.host.statistics()
