"""What a network process and its second transport are to each other. A transport is a way by which clients reach it.

The processor owns the loop, the pool and the `Apis`, and is the transport for TCP itself. A second one owns its
sessions: it cuts their requests, hands them to `Apis.serve`, and sends the answers that the processor hands back.
`gateway` is one. The processor calls it between two steps of a turn. Without a second transport a turn pays one look
at an empty slot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from appliance.ipc.agent import DutyCycle
from appliance.ipc.buffer_pool import BufferPool
from appliance.process.agent import AgentProcess
from appliance.requests.apis import Apis
from appliance.requests.auditing import Auditing
from appliance.requests.session import Session


class Transport(Protocol):
    """The sessions of one way in."""

    def on_ready(self, descriptor: int) -> None:
        """A descriptor that is not the processor's is ready. Called before `turn`."""

    def turn(self, *, may_read: bool) -> None:
        """Do what there is to do: read requests if `may_read`, go on with what waited.

        Without `may_read` no request may begin, because a worker's ring is full.
        """

    def send(self, session: Session) -> None:
        """The answer at the head of the session's queue is there."""

    def resume(self, session: Session) -> None:
        """The session is throttled no more: go on with its requests."""

    def owe(self, session: Session, owed_bytes: int) -> None:
        """An answer was given that may be large where its request was small."""

    def fault(self, session: Session, why: str) -> None:
        """End a session with one log line, because of what its client sent."""

    def contain(self, session: Session, error: Exception) -> None:
        """End a session, a request of which could not be served."""

    def end(self, session: Session) -> None:
        """End a session without a line."""

    def drain(self, *, late: bool) -> bool:
        """Take nothing more; return whether everything is answered and sent. `late`: end what is not."""

    def close(self) -> None:
        """Let go of everything."""

    @property
    def sessions(self) -> int:
        """How many sessions there are."""


@dataclass(frozen=True, slots=True)
class TransportHost:
    """What the processor gives to a second transport.

    Args:
        cycle: the transport registers its descriptors there, and itself as an inbox.
        is_ready: whether requests may be served, because there is a metadata image.
        end_requests: drops what an ended session has asked for.
        say_closed: writes a line about a session that was ended for what its client sent.
        report_sessions: tells the acceptor how many sessions there are.
        tidy: gives unused memory and files back; call it now and then while there are sessions.
        auditing: is called when a session has its principal; None where there is no audit journal.
    """

    process: AgentProcess
    cycle: DutyCycle
    pool: BufferPool
    apis: Apis
    is_ready: Callable[[], bool]
    end_requests: Callable[[Session], None]
    say_closed: Callable[[str], None]
    report_sessions: Callable[[int], None]
    tidy: Callable[[], None]
    auditing: Auditing | None = None
