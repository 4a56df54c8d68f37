"""What the supervisor knows of each child."""

from __future__ import annotations

import os
import signal
from collections import deque
from dataclasses import dataclass, field

from appliance.channels.roles import Role
from appliance.channels.supervision import Failed, Message, SupervisionSocket
from appliance.control.supervisor.back_off import BackOff
from appliance.control.supervisor.child_states import ALIVE, Event, State, after
from appliance.control.supervisor.silence import Silence


@dataclass(slots=True)
class ChildRecord:
    """One role and its present life. Changed by the supervisor's duty cycle only.

    `supervision` is the supervisor's end; `unsent` holds, in order, what its buffer did not take (a child
    that does not read yet). `has_regions` says that rings of `generation` exist. `held`: it was killed, runs no
    more, and the kernel does not let it end (see held.py).
    """

    role: Role
    back_off: BackOff
    state: State = State.ABSENT
    generation: int = 0
    has_regions: bool = False
    pid: int = -1
    pidfd: int = -1
    supervision: SupervisionSocket | None = None
    unsent: deque[Message] = field(default_factory=deque)
    forked_ns: int = 0
    failure: Failed | None = None
    ever_served: bool = False
    killed: bool = False
    held: bool = False
    silence: Silence = field(default_factory=Silence)

    def meet(self, event: Event) -> None:
        self.state = after(self.state, event)

    @property
    def is_alive(self) -> bool:
        return self.state in ALIVE

    def send(self, message: Message) -> bool:
        """Sends, or keeps the message until `flush`. Whether nothing is left to send."""
        if self.supervision is None:
            return True
        if self.unsent or not self.supervision.send(message):
            self.unsent.append(message)
            return False
        return True

    def flush(self) -> bool:
        """Sends what was kept. Whether nothing is left."""
        while self.unsent:
            if self.supervision is not None and not self.supervision.send(self.unsent[0]):
                return False
            self.unsent.popleft()
        return True

    def kill(self) -> None:
        """SIGKILL, through the pidfd: never another process that got the same pid."""
        if self.pidfd >= 0:
            self.killed = True
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def reap(self) -> str:
        """Takes the dead process off the system; how it ended, in words."""
        result = os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED)
        self.killed = self.held = False
        self.close()
        if result is None:
            return "vanished"
        if result.si_code == os.CLD_EXITED:
            return f"exited with code {result.si_status}" if result.si_status else "exited"
        return f"was killed by {signal.Signals(result.si_status).name}"

    def close(self) -> None:
        """Lets go of this life's descriptors."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
        if self.supervision is not None:
            self.supervision.close()
            self.supervision = None
        self.unsent.clear()
