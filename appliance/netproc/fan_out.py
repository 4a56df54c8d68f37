"""A network process's end of the fan-out: connections that the acceptor gave it, and what it tells back.

Two halves of each connection arrive on two ways and are matched by connection id
(channels/connection_channel.py). The acceptor may be restarted at any time: connections stay, and `connect`
says hello to its next life with all that is held.

Use, in a network process's loop:

    fan_out = FanOut(wiring, role, generation, context=context, clock=clock)
    epoll.register(fan_out.fileno(), select.EPOLLIN)        # one descriptor, for the life of the process
    cycle.add_inbox(fan_out)                                # or: look at is_empty() before every sleep
    fan_out.connect()                                       # at start, and at each PeerUp of the acceptor
    …
    for assignment, sock in fan_out.accepted():             # when the descriptor is ready
        …
    fan_out.report_closed([assignment.peer_host, …])        # once a turn, when some closed
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from socket import SocketType
from typing import Final

import zmq

from appliance.channels.connection_channel import (
    DESCRIPTOR,
    HALF_WAITS_MS,
    LANE,
    Assignment,
    Hello,
    Load,
    decode,
    encode,
)
from appliance.channels.roles import Role
from appliance.channels.wiring import Wiring
from appliance.clock import Clock
from appliance.ipc.errors import DescriptorLost, PeerGone
from appliance.ipc.fd_passing import receive_descriptor
from appliance.netproc.address_counts import AddressCounts

# Where the acceptor does not read, reports wait in `_closed` instead of in ZeroMQ.
REPORTS_UNDER_WAY_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class FanOutStatistics:
    """Connections held, halves that wait for the other, and whether an acceptor is there."""

    held: int
    assignments_waiting: int
    descriptors_waiting: int
    is_connected: bool


class FanOut:
    """The network process's side of the fan-out.

    Args:
        wiring: where the acceptor's sockets are.
        role: this network process.
        generation: its generation.
        context: the process's ZeroMQ context.
        clock: how long a half has waited.
    """

    def __init__(
        self,
        wiring: Wiring,
        role: Role,
        generation: int,
        *,
        context: zmq.Context[zmq.Socket[bytes]],
        clock: Clock,
    ) -> None:
        self._zmq_address = wiring.zmq_address("acceptor.zmq")
        self._channel_path = wiring.socket_path("acceptor.fd")
        self._netproc = role.index
        self._generation = generation
        self._identity = f"{role.token}.g{generation}"
        self._attempt = 0
        self._context = context
        self._clock = clock
        # Both sockets come and go with the acceptor; an epoll set of our own is one descriptor that stays.
        self._epoll = select.epoll()
        self._dealer: zmq.Socket[bytes] | None = None
        self._channel: socket.socket | None = None
        self._held = AddressCounts()
        self._assignments: dict[int, tuple[Assignment, int]] = {}
        self._descriptors: dict[int, tuple[int, int]] = {}
        self._whole: list[tuple[Assignment, SocketType]] = []
        self._closed = AddressCounts()
        self._paused = False
        self._sessions = 0
        self._is_unsent = False
        self._may_have_more = False

    def fileno(self) -> int:
        """Readable when `accepted` has something to do; the same for the life of this object."""
        return self._epoll.fileno()

    def is_empty(self) -> bool:
        """False when `accepted` is to be called although `fileno` is not readable: ZeroMQ's descriptor is
        edge-triggered, and a send may have swallowed the edge of what arrived. Costs nothing.
        """
        return not self._may_have_more

    def connect(self) -> bool:
        """Says hello to the acceptor's present life, unless that was done. False when it is not there: its PeerUp
        will come.
        """
        if self._is_connected():
            return True
        # What its last life gave completely is ours.
        self._read_channel()
        self._read_dealer()
        self._disconnect()
        self._attempt += 1
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel.setblocking(False)
        try:
            channel.connect(self._channel_path)
            channel.send(encode(Hello(self._netproc, self._generation, self._attempt)))
        except OSError:
            channel.close()
            return False
        self._channel = channel
        self._epoll.register(channel.fileno(), select.EPOLLIN)
        dealer = self._context.socket(zmq.DEALER)
        # Another identity for each attempt: what is meant for the last one's socket cannot reach this one.
        dealer.set(zmq.IDENTITY, f"{self._identity}.{self._attempt}".encode())
        dealer.set(zmq.LINGER, 0)
        dealer.set(zmq.SNDHWM, REPORTS_UNDER_WAY_MAX)
        dealer.set(zmq.RCVHWM, 0)  # bounded by the descriptors, which the acceptor sends first
        dealer.set(zmq.RECONNECT_IVL, -1)  # the next life of the acceptor gets a new socket and a new hello
        dealer.connect(self._zmq_address)
        self._dealer = dealer
        self._epoll.register(int(dealer.get(zmq.FD)), select.EPOLLIN)
        # The hello carries the whole state; nothing reported before it matters to this life of the acceptor.
        self._closed = AddressCounts()
        self._is_unsent = False
        hello = Hello(self._netproc, self._generation, self._attempt, held=self._held.by_host)
        try:
            dealer.send(encode(hello), zmq.NOBLOCK)
        except zmq.Again:
            # It shook hands and went: a socket that never reconnects has nowhere to put this, and would wait.
            self._disconnect()
            return False
        if self._paused or self._sessions:
            self._report()
        self._may_have_more = True
        return True

    def accepted(self) -> list[tuple[Assignment, SocketType]]:
        """The connections whose both halves are here; their sockets are non-blocking and the caller's to
        close.

        Each is held, and counted as such by the acceptor, until `report_closed`.
        """
        self._may_have_more = False
        self._read_channel()
        self._read_dealer()
        if self._assignments or self._descriptors:
            self._drop_old_halves()
        if self._is_unsent:
            self._report()
        whole, self._whole = self._whole, []
        return whole

    def report_closed(self, hosts: Iterable[str]) -> None:
        """Tells the acceptor that connections are held no more; `hosts`: the address of each."""
        for host in hosts:
            if self._held.remove(host):
                self._closed.add(host)
        if self._closed.total:
            self._report()

    def report_load(self, paused: bool) -> None:
        """Tell the acceptor to prefer other network processes while the pool is full (`paused`), or no longer."""
        if paused != self._paused:
            self._paused = paused
            self._report()

    def report_sessions(self, sessions: int) -> None:
        """Tell the acceptor how many ZeroMQ sessions this process has."""
        self._sessions = sessions
        self._report()

    def statistics(self) -> FanOutStatistics:
        return FanOutStatistics(
            held=self._held.total,
            assignments_waiting=len(self._assignments),
            descriptors_waiting=len(self._descriptors),
            is_connected=self._channel is not None,
        )

    def close(self) -> None:
        """Lets go of its sockets; connections that `accepted` gave out stay the caller's."""
        self._disconnect()
        for _, sock in self._whole:
            sock.close()
        self._epoll.close()

    # Reading

    def _read_channel(self) -> None:
        while self._channel is not None:
            try:
                received = receive_descriptor(self._channel)
            except PeerGone:
                # The acceptor is gone; its assignments may still wait in the dealer.
                self._close_channel()
                return
            except DescriptorLost:
                # Out of descriptors: the connection is lost, and its other half will not find it.
                continue
            if received is None:
                return
            payload, descriptor = received
            (connection_id,) = DESCRIPTOR.unpack(payload)
            waiting = self._assignments.pop(connection_id, None)
            if waiting is None:
                self._descriptors[connection_id] = (descriptor, self._half_deadline_ns())
            else:
                self._match(waiting[0], descriptor)

    def _read_dealer(self) -> None:
        while self._dealer is not None:
            try:
                message = decode(self._dealer.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            if not isinstance(message, Assignment):
                continue
            waiting = self._descriptors.pop(message.connection_id, None)
            if waiting is None:
                self._assignments[message.connection_id] = (message, self._half_deadline_ns())
            else:
                self._match(message, waiting[0])

    def _match(self, assignment: Assignment, descriptor: int) -> None:
        self._held.add(assignment.peer_host)
        # Family, kind and protocol are known: saying so saves three system calls. What `socket.socket` adds to this
        # type is nothing that we use, and takes as much again.
        family = socket.AF_INET6 if ":" in assignment.peer_host else socket.AF_INET
        if assignment.listener == LANE:
            sock = SocketType(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, descriptor)
        else:
            sock = SocketType(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, descriptor)
        sock.setblocking(False)
        self._whole.append((assignment, sock))

    def _half_deadline_ns(self) -> int:
        return self._clock.monotonic_ns() + HALF_WAITS_MS * 1_000_000

    def _drop_old_halves(self, *, all_of_them: bool = False) -> None:
        """Close what waited too long. Report assignments to the acceptor, because it counts them as held.

        The assignment of a descriptor may still come, and then waits until its time is over, too.
        """
        now_ns = self._clock.monotonic_ns()
        # Both tables are in the order of arrival: the first that may stay ends the search.
        for connection_id, (descriptor, deadline_ns) in list(self._descriptors.items()):
            if deadline_ns > now_ns and not all_of_them:
                break
            os.close(descriptor)
            del self._descriptors[connection_id]
        for connection_id, (assignment, deadline_ns) in list(self._assignments.items()):
            if deadline_ns > now_ns and not all_of_them:
                break
            del self._assignments[connection_id]
            self._closed.add(assignment.peer_host)
        self._is_unsent = self._is_unsent or self._closed.total > 0

    # Telling

    def _report(self) -> None:
        """Send what changed. If the acceptor does not read, keep it and try again with the next report."""
        dealer = self._dealer
        if dealer is None:
            # There is no acceptor now. The hello to its next generation reports everything.
            self._closed = AddressCounts()
            return
        try:
            load = Load(self._held.total, self._closed.by_host, self._paused, self._sessions)
            dealer.send(encode(load), zmq.NOBLOCK)
        except zmq.Again:
            self._is_unsent = True
        else:
            self._closed = AddressCounts()
            self._is_unsent = False
        self._may_have_more = bool(int(dealer.get(zmq.EVENTS)) & zmq.POLLIN)

    # The sockets

    def _is_connected(self) -> bool:
        """Whether the acceptor's other end is open; unread messages of a dead one do not hide its end."""
        if self._channel is None:
            return False
        poll = select.poll()
        poll.register(self._channel, 0)  # reports a hang-up and nothing else
        return not poll.poll(0)

    def _disconnect(self) -> None:
        self._drop_old_halves(all_of_them=True)
        self._close_channel()
        if self._dealer is not None:
            with suppress(OSError):
                self._epoll.unregister(int(self._dealer.get(zmq.FD)))
            self._dealer.close(linger=0)
            self._dealer = None

    def _close_channel(self) -> None:
        if self._channel is not None:
            self._epoll.unregister(self._channel.fileno())
            self._channel.close()
            self._channel = None
