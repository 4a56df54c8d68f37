"""The acceptor's door to the lanes: a Unix socket in a directory of the data directory, whose mode decides.

    DATA_DIR/shared-memory/          0700, or 0750 of `shared.memory.group`
        hello                        the socket, 0600 or 0660

Without a group the kernel is asked, too, who the peer is (SO_PEERCRED), so that a mode that somebody widened by hand
lets nobody in. The acceptor reads nothing from a client: it hands the socket over as it hands TCP sockets over. It
closes none itself, because that could take as long as the client likes (`closing`).
"""

from __future__ import annotations

import grp
import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Final

from appliance.channels.own_user import peer_of
from appliance.config.sections.shared_memory import LANE_DIRECTORY, LANE_SOCKET
from appliance.errors import ConfigurationError, HostFault
from appliance.lane.closing import ClosingSockets

_BACKLOG: Final = 128


class LaneDoor:
    """The listening socket.

    Raises:
        ConfigurationError: this host has no such group.
        HostFault: the directory or the socket cannot be made.
    """

    def __init__(self, data_dir: Path, *, lanes_max: int, group: str | None) -> None:
        self._lanes_max = lanes_max
        self._has_group = group is not None
        self._closing = ClosingSockets()
        group_id = -1 if group is None else _group_id(group)
        directory = data_dir / LANE_DIRECTORY
        try:
            with suppress(FileExistsError):
                os.mkdir(directory, 0o700)
            descriptor = os.open(directory, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.fchmod(descriptor, 0o700)
                # The path of a Unix socket is short, and that of a data directory may be long.
                path = f"/proc/self/fd/{descriptor}/{LANE_SOCKET}"
                with suppress(FileNotFoundError):
                    os.unlink(path)
                self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.sock.setblocking(False)
                self.sock.bind(path)
                self.sock.listen(_BACKLOG)
                os.chmod(path, 0o660 if self._has_group else 0o600)
                if self._has_group:
                    os.chown(path, -1, group_id)
                    os.fchown(descriptor, -1, group_id)
                    os.fchmod(descriptor, 0o750)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise HostFault(f"{directory}: {error.strerror}") from error

    @property
    def is_full(self) -> bool:
        """Whether so many refused clients are not closed yet that no other one should be accepted for now."""
        return self._closing.is_full

    def close(self, sock: socket.socket) -> None:
        """Close the socket of a client that gets no lane, without waiting."""
        self._closing.close(sock)

    def refusal(self, sock: socket.socket, held: int) -> str | None:
        """Return why a client gets no lane, or None. `held`: how many lanes there are."""
        if held >= self._lanes_max:
            return f"shared.memory.lanes.max = {self._lanes_max} are held"
        pid, uid = peer_of(sock)
        if not self._has_group and uid != os.geteuid():
            return f"process {pid} runs as user {uid}"
        return None


def _group_id(name: str) -> int:
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        raise ConfigurationError(f"shared.memory.group: this host has no group {name!r}") from None
