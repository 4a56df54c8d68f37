"""Whether a process goes on, also as long work sees it."""

from __future__ import annotations

from appliance.channels.supervision import Message, Stop, SupervisionSocket


class RunState:
    """Of one process. `is_running`: false once the process has to stop."""

    def __init__(self, supervision: SupervisionSocket) -> None:
        self._supervision = supervision
        self._overheard: list[Message] = []
        self.is_running = True

    def overhear(self) -> None:
        """Receive what the supervisor sends while a command is carried out: a stop counts at once, all else afterwards.

        On a busy host a command that goes behind other work would outlast the time that a stop has.
        """
        received = self._supervision.receive()
        self._overheard.extend(received or ())
        if received is None or any(isinstance(message, Stop) for message in received):
            self.is_running = False

    def take_overheard(self) -> list[Message]:
        """Return what was received meanwhile, oldest first, once."""
        overheard, self._overheard = self._overheard, []
        return overheard
