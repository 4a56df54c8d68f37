"""A line of the log as a JSON object (`log.format = json`): one object a line, with the event and its values.

{"time":"2026-03-01T12:00:00.123Z","level":"ERROR","process":"ioproc 0.0","pid":4711,"event":"flush-failed",
 "message":"flush failed: …","reason":"…"}
"""

from __future__ import annotations

import logging
import os
from typing import Any, Final

import msgspec

from appliance.journal_events import OTHER, described
from appliance.journal_line import one_line, time_of

_encode: Final = msgspec.json.Encoder().encode


class JsonFormatter(logging.Formatter):
    """Writes an event as described above."""

    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        event, values = described(record, text)
        told: dict[str, Any] = {
            "time": time_of(record),
            "level": record.levelname,
            "process": self._role,
            "pid": os.getpid(),
            "event": event,
            "message": _clean(text),
        }
        if event == OTHER:
            told["logger"] = record.name
        told |= {name: _clean(value) if isinstance(value, str) else value for name, value in values.items()}
        if record.exc_info:
            told["traceback"] = [_clean(part) for part in self.formatException(record.exc_info).splitlines()]
        return _encode(told).decode()


def _clean(text: str) -> str:
    """Return the text with escapes, and without halves of characters, which JSON cannot hold."""
    return one_line(text).encode(errors="backslashreplace").decode()
