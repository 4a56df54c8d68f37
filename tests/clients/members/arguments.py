"""What all members have in common: their arguments, their timeouts, and how they are told to leave."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass
from typing import Final

SESSION_MS: Final = 4_000
HEARTBEAT_MS: Final = 300
LEAVE_S: Final = 10


@dataclass(frozen=True, slots=True)
class Arguments:
    address: str
    group: str
    topic: str
    client_id: str
    protocol: str = "classic"
    session_ms: int = SESSION_MS


class Leaving:
    """Whether SIGTERM has come. The member then leaves its group, and ends after LEAVE_S even if it could not leave.

    A client whose broker does not answer waits in its calls for much longer, or for ever.
    """

    def __init__(self) -> None:
        self.asked = False
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: object) -> None:
        self.asked = True
        signal.alarm(LEAVE_S)  # nobody handles SIGALRM, so it ends the process


def arguments() -> Arguments:
    address, group, topic, client_id, protocol, session_ms = sys.argv[1:]
    return Arguments(address, group, topic, client_id, protocol, int(session_ms))


def processed(partition: int, offset: int) -> None:
    """Tells of a record; flushed, so that a kill loses no line."""
    sys.stdout.write(f"{partition} {offset}\n")
    sys.stdout.flush()
