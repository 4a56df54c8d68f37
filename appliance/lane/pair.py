"""Lanes and another transport in one network process: each gets what is its own."""

from __future__ import annotations

from appliance.lane.lanes import Lanes
from appliance.lane.session import LaneSession
from appliance.requests.session import Session
from appliance.requests.transport import Transport


class Pair:
    """Both as one transport."""

    def __init__(self, lanes: Lanes, other: Transport) -> None:
        self._lanes = lanes
        self._other = other

    def _of(self, session: Session) -> Transport:
        return self._lanes if isinstance(session, LaneSession) else self._other

    def on_ready(self, descriptor: int) -> None:
        """One of their descriptors is ready."""
        if self._lanes.owns(descriptor):
            self._lanes.on_ready(descriptor)
        else:
            self._other.on_ready(descriptor)

    def turn(self, *, may_read: bool) -> None:
        """Do what there is to do."""
        self._lanes.turn(may_read=may_read)
        self._other.turn(may_read=may_read)

    def send(self, session: Session) -> None:
        """The answer at the head of the session's queue is there."""
        self._of(session).send(session)

    def resume(self, session: Session) -> None:
        """The session is throttled no more."""
        self._of(session).resume(session)

    def owe(self, session: Session, owed_bytes: int) -> None:
        """An answer was given that may be large."""
        self._of(session).owe(session, owed_bytes)

    def fault(self, session: Session, why: str) -> None:
        """End a session with one log line."""
        self._of(session).fault(session, why)

    def contain(self, session: Session, error: Exception) -> None:
        """End a session, a request of which could not be served."""
        self._of(session).contain(session, error)

    def end(self, session: Session) -> None:
        """End a session without a line."""
        self._of(session).end(session)

    def drain(self, *, late: bool) -> bool:
        """Take nothing more; return whether everything is answered and sent."""
        is_done = self._lanes.drain(late=late)
        return self._other.drain(late=late) and is_done

    def close(self) -> None:
        """Let go of everything."""
        self._lanes.close()
        self._other.close()

    @property
    def sessions(self) -> int:
        """How many sessions there are."""
        return self._lanes.sessions + self._other.sessions
