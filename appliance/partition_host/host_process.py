"""The process around a host: its shared memory, its duty cycle, and what it tells the supervisor."""

from __future__ import annotations

import select
from collections.abc import Callable
from typing import Final

from appliance.channels.controller_link import ControllerLink
from appliance.channels.supervision import Failed, Heartbeat, Ready, SupervisionSocket
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.ipc.agent import DutyCycle
from appliance.ipc.process_table import ProcessState

BEAT_MS: Final = 500
"""The least time between two heartbeats that a process sends unasked."""
_NS_PER_MS: Final = 1_000_000


class HostProcess:
    """One life of a worker or of a replica process."""

    def __init__(
        self,
        attachment: Attachment,
        controller: ControllerLink,
        supervision: SupervisionSocket,
        *,
        clock: Clock,
        warn: Callable[[str], None],
    ) -> None:
        self.attachment = attachment
        self.clock = clock
        self.warn = warn
        self.settings = attachment.wiring.settings
        self.supervision = supervision
        self.supervision_fd = supervision.fileno()
        self.cycle = DutyCycle(attachment.doorbell, attachment.row, monotonic_ns=clock.monotonic_ns)
        self.cycle.add_inbox(controller)
        self.cycle.epoll.register(controller.fileno(), select.EPOLLIN)
        self.cycle.epoll.register(self.supervision_fd, select.EPOLLIN)
        for reader in attachment.inbound.values():
            self.cycle.add_inbox(reader)
        self._beaten_ns = 0

    def ready(self) -> None:
        """Tell the supervisor that the process serves from now on."""
        self.attachment.row.set_state(ProcessState.RUNNING)
        self.supervision.send(Ready())

    def failed(self, why: str, *, fatal: bool) -> None:
        """Tell the supervisor that the process cannot start. With `fatal` the appliance ends."""
        self.supervision.send(Failed(why, fatal=fatal))

    def beat(self) -> None:
        """Send a heartbeat in the middle of long work, for the supervisor may have asked for one meanwhile."""
        now_ns = self.clock.monotonic_ns()
        if now_ns - self._beaten_ns >= BEAT_MS * _NS_PER_MS:
            self._beaten_ns = now_ns
            self.supervision.send(Heartbeat(now_ns))

    def after_ms(self, pause_ms: int, action: Callable[[], None]) -> None:
        """Call `action` after `pause_ms`, in a turn of the duty cycle."""
        self.cycle.timers.add(self.clock.monotonic_ns() + pause_ms * _NS_PER_MS, action)

    def stopping(self) -> None:
        """Publish that the process ends."""
        self.attachment.row.set_state(ProcessState.STOPPING)

    def close(self) -> None:
        """Close the duty cycle."""
        self.cycle.close()
