"""What the supervisor and its children say to each other, over one SEQPACKET socket pair per child.

Not ZeroMQ: the supervisor forks restarts at any time, and a ZeroMQ context must not exist before a fork.
End of file on the socket means that the supervisor is gone: the child stops in good order by itself.
"""

from __future__ import annotations

import socket

import msgspec

from appliance.channels.roles import Role, RoleKind

MESSAGE_BYTES_MAX = 65536


class Ready(msgspec.Struct, tag=True, frozen=True):
    """Child → supervisor: the process serves."""


class Failed(msgspec.Struct, tag=True, frozen=True):
    """Child → supervisor: the process cannot start; `why` is printed once, by the supervisor."""

    why: str
    fatal: bool = False


class _Peer(msgspec.Struct, frozen=True):
    """A generation of another child of the same supervisor."""

    kind: RoleKind
    index: int
    slot: int
    generation: int

    @property
    def role(self) -> Role:
        return Role(self.kind, self.index, self.slot)


class PeerDown(_Peer, tag=True, frozen=True):
    """Supervisor → child: that generation of the peer is dead (its pidfd said so); forget its rings."""


class PeerHeld(_Peer, tag=True, frozen=True):
    """Supervisor → controller: that generation of the peer was killed and runs no more, but the kernel holds it. It
    writes no word of shared memory; what it has open stays open until PeerDown. Others are told PeerDown at once."""


class PeerUp(_Peer, tag=True, frozen=True):
    """Supervisor → child: the peer serves again as this generation; fresh rings and pools exist."""


class Stop(msgspec.Struct, tag=True, frozen=True):
    """Supervisor → child: finish what is under way within `within_ms`, then exit 0."""

    within_ms: int


class Heartbeat(msgspec.Struct, tag=True, frozen=True):
    """Supervisor → child → supervisor: are you alive? Asked when systemd's watchdog is on, and of workers where there
    are several slots; a worker says it unasked in the middle of long work."""

    number: int


class MemoryWanted(msgspec.Struct, tag=True, frozen=True):
    """Metrics process → supervisor: say how much memory each process has, and what it reads and writes."""


class MemoryShare(_Peer, tag=True, frozen=True):
    """Supervisor → metrics process: memory, open files and disk of one process; the supervisor's generation is 0.

    -1: the kernel does not show it.
    """

    proportional_bytes: int
    """PSS."""
    open_files: int
    read_bytes: int = -1
    """What this life has had a disk read; `written_bytes`: what it has made dirty, to be written to a disk."""
    written_bytes: int = -1


class Reloaded(msgspec.Struct, tag=True, frozen=True):
    """Supervisor → controller: the configuration file was read again. `configs`: what it says of settings that may
    change at run time, name → text."""

    configs: dict[str, str]


class LogLevels(msgspec.Struct, tag=True, frozen=True):
    """Controller → supervisor → other children: log from these levels on. Logger → level (`config.loggers`)."""

    levels: dict[str, str]


class LogLine(msgspec.Struct, tag=True, frozen=True):
    """Supervisor → console: a line that the supervisor has logged. Positions grow by one while it lives."""

    position: int
    text: str


Message = (
    Ready
    | Failed
    | PeerDown
    | PeerHeld
    | PeerUp
    | Stop
    | Heartbeat
    | MemoryWanted
    | MemoryShare
    | Reloaded
    | LogLevels
    | LogLine
)

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


class SupervisionSocket:
    """One end of the pair. Non-blocking; messages are whole or not there."""

    __slots__ = ("_socket",)

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> bool:
        """False when the other end is gone or does not read."""
        try:
            self._socket.send(_encoder.encode(message))
        except OSError:
            return False
        return True

    def receive(self) -> list[Message] | None:
        """Everything that waits; None when the other end is gone."""
        messages: list[Message] = []
        while True:
            try:
                data = self._socket.recv(MESSAGE_BYTES_MAX)
            except BlockingIOError:
                return messages
            except ConnectionResetError:
                # The other end left without reading everything; what it said before still waits behind this.
                continue
            except OSError:
                return None
            if not data:
                return messages or None
            messages.append(_decoder.decode(data))

    def close(self) -> None:
        self._socket.close()


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """(supervisor's end, child's end)."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
