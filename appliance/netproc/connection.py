"""One client connection: where its received bytes are, and what is still to be sent.

Most connections are idle, so empty queues are not allocated.
"""

from __future__ import annotations

import sys
from socket import SocketType
from typing import Final

from appliance.ipc.buffer_pool import Block
from appliance.netproc.encrypted_stream import EncryptedStream
from appliance.requests.answer import Piece
from appliance.requests.session import Session

LANDING_BYTES: Final = 16 * 1024
PLAINTEXT: Final = "PLAINTEXT"


def arrival_host(local_host: str) -> str:
    """Return the address that a client came by, as the client writes it, given that of the accepted socket.

    An IPv4 client of an IPv6 socket did not use the mapped address; a zone means nothing on another host.
    """
    host = local_host.partition("%")[0]
    if host.startswith("::ffff:") and "." in host:
        host = host[7:]
    return sys.intern(host)  # many connections came by few addresses


class Connection(Session):
    """A session over a socket. State only: `intake` reads, `outlet` writes, the processor decides."""

    __slots__ = (
        "block",
        "end",
        "fd",
        "frame_began_ns",
        "held",
        "is_local",
        "mask",
        "muted",
        "out",
        "owed_bytes",
        "sock",
        "start",
        "starved",
        "stash",
        "tls",
        "wanted_bytes",
        "was_sent_records",
    )

    def __init__(
        self,
        sock: SocketType,
        *,
        connection_id: int,
        slot: int,
        peer_host: str,
        peer_port: int,
        now_ns: int,
        listener: str = PLAINTEXT,
        is_local: bool = False,
        told_host: str | None = None,
        told_port: int | None = None,
        tls: EncryptedStream | None = None,
    ) -> None:
        fd = sock.fileno()
        super().__init__(
            connection_id=connection_id,
            number=fd,
            slot=slot,
            listener=listener,
            peer_host=peer_host,
            peer_port=peer_port,
            now_ns=now_ns,
            told_host=told_host,
            told_port=told_port,
        )
        self.sock = sock
        self.fd = fd
        # Where the connection is encrypted `sock` is the same stream, which reads and closes as a socket does.
        self.tls = tls
        self.is_local = is_local  # the client runs on this host
        # Receiving: bytes [start, end) of `block` are not yet cut into frames. A few of them wait in `stash` instead,
        # so that a connection that is idle or slow holds no block.
        self.block: Block | None = None
        self.start = 0
        self.end = 0
        self.stash = b""
        self.wanted_bytes = LANDING_BYTES
        self.frame_began_ns = now_ns
        self.muted = False
        self.held = False  # muted because its next frame waits for the answers before it
        self.starved = False
        # Sending. What leaves next is the last element, so that taking it costs the same however many follow.
        self.out: list[Piece] | None = None
        self.owed_bytes = 0  # answers beside records, since the last time that all were sent
        self.was_sent_records = False
        self.mask = 0
