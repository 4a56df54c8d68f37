"""The fan-out: how the acceptor hands a connection to a network process, and how load comes back.

Two ways side by side. A ZeroMQ message says *what* the connection is; the descriptor itself travels beside it
over a Unix socket (SCM_RIGHTS), matched by `connection_id`. Either may arrive first; a half that waits longer
than HALF_WAITS_MS is dropped (the peer sees a closed connection and comes again).

    acceptor  ROUTER  runtime_dir/acceptor.zmq   ←→  DEALER  network process    Assignment → ; ← Hello, Load
    acceptor  SEQPACKET listener runtime_dir/acceptor.fd ←  network process connects, first packet = its identity
"""

from __future__ import annotations

import msgspec

HALF_WAITS_MS = 5_000
DESCRIPTOR_PAYLOAD_BYTES = 8  # connection_id, little endian


class Hello(msgspec.Struct, tag=True, frozen=True):
    """Network process → acceptor, first message on both sockets."""

    netproc: int
    generation: int


class Assignment(msgspec.Struct, tag=True, frozen=True):
    """Acceptor → network process: this connection is yours. `listener` is PLAINTEXT or SSL; `slot` its port's."""

    connection_id: int
    slot: int
    listener: str
    peer_host: str
    peer_port: int


class Load(msgspec.Struct, tag=True, frozen=True):
    """Network process → acceptor, when something changed: connections held, ids closed since the last report."""

    connections: int
    closed: tuple[int, ...]
    paused: bool = False  # the pool is full: prefer others


ConnectionMessage = Hello | Assignment | Load

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder[ConnectionMessage](ConnectionMessage).decode
