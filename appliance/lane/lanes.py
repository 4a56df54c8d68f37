"""The network process's end of the lanes: requests out of memory, answers into it (docs/shared-memory.md).

    bell ─→ request ring ─→ may it begin?  no: stays in the client's memory
                                           yes: copied into the pool, then checked ─→ Apis.serve
    ring ←─ area of answers ←─ room? ←─ out ←─ queue ←─ answer

Nothing in a lane is trusted: each word is read once, compared with what this process knows itself, and no loop is
longer than a ring. Nothing blocks, either: the bell is never read, because its reader could be made to wait, and the
client is woken over the socket, because whoever holds an eventfd can make the next write to it wait. Descriptors that a
client sends over the socket are neither taken nor closed in this thread (`closing`). What one client can make this
process hold:

| what | bound | then |
|---|---|---|
| the memory of the lane | `shared.memory.pool.bytes` | it has its size for good |
| memories of lanes that have ended | `shared.memory.lanes.max`, until their pages are free | no other lane |
| requests unanswered | `network.requests.in.flight.per.connection` | no other is taken |
| answers that it does not take | its part of the memory, and those that were asked for | no request is taken |
| such answers, all lanes | a quarter of the pool's size | the lane that is owed most ends |
| rings of the bell without a request | `EMPTY_RINGS_MAX` | its bell is not heard for `DEAF_MS` |
| lanes without a hello | `HELLO_MS` | they end |
| sockets with descriptors in them | `shared.memory.lanes.max`, as lanes, until they are closed | no other lane |
"""

from __future__ import annotations

import array
import fcntl
import logging
import mmap
import os
import pwd
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from appliance.channels.connection_channel import LANE, Assignment
from appliance.channels.own_user import peer_of
from appliance.clock import NS_PER_MS
from appliance.errors import ClientFault, StorageFault
from appliance.ipc.fence import full_fence
from appliance.ipc.process_table import BYTES_IN, BYTES_OUT, ERRORS, REQUESTS
from appliance.lane import layout as lay
from appliance.lane.closing import ClosingSockets, peek
from appliance.lane.ended_memories import EndedMemories
from appliance.lane.layout import SLOT, Layout
from appliance.lane.session import NUMBERS_FROM, Guest, LaneSession, Sent
from appliance.requests.answer import FilePiece
from appliance.requests.session import Session
from appliance.requests.transport import TransportHost

_log: Final = logging.getLogger(__name__)

TURN_REQUESTS: Final = 16
TURN_BYTES: Final = 2 << 20
OWED_BYTES_MAX: Final = 16 * 1024
BOUND_PART: Final = 4
EMPTY_RINGS_MAX: Final = 64
DEAF_MS: Final = 10
HELLO_MS: Final = 5_000
SWEEP_MS: Final = 5_000
TIDY_NS: Final = 20_000 * NS_PER_MS
AGAIN_MS: Final = 5
COLLECT_MS: Final = 500
_HOST: Final = "127.0.0.1"
_MECHANISM: Final = "uid"
"""As the audit journal names it: the kernel says who the client is."""
_LISTENER: Final = "PLAINTEXT"
_GONE: Final = select.EPOLLHUP | select.EPOLLERR | select.EPOLLRDHUP
_SOCKET_EVENTS: Final = select.EPOLLIN | select.EPOLLRDHUP
_BELL_EVENTS: Final = select.EPOLLIN | select.EPOLLET
_WAKE: Final = b"!"
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class Lanes:
    """The lanes of one network process, a transport beside TCP.

    Args:
        gone: called with the address that a lane was counted under, when it is held no more.
    """

    def __init__(self, host: TransportHost, gone: Callable[[str], None]) -> None:
        process = host.process
        settings = process.settings
        self._host = host
        self._gone = gone
        self._pool = host.pool
        self._apis = host.apis
        self._clock = process.clock
        self._cells = process.attachment.row.cells
        self._epoll = host.cycle.epoll
        self._slots = settings.slots
        self._layout = Layout(settings.shared_memory.pool_bytes)
        self._area_bytes = self._layout.area_bytes
        self._requests_at = self._layout.requests
        self._answer_ring = self._layout.answer_ring
        self._request_bytes_max = min(
            settings.network.request_max_bytes, self._area_bytes, host.pool.largest_bytes
        )
        self._in_flight_max = settings.network.requests_in_flight_per_connection
        self._idle_ns = settings.network.connections_max_idle_ms * NS_PER_MS
        self._bound_bytes = host.pool.size_bytes // BOUND_PART
        self._own_uid = os.geteuid()
        self._own_name = _name_of(self._own_uid)
        self._closing = ClosingSockets()
        self._ended = EndedMemories(
            host.cycle.timers, start=self._layout.requests, most=settings.shared_memory.lanes_max
        )
        self._guests: dict[int, Guest] = {}
        self._by_bell: dict[int, LaneSession] = {}
        self._by_socket: dict[int, LaneSession] = {}
        self._numbers = NUMBERS_FROM
        self._free_numbers: list[int] = []
        self._ready: set[LaneSession] = set()
        self._starved: set[LaneSession] = set()
        self._touched: set[int] = set()  # sockets with something to read, or without a client
        self._owed_bytes = 0
        self._may_read = True
        self._is_draining = False
        self._is_sweeping = False
        self._is_collecting = False
        self._tidied_ns = 0
        host.cycle.add_inbox(self)

    @property
    def sessions(self) -> int:
        """How many lanes there are."""
        return len(self._by_bell)

    def add(self, assignment: Assignment, sock: socket.SocketType) -> None:
        """Take a client that the acceptor has handed over."""
        descriptor = sock.fileno()
        deadline_ns = self._clock.monotonic_ns() + HELLO_MS * NS_PER_MS
        self._guests[descriptor] = Guest(assignment, sock, deadline_ns)
        self._epoll.register(descriptor, _SOCKET_EVENTS)
        self._sweep_later()

    # The cycle

    def is_empty(self) -> bool:
        """Inbox: whether the process may sleep."""
        return not (self._ready or self._touched) or not self._may_read

    def owns(self, descriptor: int) -> bool:
        """Return whether a descriptor is one of ours."""
        return descriptor in self._by_bell or descriptor in self._by_socket or descriptor in self._guests

    def on_ready(self, descriptor: int) -> None:
        """One of our descriptors is ready."""
        lane = self._by_bell.get(descriptor)
        if lane is None:
            self._touched.add(descriptor)
            return
        self._ready.add(lane)
        lane.empty_rings += 1
        if lane.empty_rings > EMPTY_RINGS_MAX and not lane.is_deaf:
            lane.is_deaf = True
            self._epoll.modify(lane.bell, 0)
            self._host.cycle.timers.after_ms(DEAF_MS, lambda: self._hear_again(lane))

    def turn(self, *, may_read: bool) -> None:
        """Look at the lanes whose bells rang, and at the clients that came or went."""
        self._may_read = may_read
        touched, self._touched = self._touched, set()
        for descriptor in touched:
            guest = self._guests.get(descriptor)
            if guest is not None:
                self._greet(guest)
            elif (lane := self._by_socket.get(descriptor)) is not None:
                self._look_at_socket(lane)
        if not may_read or not self._ready:
            return
        ready, self._ready = self._ready, set()
        for lane in ready:
            try:
                if lane.out or lane.queue:
                    self._send_what_fits(lane)
                self._take(lane)
            except Exception as error:
                self.contain(lane, error)

    def _hear_again(self, lane: LaneSession) -> None:
        if not lane.closed:
            lane.is_deaf = False
            lane.empty_rings = 0
            self._epoll.modify(lane.bell, _BELL_EVENTS)
            self._ready.add(lane)

    # Coming and going

    def _greet(self, guest: Guest) -> None:
        """Read the hello, and give the client its memory."""
        sock = guest.sock
        has_descriptors = False
        try:
            message, has_descriptors = peek(sock, lay.HELLO.size + 1)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message and not has_descriptors:
            self._dismiss(guest)
        elif has_descriptors or len(message) != lay.HELLO.size:
            self._turn_away(guest, lay.MALFORMED)
        else:
            sock.recv(lay.HELLO.size)
            magic, version, _, broker_id = lay.HELLO.unpack(message)
            if magic != lay.MAGIC or version < lay.VERSION:
                self._turn_away(guest, lay.MALFORMED)
            elif not -1 <= broker_id < self._slots:
                self._turn_away(guest, lay.UNKNOWN_BROKER)
            elif self._is_draining:
                self._turn_away(guest, lay.STOPPING)
            elif self._ended.is_full:
                self._turn_away(guest, lay.REFUSED)
            else:
                self._hand_out(guest, max(broker_id, 0))

    def _hand_out(self, guest: Guest, slot: int) -> None:
        memory = bell = -1
        mapped: mmap.mmap | None = None
        try:
            memory = os.memfd_create("appliance-lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            os.ftruncate(memory, self._layout.size_bytes)
            fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
            mapped = mmap.mmap(memory, self._layout.size_bytes)
            bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            welcome = self._layout.welcome(self._request_bytes_max)
            mapped[: len(welcome)] = welcome
            rights = array.array("i", [memory, bell])
            guest.sock.sendmsg([welcome], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
            pid, uid = peer_of(guest.sock)
            self._epoll.register(bell, _BELL_EVENTS)
        except OSError as error:
            self._host.say_closed(f"a client of this host got no lane: {error.strerror}")
            if mapped is not None:
                mapped.close()
            if bell >= 0:
                os.close(bell)
            self._turn_away(guest, lay.REFUSED)
            return
        finally:
            if memory >= 0:
                os.close(memory)
        sock = guest.sock
        del self._guests[sock.fileno()]
        if not self._free_numbers:
            self._numbers += 1
        lane = LaneSession(
            sock,
            bell,
            mapped,
            self._layout,
            principal=self._own_name if uid == self._own_uid else f"User:{uid}",
            connection_id=guest.assignment.connection_id,
            number=self._free_numbers.pop() if self._free_numbers else self._numbers,
            slot=slot,
            listener=_LISTENER,
            host=_HOST,
            pid=pid,
            uid=uid,
            now_ns=self._clock.monotonic_ns(),
        )
        if self._host.auditing is not None:
            self._host.auditing.authenticated(lane, mechanism=_MECHANISM)
        self._by_bell[bell] = lane
        self._by_socket[sock.fileno()] = lane
        self._ready.add(lane)

    def _turn_away(self, guest: Guest, code: int) -> None:
        with suppress(OSError):
            guest.sock.send(lay.refusal(code), socket.MSG_DONTWAIT)
        self._cells[ERRORS] += 1
        self._dismiss(guest)

    def _dismiss(self, guest: Guest) -> None:
        del self._guests[guest.sock.fileno()]
        self._epoll.unregister(guest.sock.fileno())
        self._close(guest.sock)

    def _look_at_socket(self, lane: LaneSession) -> None:
        """The client is gone, or says something, which it must not."""
        has_descriptors = False
        try:
            said, has_descriptors = peek(lane.sock, 1)
        except BlockingIOError:
            return
        except OSError:
            said = b""
        if said or has_descriptors:
            self.fault(lane, "its client wrote to the socket")
            return
        lane.hung_up = True
        # What it has put into the ring before is wholly in or not at all: a whole request that was published is taken.
        try:
            self._take(lane)
        except Exception as error:
            self.contain(lane, error)
        self.end(lane)

    def end(self, session: Session) -> None:
        """End a lane without a line."""
        assert isinstance(session, LaneSession)
        if session.closed:
            return
        session.closed = True
        del self._by_bell[session.bell]
        del self._by_socket[session.sock.fileno()]
        for descriptor in (session.bell, session.sock.fileno()):
            self._epoll.unregister(descriptor)
        os.close(session.bell)
        self._ready.discard(session)
        self._starved.discard(session)
        self._free_numbers.append(session.number)
        self._owed_bytes -= session.owed_bytes
        session.abandon()
        self._host.end_requests(session)
        has_read_all = session.words[lay.ANSWER_HEAD] == session.answer_tail
        session.let_go()
        self._ended.add(session.memory, at_once=session.hung_up or has_read_all)
        self._close(session.sock)

    def _close(self, sock: socket.SocketType) -> None:
        """Close a client's socket. Its lane counts until that is done, which bounds how many are not."""
        if self._closing.close(sock):
            self._gone(LANE)
        elif not self._is_collecting:
            self._is_collecting = True
            self._host.cycle.timers.after_ms(COLLECT_MS, self._collect)

    def _collect(self) -> None:
        """Count no longer what the thread has closed."""
        for _ in range(self._closing.take_closed()):
            self._gone(LANE)
        self._is_collecting = self._closing.waiting > 0
        if self._is_collecting:
            self._host.cycle.timers.after_ms(COLLECT_MS, self._collect)

    def fault(self, session: Session, why: str) -> None:
        """End a lane with one log line, because of what its client did."""
        if not session.closed:
            self._cells[ERRORS] += 1
            self._host.say_closed(f"{session} ended: {why}")
            self.end(session)

    def contain(self, session: Session, error: Exception) -> None:
        """End a lane, a request of which could not be served, by its client's fault or by an internal error."""
        if not isinstance(error, ClientFault):
            _log.error("internal error in a request of %s (traceback follows)", session, exc_info=error)
        self.fault(
            session,
            str(error) if isinstance(error, ClientFault) else "internal error, see the traceback above",
        )

    # Requests

    def _take(self, lane: LaneSession) -> None:
        """Begin the requests that may begin."""
        if lane.closed or self._is_draining:
            return
        waiting = lane.words[lay.REQUEST_TAIL] - lane.request_head
        if not 0 <= waiting <= lay.REQUEST_SLOTS:
            self.fault(lane, f"its request ring of {lay.REQUEST_SLOTS} has {waiting} requests")
            return
        if waiting:
            lane.empty_rings = 0
        left = min(waiting, TURN_REQUESTS)
        while left and self._take_one(lane):
            left -= 1
        if waiting > TURN_REQUESTS and not left:
            self._ready.add(lane)

    def _take_one(self, lane: LaneSession) -> bool:
        """Begin the next request; return whether the one behind it may be looked at."""
        if (
            lane.closed
            or lane.throttled_until_ns
            or lane.out
            or lane.owed_bytes > OWED_BYTES_MAX
            or lane.in_flight >= self._in_flight_max
        ):
            return False
        view = lane.view
        place = lay.RINGS_OFFSET + lane.request_head % lay.REQUEST_SLOTS * SLOT.size
        offset, length, flags = SLOT.unpack_from(view, place)
        if flags or not 2 <= length <= self._request_bytes_max or offset > self._area_bytes - length:
            self.fault(lane, f"a request of {length} bytes at {offset} with flags {flags}")
            return False
        start = self._requests_at + offset
        is_produce = not (view[start] or view[start + 1])
        if lane.must_wait(is_produce):
            return False
        block = self._pool.take(length)
        if block is None:
            self._starve(lane)
            return False
        block.view[:length] = view[start : start + length]
        lane.request_head += 1
        lane.words[lay.REQUEST_HEAD] = lane.request_head
        if is_produce == bool(block.view[0] or block.view[1]):
            self._pool.give(block)
            self.fault(lane, "its client changed a request while it was read")
            return False
        self._cells[REQUESTS] += 1
        self._cells[BYTES_IN] += length
        lane.last_active_ns = self._clock.monotonic_ns()
        self._apis.serve(lane, block, 0, length)
        return True

    def _starve(self, lane: LaneSession) -> None:
        """The pool is full: look again soon."""
        if not self._starved:
            self._host.cycle.timers.after_ms(AGAIN_MS, self._feed)
        self._starved.add(lane)

    def _feed(self) -> None:
        self._ready |= self._starved
        self._starved.clear()

    # Answers

    def send(self, session: Session) -> None:
        """Put what is answered into the ring, and look at what waited for it."""
        assert isinstance(session, LaneSession)
        if session.closed:
            return
        self._send_what_fits(session)
        if not session.closed and not session.out and session.words[lay.REQUEST_TAIL] != session.request_head:
            self._ready.add(session)

    def resume(self, session: Session) -> None:
        """Take the requests that waited until now."""
        assert isinstance(session, LaneSession)
        self._ready.add(session)

    def _send_what_fits(self, lane: LaneSession) -> None:
        """Write answers while there is room. End the lane if records cannot be read."""
        try:
            self._send_out(lane)
        except (StorageFault, OSError) as fault:
            self.fault(lane, str(fault))

    def _send_out(self, lane: LaneSession) -> None:
        """Write answers in order while there is room.

        Raises:
            StorageFault, OSError: records cannot be read.
        """
        if not self._free(lane):
            return
        first, left = lane.answer_tail, TURN_BYTES
        while lane.out or lane.collect():
            if not lane.out:
                continue  # acks=0: nothing to send
            if left <= 0:
                self._ready.add(lane)
                break
            size = self._put_part(lane)
            left -= size
            if not size:
                lane.words[lay.WANTS_ROOM] = 1
                full_fence()
                begin = lane.answer_head
                if not self._free(lane):
                    return
                if lane.answer_head == begin:
                    break
                lane.words[lay.WANTS_ROOM] = 0
        else:
            lane.words[lay.WANTS_ROOM] = 0
            if lane.owed_bytes and not lane.queue:
                self._owed_bytes -= lane.owed_bytes
                lane.owed_bytes = 0
        if lane.answer_tail != first:
            lane.empty_rings = 0
            lane.words[lay.ANSWER_TAIL] = lane.answer_tail
            full_fence()
            if lane.words[lay.CLIENT_SLEEPS]:
                with suppress(OSError):
                    lane.sock.send(_WAKE, socket.MSG_DONTWAIT)

    def _put_part(self, lane: LaneSession) -> int:
        """Write as much of the next answer as fits in one stretch; return its size, 0 where there is no room."""
        area_bytes = self._area_bytes
        begin = lane.answers_end % area_bytes
        room = min(area_bytes - begin, area_bytes - (lane.answers_end - lane.answers_begin))
        if len(lane.parts) == lay.ANSWER_SLOTS or not room:
            return 0
        size = 0
        while lane.out and size < room:
            size += self._write(lane.out, lane.area[begin + size : begin + room])
        place = self._answer_ring + lane.answer_tail % lay.ANSWER_SLOTS * SLOT.size
        SLOT.pack_into(lane.view, place, begin, size, lay.MORE if lane.out else 0)
        lane.answer_tail += 1
        lane.answers_end += size
        lane.parts.append(size)
        self._cells[BYTES_OUT] += size
        return size

    def _write(self, out: list[Sent], room: memoryview) -> int:
        """Write as much of the next piece as fits; return its size."""
        piece = out[-1]
        if isinstance(piece, FilePiece):
            wanted = min(piece.remaining, len(room))
            got = os.preadv(piece.file.fd, [room[:wanted]], piece.position) if wanted else 0
            if got < wanted:
                raise StorageFault(f"a segment ended {piece.remaining - got} bytes before its promised end")
            piece.position += got
            piece.remaining -= got
            if not piece.remaining:
                piece.file.release()
                out.pop()
            return got
        count = min(len(piece), len(room))
        room[:count] = piece[:count]
        if count == len(piece):
            out.pop()
        else:
            out[-1] = memoryview(piece)[count:]
        return count

    def _free(self, lane: LaneSession) -> bool:
        """Take back the room of what the client has read; False where it says what cannot be, and the lane ended."""
        head = lane.words[lay.ANSWER_HEAD]
        count = head - lane.answer_head
        if not 0 <= count <= len(lane.parts):
            self.fault(lane, f"it says that it has read {count} answers of {len(lane.parts)}")
            return False
        for _ in range(count):
            lane.answers_begin += lane.parts.popleft()
        lane.answer_head = head
        return True

    def owe(self, session: Session, owed_bytes: int) -> None:
        """An answer was given that may be large where its request was small."""
        assert isinstance(session, LaneSession)
        session.owed_bytes += owed_bytes
        self._owed_bytes += owed_bytes
        if self._owed_bytes > self._bound_bytes:
            self._host.cycle.timers.after_ms(AGAIN_MS, self._relieve)

    def _relieve(self) -> None:
        for lane in sorted(self._by_bell.values(), key=lambda each: -each.owed_bytes):
            if self._owed_bytes <= self._bound_bytes:
                return
            if lane.out:
                self.fault(lane, "it does not take its answers, and there are too many of them")

    # Time and the end

    def _sweep_later(self) -> None:
        if not self._is_sweeping:
            self._is_sweeping = True
            self._host.cycle.timers.after_ms(SWEEP_MS, self._sweep)

    def _sweep(self) -> None:
        """End who says no hello, and who has been idle for as long as a TCP connection may be."""
        self._is_sweeping = False
        now_ns = self._clock.monotonic_ns()
        for guest in list(self._guests.values()):
            if guest.deadline_ns <= now_ns:
                self._dismiss(guest)
        for lane in list(self._by_bell.values()):
            if now_ns - lane.last_active_ns > self._idle_ns and (lane.out or not lane.queue):
                self.end(lane)
        if now_ns - self._tidied_ns > TIDY_NS:
            self._tidied_ns = now_ns
            self._host.tidy()
        if self._guests or self._by_bell:
            self._sweep_later()

    def drain(self, *, late: bool) -> bool:
        """Take nothing more; return whether everything is answered. `late`: end what is not."""
        self._is_draining = True
        for guest in list(self._guests.values()):
            self._turn_away(guest, lay.STOPPING)
        for lane in list(self._by_bell.values()):
            if late or not (lane.queue or lane.out):
                self.end(lane)
        return not self._by_bell

    def close(self) -> None:
        """Let go of everything."""
        self.drain(late=True)


def _name_of(uid: int) -> str:
    try:
        return f"User:{pwd.getpwuid(uid).pw_name}"
    except KeyError:
        return f"User:{uid}"
