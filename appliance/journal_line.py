"""How any line of the log is written, whatever its format: one line, a time, a priority."""

from __future__ import annotations

import logging
import time
from typing import Final

TEXT_LENGTH_MAX: Final = 4096

# logging level → syslog priority, as sd-daemon(3) numbers them.
PRIORITIES: Final = {
    logging.CRITICAL: 2,
    logging.ERROR: 3,
    logging.WARNING: 4,
    logging.INFO: 6,
    logging.DEBUG: 7,
}

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))}
_ESCAPES |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def one_line(text: str) -> str:
    """`text` without a control character, and not longer than TEXT_LENGTH_MAX."""
    line = text.translate(_ESCAPES)
    return line if len(line) <= TEXT_LENGTH_MAX else f"{line[: TEXT_LENGTH_MAX - 1]}…"


def time_of(record: logging.LogRecord) -> str:
    """Return the time of a line, in UTC with milliseconds."""
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"
