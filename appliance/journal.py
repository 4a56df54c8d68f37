"""One line per event on standard error, the same in every process: `TIME LEVEL role: text`.

    2026-03-01T12:00:00.123Z INFO netproc 1: serving

Rooms log through `logging.getLogger(__name__)`; a process calls `start` once, first thing. What a
client sent may stand in a line, so control characters are written as escapes: nobody forges a second
line. A traceback follows its line, each of its lines marked with `  | `. Under systemd the line begins
with the priority that the journal reads (`<3>` …) instead of a time that the journal knows itself.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from appliance.clock import Clock

TEXT_LENGTH_MAX = 4096

# logging level → syslog priority, as sd-daemon(3) numbers them.
_PRIORITIES = {logging.CRITICAL: 2, logging.ERROR: 3, logging.WARNING: 4, logging.INFO: 6, logging.DEBUG: 7}

_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127, *range(128, 160))}
_ESCAPES |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", 0x2028: "\\u2028", 0x2029: "\\u2029"}


def one_line(text: str) -> str:
    """`text` without a control character, and not longer than TEXT_LENGTH_MAX."""
    line = text.translate(_ESCAPES)
    return line if len(line) <= TEXT_LENGTH_MAX else f"{line[: TEXT_LENGTH_MAX - 1]}…"


class LineFormatter(logging.Formatter):
    """Writes an event as described above."""

    def __init__(self, role: str, *, for_systemd: bool = False) -> None:
        super().__init__()
        self._role = role
        self._for_systemd = for_systemd

    def format(self, record: logging.LogRecord) -> str:
        if self._for_systemd:
            start = f"<{_PRIORITIES.get(record.levelno, 6)}>"
        else:
            seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            start = f"{seconds}.{int(record.msecs):03d}Z {record.levelname} "
        line = f"{start}{self._role}: {one_line(record.getMessage())}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line = "\n".join([line, *(f"  | {one_line(part)}" for part in trace.splitlines())])
        return line


class StandardErrorHandler(logging.Handler):
    """One write per event straight to descriptor 2: lines of several processes do not mix."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            os.write(2, f"{self.format(record)}\n".encode(errors="backslashreplace"))
        except OSError:
            # Nobody reads standard error any more. A broker does not stop for that.
            pass
        except Exception:
            self.handleError(record)


def _standard_error_is_the_journal() -> bool:
    """Whether systemd says that descriptor 2 is its journal (systemd.exec(5), JOURNAL_STREAM)."""
    stream = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def start(role: str, *, level: int = logging.INFO) -> None:
    """Sends every event of this process to standard error under the name `role`; replaces an earlier one."""
    handler = StandardErrorHandler()
    handler.setFormatter(LineFormatter(role, for_systemd=_standard_error_is_the_journal()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    # A child has its parent's level: setting it again would visit every logger, and copy the pages of all of them.
    if root.level != level:
        root.setLevel(level)
    logging.captureWarnings(True)
    # Never read by our lines; leaving them out makes an event cheaper.
    logging.logThreads = False
    logging.logMultiprocessing = False


class Burst:
    """Says so many lines in an interval; at its end one more tells how many were left out.

    For events of which an operator wants to see each one while they are few.

    Args:
        say: where the lines go, such as `logger.warning`.
        clock: whose monotonic time counts.
        at: calls an action at a moment of it (`ipc.agent.Timers.add`).
        lines: in each interval.
        what: of what the others were, as in "… and 1,234 more connections were closed".
    """

    __slots__ = ("_at", "_clock", "_ends_ns", "_interval_ns", "_left_out", "_lines", "_said", "_say", "_what")

    def __init__(
        self,
        say: Callable[[str], None],
        clock: Clock,
        *,
        at: Callable[[int, Callable[[], None]], object],
        lines: int,
        what: str,
        interval_ms: int = 60_000,
    ) -> None:
        self._say = say
        self._clock = clock
        self._at = at
        self._lines = lines
        self._what = what
        self._interval_ns = interval_ms * 1_000_000
        self._ends_ns = 0
        self._said = 0
        self._left_out = 0

    def __call__(self, text: str) -> None:
        now_ns = self._clock.monotonic_ns()
        if now_ns >= self._ends_ns and not self._left_out:
            self._ends_ns = now_ns + self._interval_ns
            self._said = 0
        if self._said < self._lines:
            self._said += 1
            self._say(text)
            return
        if not self._left_out:
            self._at(self._ends_ns, self._tell)
        self._left_out += 1

    def _tell(self) -> None:
        left_out, self._left_out = self._left_out, 0
        self._say(f"… and {left_out:,} more {self._what} in the last {self._interval_ns // 10**9} s")


class RateLimited:
    """Says at most one line per interval; the next one tells how many were left out.

    For events that a client can cause as often as it likes.

    Args:
        say: where the line goes, such as `logger.warning`.
        clock: whose monotonic time counts.
        interval_ms: the shortest time between two lines.
    """

    __slots__ = ("_clock", "_interval_ns", "_left_out", "_not_before_ns", "_say")

    def __init__(self, say: Callable[[str], None], clock: Clock, *, interval_ms: int = 1_000) -> None:
        self._say = say
        self._clock = clock
        self._interval_ns = interval_ms * 1_000_000
        self._not_before_ns = 0
        self._left_out = 0

    def __call__(self, text: str) -> bool:
        """Whether the line was said."""
        now_ns = self._clock.monotonic_ns()
        if now_ns < self._not_before_ns:
            self._left_out += 1
            return False
        if self._left_out:
            text = f"{text} (and {self._left_out} more like it)"
        self._say(text)
        self._left_out = 0
        self._not_before_ns = now_ns + self._interval_ns
        return True
