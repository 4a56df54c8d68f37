"""The acceptor's sockets: accepts, asks the book, hands over.

    listening sockets ──accept──→ book ──descriptor──→ SEQPACKET of the least loaded network process
                                       ──Assignment──→ ROUTER, to the same one

Rules

1. A connection is accepted only when a network process can take its descriptor; otherwise it stays in the
   system's backlog. So a restart of all network processes refuses no client.
2. A connection over max.connections or max.connections.per.ip is accepted and closed at once: its client
   learns it now, and the backlog stays free for others. Kafka leaves the first kind waiting in the backlog.
3. The descriptor goes first, then the message. A descriptor that finds its channel full goes to another
   network process before anything was said about it.
4. What was given to a network process is its own: when it dies, its connections die with it, and the book
   forgets them.
5. Messages of network processes are read before connections are accepted, so limits and loads are of this moment.
6. While a network process is missing, connections wait MISSING_GRACE_MS for it: else the others would get
   all of them, for as long as they last.
7. No request is ever read here.
8. Where connections are opened faster than a rate allows, their listening socket is left alone for a moment (it stays
   in no epoll set, so it wakes no process). An address that is over its own rate does not hold up others: its
   connection is accepted, and closed after the moment, at most TURNED_AWAY_MAX of these at a time.
9. A client of the lanes can make each close of its socket wait. So the lane door closes these, and is left alone while
   it has too many to close.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import zmq

from appliance import journal
from appliance.channels.connection_channel import DESCRIPTOR, LANE, Assignment, Hello, Load, decode, encode
from appliance.channels.own_user import bind_router, bind_socket, peer_of
from appliance.clock import Clock
from appliance.ipc.agent import DutyCycle
from appliance.ipc.errors import PeerGone
from appliance.ipc.fd_passing import send_descriptor
from appliance.ipc.process_table import CONNECTIONS, ERRORS, REQUESTS, ProcessRow
from appliance.netproc.acceptor_book import ConnectionBook
from appliance.netproc.address_counts import AddressCounts
from appliance.netproc.connection_rates import ConnectionRates

if TYPE_CHECKING:
    from appliance.lane.door import LaneDoor

# Accepted in a row from one listening socket; then loads are read and other ports served.
ACCEPT_BURST = 64
MESSAGE_BURST = 256
CHANNEL_BACKLOG = 128
HELLO_BYTES_MAX = 512
# Connections of addresses that are over their rate, which wait to be closed. One more is closed at once.
TURNED_AWAY_MAX = 1000

# A restart takes about 10 ms; a network process that is missing longer is not waited for.
MISSING_GRACE_MS = 200

# How long to leave a listening socket alone when the whole system is out of descriptors or socket memory.
SYSTEM_FULL_PAUSE_MS = 50

# How long to leave the lane door alone while it has too many sockets to close.
DOOR_PAUSE_MS = 500

# accept(2): what waits on the new connection is reported by accept; the next one may be whole.
_CONNECTION_SPOILT = frozenset(
    {
        errno.ECONNABORTED,
        errno.ENETDOWN,
        errno.EPROTO,
        errno.ENOPROTOOPT,
        errno.EHOSTDOWN,
        errno.ENONET,
        errno.EHOSTUNREACH,
        errno.EOPNOTSUPP,
        errno.ENETUNREACH,
        errno.EPERM,
    }
)

_logger = logging.getLogger(__name__)


class _NetworkProcess(msgspec.Struct):
    """One attempt of one network process; of use once both its sockets said hello."""

    netproc: int
    generation: int
    attempt: int
    identity: bytes | None = None
    channel: socket.socket | None = None
    held: AddressCounts = msgspec.field(default_factory=AddressCounts)

    @property
    def is_joined(self) -> bool:
        return self.identity is not None and self.channel is not None


class _Arrival(msgspec.Struct):
    """A connection that is accepted and not handed over yet."""

    sock: socket.socket
    slot: int
    host: str
    port: int
    listener: str


class Acceptor:
    """Accepts from `listeners` and fans out to the network processes that say hello.

    Registers its descriptors in `cycle`; the owner passes each ready one to `on_ready`.

    Args:
        listeners: name of a listener and slot → listening socket, non-blocking.
        book: which network process holds what.
        cycle: the process's duty cycle.
        context: the process's ZeroMQ context.
        zmq_address: where the ROUTER binds.
        channel_path: where the SEQPACKET listener binds; a leftover is removed.
        row: this process's row: `requests` counts accepted connections, `errors` the refused ones.
        clock: for log lines that a client can cause.
        expected: how many network processes there are when none is missing.
        lane_door: where clients ask for a lane; None where there are none.
    """

    def __init__(
        self,
        listeners: Mapping[tuple[str, int], socket.socket],
        book: ConnectionBook,
        *,
        cycle: DutyCycle,
        context: zmq.Context[zmq.Socket[bytes]],
        zmq_address: str,
        channel_path: str,
        row: ProcessRow,
        clock: Clock,
        expected: int,
        lane_door: LaneDoor | None = None,
    ) -> None:
        self._listeners = {sock.fileno(): (name, slot, sock) for (name, slot), sock in listeners.items()}
        self._lane_door = lane_door
        if lane_door is not None:
            self._listeners[lane_door.sock.fileno()] = (LANE, 0, lane_door.sock)
        self._book = book
        self._cycle = cycle
        self._cells = row.cells
        self._clock = clock
        self._expected = expected
        self._say_refused = journal.RateLimited(_logger.warning, clock)
        self._say_full = journal.RateLimited(_logger.error, clock)
        self._network_processes: dict[int, _NetworkProcess] = {}
        self._strangers: dict[int, socket.socket] = {}
        self._channels: dict[int, _NetworkProcess] = {}
        self._waiting: _Arrival | None = None
        self._ready_listeners: list[tuple[str, int, socket.socket]] = []
        self.rates = ConnectionRates()
        self._paused_until_ns: dict[int, int] = {}
        self._turned_away: dict[int, socket.socket] = {}
        self._listened: set[int] = set()  # descriptors in the epoll set
        self._is_listening = False
        self._rest_until_ns = 0
        self._grace_until_ns = 0
        self._joined = 0
        self._reserve = _open_reserve()

        self._router = context.socket(zmq.ROUTER)
        self._router.set(zmq.LINGER, 0)
        self._router.set(zmq.ROUTER_MANDATORY, 1)
        self._router.set(zmq.SNDHWM, 0)  # bounded by the descriptor channel, which goes first
        bind_router(self._router, zmq_address)
        self._router_descriptor = int(self._router.get(zmq.FD))
        self._hellos = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._hellos.setblocking(False)
        bind_socket(self._hellos, channel_path)
        self._hellos.listen(CHANNEL_BACKLOG)

        for descriptor in (self._router_descriptor, self._hellos.fileno()):
            cycle.epoll.register(descriptor, select.EPOLLIN)
        # ZeroMQ's descriptor tells of changes, not of states: look at the socket itself before every sleep.
        cycle.add_inbox(self)
        self._on_ready: dict[int, Callable[[], None]] = {
            self._router_descriptor: self._read_router,
            self._hellos.fileno(): self._accept_channels,
        }
        self._give_grace()

    @property
    def book(self) -> ConnectionBook:
        return self._book

    def is_empty(self) -> bool:
        """Inbox: whether the ROUTER has nothing to read."""
        return not int(self._router.get(zmq.EVENTS)) & zmq.POLLIN

    def on_ready(self, descriptor: int, events: int) -> None:
        """Act on a ready descriptor of the acceptor; ignore others."""
        if descriptor in self._listeners:
            self._ready_listeners.append(self._listeners[descriptor])
        elif (action := self._on_ready.get(descriptor)) is not None:
            action()
        elif (network_process := self._channels.get(descriptor)) is not None:
            self._on_channel(network_process, events)
        elif descriptor in self._strangers:
            self._hear_stranger(descriptor)

    def after_turn(self) -> None:
        """Read what network processes sent, then accept. Call it once a turn, after the ready descriptors."""
        if not self.is_empty():
            self._read_router()
        for name, slot, listener in self._ready_listeners:
            self._accept(name, slot, listener)
        self._ready_listeners.clear()

    def netproc_down(self, netproc: int, generation: int) -> None:
        """The supervisor says that this generation is dead."""
        known = self._network_processes.get(netproc)
        if known is not None and known.generation == generation:
            self._forget(known)

    def close(self) -> None:
        """Lets go of everything; what was handed over stays with its network process."""
        for descriptor in self._listened:
            self._cycle.epoll.unregister(descriptor)
        for _, _, sock in self._listeners.values():
            sock.close()
        self._listeners.clear()
        for sock in self._turned_away.values():
            sock.close()
        self._turned_away.clear()
        for network_process in self._network_processes.values():
            if network_process.channel is not None:
                network_process.channel.close()
        for stranger in self._strangers.values():
            stranger.close()
        if self._waiting is not None:
            self._waiting.sock.close()
        self._hellos.close()
        # Assignments whose descriptors are already there must still arrive.
        self._router.close(linger=500)
        if self._reserve >= 0:
            os.close(self._reserve)

    # Connections

    def _accept(self, name: str, slot: int, listener: socket.socket) -> None:
        for _ in range(ACCEPT_BURST):
            if self._book.least_loaded() is None or not self._is_listening:
                self._listen()
                return
            if listener.fileno() not in self._listened:
                return
            door = self._lane_door
            if door is not None and listener is door.sock and door.is_full:
                self._leave_door()
                return
            try:
                sock, address = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in _CONNECTION_SPOILT:
                    continue
                self._on_full(listener, error)
                return
            if door is not None and listener is door.sock:
                arrival = _Arrival(sock, slot, LANE, 0, LANE)
                why = door.refusal(sock, self._book.held_from(LANE))
            else:
                arrival, why = _Arrival(sock, slot, address[0], address[1], name), None
            self._cells[REQUESTS] += 1
            why = why or self._book.refusal(arrival.host)
            if why is not None:
                self._close(arrival)
                self._cells[ERRORS] += 1
                self._say_refused(f"connection from {arrival.host} closed: {why}")
                continue
            if self.rates.are_bounded and name != LANE and self._is_turned_away(arrival, listener):
                continue
            if not self._hand_over(arrival):
                self._waiting = arrival
                self._listen()
                return

    def _hand_over(self, arrival: _Arrival) -> bool:
        """Gives the connection to the least loaded network process. False when none has room: keep it."""
        while (netproc := self._book.least_loaded()) is not None:
            network_process = self._network_processes[netproc]
            identity, channel = network_process.identity, network_process.channel
            assert identity is not None
            assert channel is not None
            connection_id = self._book.assign(netproc, arrival.host)
            taken_back = {arrival.host: 1}
            try:
                taken = send_descriptor(channel, arrival.sock.fileno(), DESCRIPTOR.pack(connection_id))
            except PeerGone:
                self._forget(network_process)
                continue
            except OSError as error:
                # ETOOMANYREFS: more descriptors are under way than this user may have open (unix(7)).
                self._book.closed(netproc, taken_back)
                if arrival.listener == LANE:
                    # Before Linux 6.10 also: a client's messages carry sockets, in which messages carry sockets, and
                    # so on. Such a socket can never be handed over, and must not hold up the others.
                    self._say_refused(f"cannot hand over a client of a lane: {error.strerror}")
                    self._cells[ERRORS] += 1
                    self._close(arrival)
                    return True
                self._book.set_room(netproc, False)
                self._say_full(f"cannot hand a connection to netproc {netproc}: {error.strerror}")
                self._rest()
                continue
            if not taken:
                self._book.closed(netproc, taken_back)
                self._book.set_room(netproc, False)
                self._cycle.epoll.modify(channel.fileno(), select.EPOLLIN | select.EPOLLOUT)
                continue
            # Before the network process can close its copy: a client of a lane can make the last close wait.
            arrival.sock.close()
            assignment = Assignment(connection_id, arrival.slot, arrival.listener, arrival.host, arrival.port)
            try:
                self._router.send_multipart((identity, encode(assignment)), zmq.NOBLOCK)
            except zmq.ZMQError:
                # It died in between; the descriptor died with it.
                self._book.closed(netproc, taken_back)
            self._cells[CONNECTIONS] = self._book.connections
            return True
        return False

    def _close(self, arrival: _Arrival) -> None:
        """End a connection that is not handed over, without waiting."""
        if arrival.listener == LANE and self._lane_door is not None:
            self._lane_door.close(arrival.sock)
        else:
            arrival.sock.close()

    def _is_turned_away(self, arrival: _Arrival, listener: socket.socket) -> bool:
        """Count a connection. Whether its address opens too many, and it is closed; accepting may pause, too."""
        now_ns = self._clock.monotonic_ns()
        opening = self.rates.opened(arrival.listener, arrival.host, now_ns)
        if opening.pause_ms:
            until_ns = now_ns + opening.pause_ms * 1_000_000
            lane = -1 if self._lane_door is None else self._lane_door.sock.fileno()
            for descriptor, (name, _, sock) in self._listeners.items():
                if descriptor != lane and (opening.of_all or name == arrival.listener or sock is listener):
                    self._paused_until_ns[descriptor] = until_ns
            self._cycle.timers.add(until_ns, self._listen)
            self._listen()
        if not opening.closed_after_ms:
            return False
        self._cells[ERRORS] += 1
        self._say_refused(
            f"connection from {arrival.host} closed: this address opens more than its connection_creation_rate"
        )
        if len(self._turned_away) >= TURNED_AWAY_MAX:
            arrival.sock.close()
            return True
        descriptor = arrival.sock.fileno()
        self._turned_away[descriptor] = arrival.sock
        due_ns = now_ns + opening.closed_after_ms * 1_000_000
        self._cycle.timers.add(due_ns, lambda: self._close_turned_away(descriptor))
        return True

    def _close_turned_away(self, descriptor: int) -> None:
        if (sock := self._turned_away.pop(descriptor, None)) is not None:
            sock.close()

    def _on_full(self, listener: socket.socket, error: OSError) -> None:
        """No descriptor for the next connection. It would stay at the head of the backlog and wake us for
        ever, so where the limit is our own, the reserve descriptor is spent on accepting and closing it.
        """
        self._say_full(f"cannot accept a connection: {error.strerror}")
        self._cells[ERRORS] += 1
        if error.errno == errno.EMFILE and self._reserve >= 0:
            os.close(self._reserve)
            with suppress(OSError):
                door, sock = self._lane_door, listener.accept()[0]
                if door is not None and listener is door.sock:
                    door.close(sock)
                else:
                    sock.close()
            self._reserve = _open_reserve()
        else:
            self._rest()

    def _leave_door(self) -> None:
        """The lane door has too many sockets to close: leave it alone for a moment."""
        assert self._lane_door is not None
        until_ns = self._clock.monotonic_ns() + DOOR_PAUSE_MS * 1_000_000
        self._paused_until_ns[self._lane_door.sock.fileno()] = until_ns
        self._cycle.timers.add(until_ns, self._listen)
        self._listen()

    def _give_grace(self) -> None:
        """A network process is missing: connections wait for it, but not long."""
        self._grace_until_ns = self._clock.monotonic_ns() + MISSING_GRACE_MS * 1_000_000
        self._cycle.timers.add(self._grace_until_ns, self._listen)
        self._listen()

    def _rest(self) -> None:
        """Leaves the listening sockets alone for a moment: the system is full, and only time helps."""
        self._rest_until_ns = self._clock.monotonic_ns() + SYSTEM_FULL_PAUSE_MS * 1_000_000
        self._cycle.timers.add(self._rest_until_ns, self._rested)
        self._listen()

    def _rested(self) -> None:
        for network_process in self._channels.values():
            self._book.set_room(network_process.netproc, True)
        self._place_waiting()

    def _place_waiting(self) -> None:
        """Hand over the connection that waits, because there is room again, then accept others."""
        waiting = self._waiting
        if waiting is not None:
            self._waiting = None
            if not self._hand_over(waiting):
                self._waiting = waiting
        self._listen()

    def _listen(self) -> None:
        """Takes the listening sockets into the epoll set, or out, as rule 1 says."""
        now_ns = self._clock.monotonic_ns()
        wanted = (
            self._waiting is None
            and self._book.least_loaded() is not None
            and now_ns >= self._rest_until_ns
            and (self._joined >= self._expected or now_ns >= self._grace_until_ns)
        )
        self._is_listening = wanted
        if self._paused_until_ns:
            paused = self._paused_until_ns.items()
            self._paused_until_ns = {each: until_ns for each, until_ns in paused if until_ns > now_ns}
        for descriptor in self._listeners:
            is_wanted = wanted and descriptor not in self._paused_until_ns
            if is_wanted == (descriptor in self._listened):
                continue
            if is_wanted:
                self._listened.add(descriptor)
                self._cycle.epoll.register(descriptor, select.EPOLLIN)
            else:
                self._listened.discard(descriptor)
                self._cycle.epoll.unregister(descriptor)

    # Network processes

    def _read_router(self) -> None:
        for _ in range(MESSAGE_BURST):
            try:
                identity, body = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            except ValueError:
                _logger.error("invalid message on acceptor.zmq: it does not have two frames")
                continue
            try:
                message = decode(body)
            except msgspec.MsgspecError as error:
                _logger.error("invalid message on acceptor.zmq: %s", error)
                continue
            match message:
                case Hello():
                    self._on_hello(message, identity=identity)
                case Load():
                    self._on_load(message, identity)
                case _:
                    _logger.error("unexpected message from a network process: %r", message)

    def _accept_channels(self) -> None:
        for _ in range(CHANNEL_BACKLOG):
            try:
                stranger, _ = self._hellos.accept()
            except OSError as error:
                if not isinstance(error, BlockingIOError):
                    self._say_full(f"cannot accept a network process: {error.strerror}")
                return
            pid, uid = peer_of(stranger)
            if uid != os.geteuid():
                stranger.close()
                self._say_refused(f"process {pid} of user {uid} is no network process: connection closed")
                continue
            stranger.setblocking(False)
            self._strangers[stranger.fileno()] = stranger
            self._cycle.epoll.register(stranger.fileno(), select.EPOLLIN)

    def _hear_stranger(self, descriptor: int) -> None:
        """The first packet of a descriptor channel says whose it is."""
        stranger = self._strangers[descriptor]
        try:
            message = decode(stranger.recv(HELLO_BYTES_MAX))
        except BlockingIOError:
            return
        except (OSError, msgspec.MsgspecError):
            message = None
        del self._strangers[descriptor]
        if isinstance(message, Hello):
            self._on_hello(message, channel=stranger)
        else:
            self._cycle.epoll.unregister(descriptor)
            stranger.close()

    def _on_channel(self, network_process: _NetworkProcess, events: int) -> None:
        if events & (select.EPOLLHUP | select.EPOLLERR | select.EPOLLIN):
            # After its hello a network process says nothing here; this is its end.
            self._forget(network_process)
        elif events & select.EPOLLOUT and network_process.channel is not None:
            self._cycle.epoll.modify(network_process.channel.fileno(), select.EPOLLIN)
            self._book.set_room(network_process.netproc, True)
            self._place_waiting()

    def _on_hello(
        self, hello: Hello, *, identity: bytes | None = None, channel: socket.socket | None = None
    ) -> None:
        """One half of a network process is there; with both it joins."""
        known = self._network_processes.get(hello.netproc)
        age = (hello.generation, hello.attempt)
        if known is not None and (known.generation, known.attempt) > age:
            if channel is not None:
                self._cycle.epoll.unregister(channel.fileno())
                channel.close()
            return
        if known is None or (known.generation, known.attempt) < age:
            if known is not None:
                self._forget(known)
            known = _NetworkProcess(hello.netproc, hello.generation, hello.attempt)
            self._network_processes[hello.netproc] = known
        if identity is not None:
            known.identity = identity
            known.held = AddressCounts(hello.held)
        if channel is not None:
            known.channel = channel
            self._channels[channel.fileno()] = known
        if known.is_joined:
            self._joined += 1
            self._book.netproc_up(known.netproc, known.generation, held=known.held.by_host)
            self._cells[CONNECTIONS] = self._book.connections
            self._place_waiting()

    def _on_load(self, load: Load, identity: bytes) -> None:
        for network_process in self._network_processes.values():
            if network_process.identity == identity:
                if network_process.is_joined:
                    self._book.closed(network_process.netproc, load.closed)
                    self._book.set_paused(network_process.netproc, load.paused)
                    self._book.set_sessions(network_process.netproc, load.sessions)
                    self._cells[CONNECTIONS] = self._book.connections
                else:
                    for host, count in load.closed.items():
                        network_process.held.remove(host, count)
                return

    def _forget(self, network_process: _NetworkProcess) -> None:
        """A network process is gone, and what it held with it."""
        channel = network_process.channel
        if channel is not None:
            self._channels.pop(channel.fileno(), None)
            self._cycle.epoll.unregister(channel.fileno())
            channel.close()
        if self._network_processes.get(network_process.netproc) is network_process:
            del self._network_processes[network_process.netproc]
        self._book.netproc_down(network_process.netproc, network_process.generation)
        self._cells[CONNECTIONS] = self._book.connections
        if network_process.is_joined:
            network_process.channel = None
            self._joined -= 1
            self._give_grace()


def _open_reserve() -> int:
    """A descriptor to give up when no other is left; -1 when none could be had."""
    try:
        return os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
