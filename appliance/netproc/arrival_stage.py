"""What every stage before a session does: it bounds the connections in it, and closes each that takes too long.

    begin ─→ waiting ──ready──→ step ─→ … ─→ done: handed on
                │                 └─ failed: closed, with the reason
                ├─ its time is over: closed
                └─ too many of one address, or in all: the oldest is closed for the next one

`tls_handshakes` and `authentications` are stages. `arrivals` says which connection goes through which.
"""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from socket import SocketType
from typing import Final, Generic, TypeVar

import msgspec

from appliance.channels.connection_channel import Assignment
from appliance.clock import NS_PER_MS, Clock
from appliance.ipc.agent import NEVER_NS, DutyCycle

TURN_NS: Final = 2_000_000
"""A turn begins no further step after this time, so that the requests of sessions pass."""


class Arriving(msgspec.Struct, eq=False):
    """A connection in a stage. `sock` and what may take its place have the same descriptor."""

    assignment: Assignment
    sock: SocketType
    fd: int
    deadline_ns: int
    mask: int = select.EPOLLIN


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long and how many.

    Args:
        option: the option that bounds all of them; with `.per.ip` behind it, the one that bounds those of an address.
        late: why a connection is closed when its time is over.
    """

    timeout_ms: int
    in_all: int
    of_address: int
    option: str
    late: str


Failed = Callable[[Assignment, str | None, str, str], None]
"""Gets a connection that was closed, why, the mechanism of its authentication ("" if it has named none), and the
principal that its client claims to be ("" if it names none). Without a reason the client has left."""

_Waiting = TypeVar("_Waiting", bound=Arriving)


class ArrivalStage(ABC, Generic[_Waiting]):
    """The connections of one network process that are in one stage."""

    __slots__ = (
        "_bounds",
        "_by_host",
        "_clock",
        "_cycle",
        "_failed",
        "_ready",
        "_timer_ns",
        "_waiting",
    )

    def __init__(self, bounds: Bounds, *, cycle: DutyCycle, clock: Clock, failed: Failed) -> None:
        self._bounds = bounds
        self._cycle = cycle
        self._clock = clock
        self._failed = failed
        self._timer_ns = NEVER_NS
        # Both in the order of arrival, which is that of the deadlines.
        self._waiting: dict[int, _Waiting] = {}
        self._by_host: dict[str, dict[int, None]] = {}
        self._ready: dict[int, None] = {}
        cycle.add_inbox(self)

    def __len__(self) -> int:
        return len(self._waiting)

    # For the processor

    def is_empty(self) -> bool:
        """Inbox: whether no step is left over from the last turn."""
        return not self._ready

    def on_ready(self, descriptor: int) -> bool:
        """Note a ready descriptor for this turn; return whether it is one of these connections."""
        if descriptor not in self._waiting:
            return False
        self._ready[descriptor] = None
        return True

    def turn(self) -> None:
        """Do the steps that there are, as long as a turn may take."""
        until_ns = self._clock.monotonic_ns() + TURN_NS
        for descriptor in list(self._ready):
            if descriptor not in self._ready:
                continue  # a step before has closed it
            del self._ready[descriptor]
            waiting = self._waiting.get(descriptor)
            if waiting is not None:
                try:
                    self._step(waiting)
                except Exception as error:
                    if self._waiting.get(descriptor) is not waiting:
                        raise
                    # A stranger's bytes must not end the process of the others. The text could hold a secret.
                    self._fail(waiting, f"an error of the appliance: {type(error).__name__}")
                if self._clock.monotonic_ns() >= until_ns:
                    return

    def close(self) -> None:
        """Close all of them without a line."""
        for waiting in list(self._waiting.values()):
            self._fail(waiting, None)

    @abstractmethod
    def begin(self, assignment: Assignment, sock: SocketType) -> None:
        """Take a connection."""

    # For the stage

    @abstractmethod
    def _step(self, waiting: _Waiting) -> None:
        """Do the next step of a connection whose descriptor is ready."""

    @abstractmethod
    def _socket(self, waiting: _Waiting) -> SocketType:
        """Return what is to be closed: the socket, or what has taken its place."""

    def _claim(self, _waiting: _Waiting) -> tuple[str, str]:
        """Return mechanism and claimed principal for `Failed`."""
        return "", ""

    def _has_more_time(self, _waiting: _Waiting) -> bool:
        """Return whether a connection stays although its time is over, because something else ends it."""
        return False

    def _make_room(self, host: str) -> None:
        """Close the oldest connection of an address, or of all, if there is no room for one more."""
        bounds = self._bounds
        of_host = self._by_host.get(host)
        if of_host is not None and len(of_host) >= bounds.of_address:
            oldest, bound = next(iter(of_host)), f"{bounds.option}.per.ip = {bounds.of_address}"
        elif len(self._waiting) >= bounds.in_all:
            oldest, bound = next(iter(self._waiting)), f"{bounds.option} = {bounds.in_all}"
        else:
            return
        self._fail(self._waiting[oldest], f"{bound} are not finished")

    def _deadline_ns(self) -> int:
        """Return the deadline of a connection that comes now."""
        return self._clock.monotonic_ns() + self._bounds.timeout_ms * NS_PER_MS

    def _keep(self, waiting: _Waiting) -> None:
        """Take a connection into the stage. `_make_room` was called for its address."""
        self._waiting[waiting.fd] = waiting
        self._by_host.setdefault(waiting.assignment.peer_host, {})[waiting.fd] = None
        self._cycle.epoll.register(waiting.fd, select.EPOLLIN)
        if self._timer_ns == NEVER_NS:
            self._arm(waiting.deadline_ns)

    def _watch(self, waiting: _Waiting, mask: int) -> None:
        if mask != waiting.mask:
            waiting.mask = mask
            self._cycle.epoll.modify(waiting.fd, mask)

    def _fail(self, waiting: _Waiting, why: str | None) -> None:
        """Close a connection, unless it has left the stage already."""
        if self._waiting.get(waiting.fd) is not waiting:
            return
        self._forget(waiting)
        with suppress(OSError, ValueError):
            self._socket(waiting).close()
        self._failed(waiting.assignment, why, *self._claim(waiting))

    def _forget(self, waiting: _Waiting) -> None:
        """Let a connection leave the stage."""
        host = waiting.assignment.peer_host
        with suppress(OSError):
            # Where TLS cannot begin, `ssl` has closed the descriptor already, and it has left the epoll set.
            self._cycle.epoll.unregister(waiting.fd)
        del self._waiting[waiting.fd]
        self._ready.pop(waiting.fd, None)
        of_host = self._by_host[host]
        del of_host[waiting.fd]
        if not of_host:
            del self._by_host[host]

    # Deadlines

    def _arm(self, due_ns: int) -> None:
        self._timer_ns = due_ns
        self._cycle.timers.add(due_ns, self._expire)

    def _expire(self) -> None:
        self._timer_ns = NEVER_NS
        now_ns = self._clock.monotonic_ns()
        for waiting in list(self._waiting.values()):
            if waiting.deadline_ns > now_ns:
                self._arm(waiting.deadline_ns)
                return
            if not self._has_more_time(waiting):
                self._fail(waiting, self._bounds.late)
