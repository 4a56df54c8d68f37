"""What a producer's library says of itself, kept for the day on which a record is there twice.

librdkafka tells with `debug=eos,msg` which answer made it send a batch again, drain a partition or take a new epoch.
What it says of a batch that went well is kept only where something did not go well soon after, so an hour of faults
has its bound.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

LINES_KEPT: Final = 400_000
LINES_BEFORE: Final = 300
_SAID_OF_EVERY_BATCH: Final = ("Produce MessageSet with", ") delivered")


class ClientLog(logging.Handler):
    """A handler for one client; `logger` is what the client is given.

    Args:
        hears: is told each line that is not said of every batch.
    """

    def __init__(self, name: str, hears: Callable[[str], None] = lambda _: None) -> None:
        super().__init__()
        self._hears = hears
        self._lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._usual: deque[str] = deque(maxlen=LINES_BEFORE)
        self.logger = logging.Logger(name, logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line under the wall clock's time."""
        text = record.getMessage()
        line = f"{time.time():.4f} {text}\n"
        if any(words in text for words in _SAID_OF_EVERY_BATCH):
            self._usual.append(line)
            return
        self._lines.extend(self._usual)
        self._usual.clear()
        self._lines.append(line)
        self._hears(text)

    def write(self, path: Path) -> None:
        """All that is kept, a line each, each with its time in seconds since 1970."""
        path.write_text("".join([*self._lines, *self._usual]))
