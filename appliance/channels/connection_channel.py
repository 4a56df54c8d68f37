"""The fan-out: how the acceptor hands a connection to a network process, and how load comes back.

Two ways side by side. A ZeroMQ message says *what* the connection is; the descriptor itself travels beside it
over a Unix socket (SCM_RIGHTS), matched by `connection_id`. Either may arrive first; a half that waits longer
than HALF_WAITS_MS is dropped (the peer sees a closed connection and comes again).

    acceptor  ROUTER  runtime_dir/acceptor.zmq   ←→  DEALER  network process    Assignment → ; ← Hello, Load
    acceptor  SEQPACKET listener runtime_dir/acceptor.fd ←  network process connects, first packet = its
    identity
"""

from __future__ import annotations

from struct import Struct

import msgspec

HALF_WAITS_MS = 5_000
DESCRIPTOR = Struct("<Q")  # what travels with a descriptor: its connection_id

LANE = "SHARED_MEMORY"
"""Listener of an assignment that is a Unix socket, and the address that such connections are counted under."""

# Connection ids never repeat within an instance: the acceptor's generation stands above a counter.
GENERATION_SHIFT = 40


class Hello(msgspec.Struct, tag=True, frozen=True):
    """Network process → acceptor, first message on both sockets.

    `attempt` counts the network process's tries to say hello in this generation: the two halves of one attempt
    belong together, and a half of an older one, still under way, joins nobody.
    `held` (ZeroMQ only): how many connections it already holds from each address, so that an acceptor that was
    restarted knows every load and every address's share again.
    """

    netproc: int
    generation: int
    attempt: int = 0
    held: dict[str, int] = {}


class Assignment(msgspec.Struct, tag=True, frozen=True):
    """Acceptor → network process: this connection is yours. `listener` is the name of a listener, or LANE; `slot`
    its port's."""

    connection_id: int
    slot: int
    listener: str
    peer_host: str
    peer_port: int


class Load(msgspec.Struct, tag=True, frozen=True):
    """Network process → acceptor, when something changed: connections held, and how many were closed since the last
    report, by address."""

    connections: int
    closed: dict[str, int]
    paused: bool = False  # the pool is full: prefer others
    sessions: int = 0  # over ZeroMQ


ConnectionMessage = Hello | Assignment | Load

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder[ConnectionMessage](ConnectionMessage).decode
