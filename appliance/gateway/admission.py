"""Who may connect: the broker's answer to ZeroMQ's question (ZAP, RFC 27 of ZeroMQ) in each handshake.

    ipc                 the kernel says which user the peer is: our own, or one of `zeromq.allowed.users`
    tcp, CURVE          the peer's public key lies in `zeromq.curve.client.keys.dir`
    tcp, insecure       everybody

The answer names the client's principal, which ZeroMQ then puts beside each of its messages as `User-Id`, and the key
of a client that has one, as `X-Curve-Key`. Whatever is not listed here is refused. libzmq asks in the thread of its
sockets and waits; the answer is computed at once from what is in memory and, for CURVE, one look at a directory.
"""

from __future__ import annotations

import errno
import os
import pwd
import re
import stat
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import zmq
from zmq.utils import z85

from appliance.errors import ConfigurationError

IPC_DOMAIN: Final = "ipc"
CURVE_DOMAIN: Final = "curve"
INSECURE_DOMAIN: Final = "insecure"

_ENDPOINT: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_REQUEST_FRAMES: Final = 7
"""Of a question: client, empty, version, request id, domain, address, routing id; mechanism and credentials follow."""
_PEER: Final = re.compile(r"localhost:(?P<uid>[0-9]+):[0-9]+:[0-9]+")
_KEY: Final = re.compile(
    r"""^\s*(?P<name>public-key|secret-key)\s*=\s*["'](?P<key>[0-9a-zA-Z.:+=^!/*?&<>()\[\]{}@%$#-]{40})["']\s*$""",
    re.MULTILINE,
)
_KEY_FILE_BYTES_MAX: Final = 16 * 1024
_KEY_SUFFIX: Final = ".key"
_PASSING: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR))
KEY_PROPERTY: Final = "X-Curve-Key"
"""The property of a message that names its client's public key, in hexadecimal digits."""
_QUESTIONS_MAX: Final = 64
"""Handshakes answered in one turn."""


def user_ids(own_uid: int, names: Iterable[str]) -> dict[int, str]:
    """Return uid → principal of the users that may connect by ipc.

    Raises:
        ConfigurationError: a name that the system does not know.
    """
    found: dict[int, str] = {}
    for name in ("", *names):
        try:
            entry = pwd.getpwuid(own_uid) if not name else pwd.getpwnam(name)
        except KeyError:
            if name and not name.isdecimal():
                raise ConfigurationError(f"zeromq.allowed.users: this host has no user {name!r}") from None
            uid = int(name) if name else own_uid
            found[uid] = f"User:{uid}"
        else:
            found[entry.pw_uid] = f"User:{entry.pw_name}"
    return found


def read_keys(path: Path) -> Mapping[str, bytes]:
    """Return the keys in a CURVE certificate file: `public-key`, `secret-key`, each 40 characters of Z85.

    Raises:
        ConfigurationError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            text = file.read(_KEY_FILE_BYTES_MAX).decode("utf-8", "replace")
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}") from error
    return {match["name"]: match["key"].encode("ascii") for match in _KEY.finditer(text)}


@dataclass(slots=True)
class ClientKeys:
    """The keys of the clients that may connect, as the directory says now. `version` moves when the keys are read.

    `unusable` names the files without a key that can be one.
    """

    directory: Path
    version: int = 0
    unusable: tuple[str, ...] = ()
    _names: dict[bytes, str] = field(default_factory=dict)
    _seen: tuple[tuple[str, tuple[int, ...]], ...] | None = None

    def refresh(self) -> None:
        """Read the directory again if it has changed. Without a directory nobody may connect.

        If this process cannot look at the directory now, for want of descriptors or memory, the keys stay as they are.
        """
        try:
            with os.scandir(self.directory) as entries:
                listed = [entry for entry in entries if entry.name.endswith(_KEY_SUFFIX)]
        except OSError as error:
            if error.errno in _PASSING:
                return
            listed = []
        states = {entry.name: state for entry in listed if (state := _state(entry)) is not None}
        seen = tuple(sorted(states.items()))
        if seen == self._seen:
            return
        self._seen = seen
        names: dict[bytes, str] = {}
        unusable: list[str] = []
        for name, _ in seen:
            key = _public_key(self.directory / name)
            if key is None:
                unusable.append(name)
            else:
                names[key] = name.removesuffix(_KEY_SUFFIX)
        self._names = names
        self.unusable = tuple(unusable)
        self.version += 1

    def name_of(self, key: bytes) -> str | None:
        """Return the name of the client with this public key (32 bytes)."""
        return self._names.get(key)


def _public_key(path: Path) -> bytes | None:
    """Return the public key in a file; None where there is none. Not each 40 characters of Z85 are 32 bytes."""
    try:
        return z85.decode(read_keys(path)["public-key"])
    except (ConfigurationError, KeyError, ValueError, struct.error):
        return None


def _state(entry: os.DirEntry[str]) -> tuple[int, ...] | None:
    """Return what changes when a key file changes; None for one that has gone since it was listed, or is no file."""
    try:
        found = entry.stat()
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):  # a pipe would hold up the process when it is read
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size


def not_admitted(_address: str, _mechanism: str) -> None:
    """Do nothing about a client that is not admitted: there is no audit journal."""


class Doorkeeper:
    """Answers the handshakes of one ZeroMQ context.

    Args:
        context: the context of the sockets that ask.
        users: uid → principal of who may connect by ipc.
        keys: who may connect with CURVE; None where it is not configured.
        warn: where lines about refused handshakes go.
        refused: gets the address and the mechanism of each client that is not admitted.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        users: Mapping[int, str],
        keys: ClientKeys | None,
        warn: Callable[[str], object],
        refused: Callable[[str, str], None],
    ) -> None:
        self._refused = refused
        self._users = users
        self._keys = keys
        self._warn = warn
        self._socket = context.socket(zmq.ROUTER)
        self._socket.set(zmq.LINGER, 0)
        self._socket.bind(_ENDPOINT)

    def fileno(self) -> int:
        """Readable when somebody may ask."""
        return int(self._socket.get(zmq.FD))

    def is_empty(self) -> bool:
        """Return whether nobody asks."""
        return not int(self._socket.get(zmq.EVENTS)) & zmq.POLLIN

    def answer(self) -> bool:
        """Answer those who ask; return whether more may be asking."""
        for _ in range(_QUESTIONS_MAX):
            if self.is_empty():
                return False
            question = self._socket.recv_multipart(zmq.NOBLOCK)
            if len(question) < _REQUEST_FRAMES + 1 or question[2] != _VERSION:
                continue
            envelope = question[:2]
            _, _, _, request_id, domain, address, _, mechanism, *credentials = question
            principal = self._principal(domain.decode(), address.decode(), mechanism, credentials)
            properties = b""
            if principal is None:
                self._warn(
                    f"ZeroMQ connection from {address.decode()} refused: its "
                    + ("key" if mechanism == b"CURVE" else "user")
                    + " is not admitted"
                )
                self._refused(address.decode(), "CURVE" if mechanism == b"CURVE" else "uid")
                status, text, user = b"400", b"not admitted", b""
            else:
                status, text, user = b"200", b"OK", principal.encode()
                if mechanism == b"CURVE":
                    properties = _property(KEY_PROPERTY, credentials[0].hex())
            self._socket.send_multipart((*envelope, _VERSION, request_id, status, text, user, properties))
        return True

    def is_admitted(self, principal: str, key: str) -> bool:
        """Return whether a client would be admitted now. Call `keys_version` before.

        Args:
            principal: the client's, as the answer to its handshake named it.
            key: its public key in hexadecimal digits; empty for a client that was admitted without one.
        """
        if not key or self._keys is None:
            return True
        name = self._keys.name_of(bytes.fromhex(key))
        return name is not None and principal == _principal_of(name)

    def keys_version(self) -> int:
        """Look at the directory of keys, and return a number that moves whenever the keys have changed.

        Each handshake reads the directory, too. So code that acts on a change compares this number with the last one.
        """
        keys = self._keys
        if keys is None:
            return 0
        before = keys.version
        keys.refresh()
        if keys.version != before and keys.unusable:
            self._warn(
                f"zeromq.curve.client.keys.dir: {keys.directory} has no public key of 40 characters of Z85 in "
                f"{', '.join(keys.unusable)}; the clients of these files cannot connect"
            )
        return keys.version

    def close(self) -> None:
        """Refuse everybody from now on."""
        self._socket.close(linger=0)

    def _principal(self, domain: str, address: str, mechanism: bytes, credentials: list[bytes]) -> str | None:
        """Return who that is, or None for somebody who may not connect."""
        if domain == IPC_DOMAIN and mechanism == b"NULL":
            peer = _PEER.fullmatch(address)
            return None if peer is None else self._users.get(int(peer["uid"]))
        if domain == CURVE_DOMAIN and mechanism == b"CURVE" and self._keys is not None and credentials:
            self.keys_version()
            name = self._keys.name_of(credentials[0])
            return None if name is None else _principal_of(name)
        if domain == INSECURE_DOMAIN and mechanism == b"NULL":
            return "User:ANONYMOUS"
        return None


def _principal_of(name: str) -> str:
    """Return the principal of the client whose key file has this name."""
    return f"User:{name}"


def _property(name: str, value: str) -> bytes:
    """Return a property as ZMTP spells it."""
    return bytes((len(name),)) + name.encode() + len(value).to_bytes(4, "big") + value.encode()
