"""The supervisor's own last lines, for the console's page of logs.

    journal ──add──→ the last LINES_MAX lines ──LogLine, PAUSE_MS later──→ console

Other processes keep their lines in shared memory. The supervisor never writes there, because a write to a page for
which the host has no memory ends the process, and with the supervisor the whole appliance ends. So it sends its lines.
A console that was killed gets all of them again in its next life. One that does not read gets no more until it reads.
Then it gets those that are still kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from appliance.channels.supervision import LogLine
from appliance.control.supervisor.children import ChildRecord

LINES_MAX: Final = 200
LINE_CHARACTERS_MAX: Final = 500
PAUSE_MS: Final = 50
"""From a line to its message. A line may be logged while the supervisor is in the middle of something."""
AGAIN_MS: Final = 1_000
"""Until the next look at a console that does not read."""

AfterMs = Callable[[int, Callable[[], None]], object]
Tell = Callable[[ChildRecord, LogLine], None]


class OwnLines:
    """The lines, and how far the console has them. One thread uses it."""

    def __init__(self) -> None:
        self._lines: deque[LogLine] = deque(maxlen=LINES_MAX)
        self._position = 0
        self._sent = 0
        self._reader: ChildRecord | None = None
        self._generation = 0
        self._tell: Tell = lambda child, message: None
        self._after_ms: AfterMs = lambda pause_ms, action: None
        self._is_armed = False

    def add(self, line: str) -> None:
        """Keep a line as the journal writes it; the journal calls this, so nothing here may log."""
        self._position += 1
        self._lines.append(LogLine(self._position, line[:LINE_CHARACTERS_MAX]))
        self._arm(PAUSE_MS)

    def send_to(self, reader: ChildRecord, *, tell: Tell, after_ms: AfterMs) -> None:
        """Send all lines to this life of a process, and those that come.

        Args:
            tell: sends a message, or keeps it until the process reads.
            after_ms: calls an action after some milliseconds.
        """
        self._reader, self._generation, self._sent = reader, reader.generation, 0
        self._tell, self._after_ms = tell, after_ms
        self._is_armed = False
        self._arm(PAUSE_MS)

    def _arm(self, pause_ms: int) -> None:
        if self._reader is not None and not self._is_armed:
            self._is_armed = True
            self._after_ms(pause_ms, self._pass_on)

    def _pass_on(self) -> None:
        self._is_armed = False
        reader = self._reader
        if reader is None or not reader.is_alive or reader.generation != self._generation:
            self._reader = None
            return
        for line in tuple(self._lines):
            if reader.unsent:
                break  # it does not read; nothing but this one message waits for it
            if line.position > self._sent:
                self._sent = line.position
                self._tell(reader, line)
        if self._sent < self._position:
            self._arm(AGAIN_MS)
