"""Receiving: sockets straight into the shared pool, frames cut where they lie, nothing copied that is whole.

A connection holds a block only while bytes of it are unread or in flight:

    readable ─→ take a block ─→ recv_into ─→ cut whole frames ─→ rest?  none: give the block back
                                                                 small: keep it as bytes, give the block back
                                                                 fits the block: keep receiving into it
                                                                 does not fit: move it to a larger block

Each frame that is under way holds a reference on its block; the last answer gives it back.

When the pool has no block, the socket is not read (the kernel's window closes and the client waits); it is read
again in turn as blocks come back. A half-received frame may not take the pool's reserve, so whole requests always
pass; and while others wait for space, connections that held some for longer than the grace are closed, the slowest
first, as many as the others need. Each that waited gets a grace of its own, so a large request behind n slow ones
waits for about n × its size ÷ pool graces: a slow client holds back itself only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from appliance.errors import MalformedFrame
from appliance.ipc.buffer_pool import Block, BufferPool
from appliance.netproc.connection import LANDING_BYTES, Connection
from appliance.protocol.framing import SIZE_BYTES, frame_size

STASH_BYTES: Final = 2048
API_KEY_BYTES: Final = 2
WANTED_BYTES_MAX: Final = 1 << 20
# A frame at most this large gets its whole block at once; larger ones grow with what has really arrived.
TRUSTED_BYTES: Final = 4 << 20

CLOSED: Final = -1
STARVED: Final = -2
NOTHING: Final = 0


class Intake:
    """Reads connections into `pool`.

    Args:
        pool: this process's payload pool.
        frame_bytes_max: `socket.request.max.bytes`.
        grace_ns: how long a half-received frame may hold space that others wait for.
    """

    __slots__ = ("_pool", "frame_bytes_max", "grace_ns", "starved")

    def __init__(self, pool: BufferPool, *, frame_bytes_max: int, grace_ns: int) -> None:
        self._pool = pool
        self.frame_bytes_max = frame_bytes_max
        self.grace_ns = grace_ns
        self.starved: deque[Connection] = deque()

    def receive(self, connection: Connection) -> int:
        """Reads once: bytes read, NOTHING, CLOSED (also on a socket error) or STARVED."""
        block = connection.block
        if block is None:
            block = self._land(connection)
            if block is None:
                return self._starve(connection)
        elif connection.end == block.size_bytes:
            moved = self._move(connection, block)
            if moved is None:
                return self._starve(connection)
            block = moved
        try:
            count = connection.sock.recv_into(block.view[connection.end :])
        except BlockingIOError:
            count = NOTHING
        except OSError:
            return CLOSED
        else:
            if not count:
                return CLOSED
        connection.end += count
        return count

    def frames(self, connection: Connection) -> Iterator[tuple[Block, int, int]]:
        """Whole frames as (block, first byte after the size, end), oldest first; stops when the caller mutes.

        A frame that must wait for the answers before it stays where it is, and the connection is held: muted until
        those answers have left. Its API key is enough to know, so a large frame is not received before its turn.

        Raises:
            MalformedFrame: a size prefix that cannot be; the connection must be closed.
        """
        while not connection.muted and not connection.closed:
            block = connection.block
            if block is None:
                return
            start, end = connection.start, connection.end
            if end - start < SIZE_BYTES:
                return
            first = start + SIZE_BYTES
            view = block.view
            stop = first + frame_size(view, start, size_max=self.frame_bytes_max)
            if (
                connection.queue is not None
                and end - first >= API_KEY_BYTES
                and connection.must_wait(not view[first] and not view[first + 1])
            ):
                connection.held = connection.muted = True
                return
            if stop > end:
                return
            connection.start = stop
            block.references += 1
            yield block, first, stop
            if connection.receiving_since_ns:
                connection.receiving_since_ns = 0

    def settle(self, connection: Connection, now_ns: int) -> None:
        """After the frames are cut: gives back, keeps or moves what is left of the block."""
        block = connection.block
        if block is None:
            return
        start, end = connection.start, connection.end
        left = end - start
        if not left:
            connection.block = None
            self._pool.give(block)
            return
        if connection.muted:
            # A long poll may last for minutes, and so may a throttled client be: a small request holds no block.
            if (connection.held or connection.throttled_until_ns) and left <= STASH_BYTES:
                connection.stash = bytes(block.view[start:end])
                connection.block = None
                self._pool.give(block)
            return
        if start:
            connection.frame_began_ns = now_ns
        if not connection.receiving_since_ns:
            connection.receiving_since_ns = now_ns
        if left <= STASH_BYTES:
            connection.stash = bytes(block.view[start:end])
            connection.block = None
            self._pool.give(block)
            if left >= SIZE_BYTES:
                self._expect(
                    connection, frame_size(connection_view(connection), 0, size_max=self.frame_bytes_max)
                )
            return
        size = frame_size(block.view, start, size_max=self.frame_bytes_max)
        self._expect(connection, size)
        if start and start + SIZE_BYTES + size > block.size_bytes:
            self._move(connection, block)

    def unstash(self, connection: Connection) -> bool:
        """Lands what was kept of a held connection again; False when the pool has no block: it is starved then."""
        if connection.block is not None or not connection.stash:
            return True
        if self._land(connection) is None:
            self._starve(connection)
            return False
        return True

    def next_api_key(self, connection: Connection) -> int:
        """Return the API key of a held connection's next frame."""
        block, stash = connection.block, connection.stash
        if block is None:
            return stash[SIZE_BYTES] << 8 | stash[SIZE_BYTES + 1]
        first = connection.start + SIZE_BYTES
        return block.view[first] << 8 | block.view[first + 1]

    def begun_bytes(self, connection: Connection) -> int:
        """How much of a frame that is not whole yet has arrived."""
        return len(connection.stash) if connection.block is None else connection.end - connection.start

    def release(self, connection: Connection) -> None:
        """The connection is closed: gives back what it was receiving into."""
        block = connection.block
        connection.block = None
        connection.stash = b""
        if block is not None:
            self._pool.give(block)
        if connection.starved:
            connection.starved = False
            self.starved.remove(connection)

    def next_fed(self, now_ns: int) -> Connection | None:
        """The longest-starved connection, when the pool can serve one again; its grace begins now."""
        if not self.starved or self._pool.free_bytes() <= self._pool.reserve_bytes // 2:
            return None
        connection = self.starved.popleft()
        connection.starved = False
        connection.frame_began_ns = now_ns
        return connection

    def starved_bytes(self) -> int:
        """About how much the starved connections wait for."""
        return sum(
            max(connection.wanted_bytes, 2 * connection.block.size_bytes if connection.block else 0)
            for connection in self.starved
        )

    def slowest(self, connections: Iterable[Connection], now_ns: int) -> list[Connection]:
        """Who holds space beyond the grace, the least bytes per second first: half-received frames, and frames
        that must wait because their client does not read the answers before them or is throttled, or because those
        come late.
        """
        late = [
            connection
            for connection in connections
            if connection.block is not None
            and not connection.starved
            and now_ns - (connection.last_active_ns if connection.muted else connection.frame_began_ns)
            > self.grace_ns
            and (connection.out or connection.held or connection.throttled_until_ns or not connection.muted)
        ]
        return sorted(late, key=lambda c: (c.end - c.start) / (now_ns - c.frame_began_ns))

    def _land(self, connection: Connection) -> Block | None:
        wanted = connection.wanted_bytes
        block = None
        if wanted > LANDING_BYTES:
            block = self._pool.take(wanted, partial=True)
        if block is None:
            block = self._pool.take(LANDING_BYTES)
            if block is None:
                return None
        stash = connection.stash
        connection.start = 0
        connection.end = len(stash)
        if stash:
            block.view[: len(stash)] = stash
            connection.stash = b""
        connection.block = block
        return block

    def _expect(self, connection: Connection, size: int) -> None:
        """Reads of a connection that sends large frames ask for much at once."""
        wanted = LANDING_BYTES
        while wanted < size + SIZE_BYTES and wanted < WANTED_BYTES_MAX:
            wanted <<= 1
        connection.wanted_bytes = wanted

    def _move(self, connection: Connection, block: Block) -> Block | None:
        """Carries the half-received frame over to a block it fits, or at least to one twice its size."""
        start, end = connection.start, connection.end
        left = end - start
        need = SIZE_BYTES + frame_size(block.view, start, size_max=self.frame_bytes_max)
        if not self._pool.fits(need):
            raise MalformedFrame(f"a frame of {need} bytes is larger than the pool (network.pool.bytes)")
        if need > TRUSTED_BYTES:
            need = min(need, max(2 * left, TRUSTED_BYTES))
        larger = self._pool.take(need, partial=True)
        if larger is None:
            return None
        larger.view[:left] = block.view[start:end]
        self._pool.give(block)
        connection.block = larger
        connection.start = 0
        connection.end = left
        return larger

    def _starve(self, connection: Connection) -> int:
        if not connection.starved:
            connection.starved = True
            self.starved.append(connection)
        return STARVED


def connection_view(connection: Connection) -> memoryview:
    """The stash as a view, for a look at its size prefix."""
    return memoryview(connection.stash)
