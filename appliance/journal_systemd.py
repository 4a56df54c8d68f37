"""Lines to systemd's journal over its own protocol, so that each has fields.

    journalctl -u appliance APPLIANCE_EVENT=log-directory-failed
    journalctl -u appliance -o json --output-fields=MESSAGE,PARTITION

One datagram to /run/systemd/journal/socket is one line: `NAME=value` lines, or where a value has a line feed, the name,
a line feed, the length as 64 bits little-endian, and the value. Source: systemd's JOURNAL_NATIVE_PROTOCOL.

A process never waits for the journal. A line that the socket does not take at once is counted, and the next line says
how many were lost. A line that is too long for a datagram goes to standard error.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from typing import Any, Final

from appliance.journal_catalog import message_id
from appliance.journal_events import OTHER, described
from appliance.journal_line import PRIORITIES, one_line

SOCKET: Final = "/run/systemd/journal/socket"
IDENTIFIER: Final = "appliance"
TRACE_LENGTH_MAX: Final = 32_768
_LENGTH: Final = struct.Struct("<Q")
_OWN_NAMES: Final = frozenset({"MESSAGE", "MESSAGE_ID", "PRIORITY", "SYSLOG_IDENTIFIER"})


def opened(role: str, formatter: logging.Formatter | None) -> JournalHandler | None:
    """Return a handler that sends to the journal; None if there is no journal with this protocol.

    Args:
        role: name of the process.
        formatter: makes MESSAGE; None for the text alone.
    """
    try:
        return JournalHandler(role, formatter, path=SOCKET)
    except OSError:
        return None


class JournalHandler(logging.Handler):
    """Sends each event as one datagram.

    Raises:
        OSError: the socket is not there.
    """

    def __init__(self, role: str, message: logging.Formatter | None, *, path: str = SOCKET) -> None:
        super().__init__()
        self._role = role
        self._message = message
        self._path = path
        self._lost = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._send(record)
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()

    def _send(self, record: logging.LogRecord) -> None:
        if self._lost:
            lost = logging.makeLogRecord(
                {
                    "name": __name__,
                    "levelno": logging.WARNING,
                    "levelname": "WARNING",
                    "msg": "%d lines were lost, because the journal of systemd took none",
                    "args": (self._lost,),
                }
            )
            if not self._was_taken(lost):
                self._lost += 1
                return
            self._lost = 0
        if not self._was_taken(record):
            self._lost += 1

    def _was_taken(self, record: logging.LogRecord) -> bool:
        datagram = self.datagram(record)
        try:
            self._socket.send(datagram, socket.MSG_DONTWAIT)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.ENOBUFS):
                return False
            if error.errno == errno.EMSGSIZE or not self._was_sent_again(datagram):
                os.write(2, f"{self.format(record)}\n".encode(errors="backslashreplace"))
        return True

    def _was_sent_again(self, datagram: bytes) -> bool:
        """Send to a journal that has been restarted: it has another socket of the same name."""
        try:
            self._socket.connect(self._path)
            self._socket.send(datagram, socket.MSG_DONTWAIT)
        except OSError:
            return False
        return True

    def datagram(self, record: logging.LogRecord) -> bytes:
        """Return a line as the journal takes it."""
        text = record.getMessage()
        event, values = described(record, text)
        message = f"{self._role}: {one_line(text)}" if self._message is None else self._message.format(record)
        if self._message is None and record.exc_info:
            trace = (self.formatter or logging.Formatter()).formatException(record.exc_info)[
                :TRACE_LENGTH_MAX
            ]
            message += "".join(f"\n  | {one_line(part)}" for part in trace.splitlines())
        fields: dict[str, Any] = {
            "MESSAGE": message,
            "PRIORITY": PRIORITIES.get(record.levelno, 6),
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            "APPLIANCE_EVENT": event,
            "APPLIANCE_PROCESS": self._role,
        }
        if event != OTHER:
            fields["MESSAGE_ID"] = message_id(event)
        for name, value in values.items():
            if (upper := name.upper()) not in _OWN_NAMES:
                fields[upper] = one_line(value) if isinstance(value, str) else value
        return b"".join(_field(name, str(value)) for name, value in fields.items())


def _field(name: str, value: str) -> bytes:
    data = value.encode(errors="backslashreplace")
    if b"\n" in data:
        return name.encode() + b"\n" + _LENGTH.pack(len(data)) + data + b"\n"
    return name.encode() + b"=" + data + b"\n"
