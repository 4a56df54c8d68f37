"""The file with the users of PLAIN: names and passwords, for the appliance's own user only.

    "alice" = "alice-secret"

It is read at the start, and again when it has changed, at most once a second. A file that cannot be used any more
changes nothing: the users from before stay, and one line says why.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from typing import Final

from appliance.clock import Clock
from appliance.errors import OperatorFault

OPTION: Final = "sasl.plain.users.file"
LOOK_INTERVAL_NS: Final = 1_000_000_000
FILE_BYTES_MAX: Final = 16 << 20
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO

_Stamp = tuple[int, int, int, int, int]


class PasswordFile:
    """The passwords of now.

    Args:
        path: of the file; None where there is none, and no user.
        complain: writes a line for the operator.
    """

    __slots__ = ("_clock", "_complain", "_look_ns", "_passwords", "_path", "_stamp")

    def __init__(self, path: str | None, clock: Clock, complain: Callable[[str], None]) -> None:
        self._path = path
        self._clock = clock
        self._complain = complain
        self._look_ns = clock.monotonic_ns() + LOOK_INTERVAL_NS
        self._stamp = None if path is None else _stamp_of(path)
        self._passwords: Mapping[str, str] = {}
        if path is not None:
            try:
                self._passwords = read_passwords(path)
            except OperatorFault as fault:
                self._complain(f"no PLAIN authentication succeeds: {fault}")

    def passwords(self) -> Mapping[str, str]:
        """Return name → password."""
        if self._path is not None:
            now_ns = self._clock.monotonic_ns()
            if now_ns >= self._look_ns:
                self._look_ns = now_ns + LOOK_INTERVAL_NS
                self._look(self._path)
        return self._passwords

    def _look(self, path: str) -> None:
        stamp = _stamp_of(path)
        if stamp == self._stamp:
            return
        # Before the file is read: what changes meanwhile is another change.
        self._stamp = stamp
        try:
            self._passwords = read_passwords(path)
        except OperatorFault as fault:
            self._complain(
                f"the file of PLAIN users has changed and cannot be used; the users from before stay: {fault}"
            )
        else:
            self._complain("the file of PLAIN users has changed; new authentications use it")


def read_passwords(path: str) -> dict[str, str]:
    """Return name → password.

    Raises:
        OperatorFault: the file cannot be read, others may read it, or it is no such file. No password is repeated.
    """
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if found.st_mode & _OTHERS:
                raise OperatorFault(
                    f"{OPTION}: {path}: other users may read it (mode {stat.S_IMODE(found.st_mode):04o}): "
                    f"run chmod 600 {path}"
                )
            if found.st_uid not in {0, os.geteuid()}:
                raise OperatorFault(f"{OPTION}: {path}: it belongs to another user (uid {found.st_uid})")
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise OperatorFault(f"{OPTION}: {path}: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise OperatorFault(f"{OPTION}: {path}: it is larger than {FILE_BYTES_MAX} bytes")
    try:
        table = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        # The parser's own message may repeat a part of the file.
        raise OperatorFault(
            f'{OPTION}: {path}: this is no valid TOML: write one "name" = "password" a line'
        ) from None
    for name, password in table.items():
        if not isinstance(password, str) or not password or not name or "\0" in name + password:
            raise OperatorFault(
                f'{OPTION}: {path}: {name!r}: write "name" = "password", both in quotes and not empty'
            )
    return table


def _stamp_of(path: str) -> _Stamp | None:
    """Return what changes when the file does."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode
