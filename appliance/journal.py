"""One line per event on standard error, the same in every process: `TIME LEVEL role: text`.

    2026-03-01T12:00:00.123Z INFO netproc 1: serving

Rooms log through `logging.getLogger(__name__)`; a process calls `start` once, first thing. What a
client sent may stand in a line, so control characters are written as escapes: nobody forges a second
line. A traceback follows its line, each of its lines marked with `  | `.

With `log.format = json` a line is a JSON object (`journal_json`). Under systemd the lines go to its journal over its
own protocol, with fields (`journal_systemd`). If that socket is not there, a line on standard error begins with the
priority that the journal reads (`<3>` …) instead of a time that the journal knows itself.

Of one kind of line, a process writes at most LINES_MAX in WINDOW_MS (ten times as many errors). It counts the others,
and says how many there were.

A level counts for the loggers of the appliance. Libraries log from INFO up whatever it is, because some of them write
at DEBUG what they send, and that may be a secret.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Final

from appliance.clock import NS_PER_MS, Clock, SystemClock
from appliance.journal_line import PRIORITIES, one_line, time_of

LINES_MAX: Final = 100
WINDOW_MS: Final = 10_000
_KINDS_MAX: Final = 1000
"""Kinds of lines that are counted; more than there are. With the next one all are forgotten."""

TEXT: Final = "text"
JSON: Final = "json"
FORMATS: Final = (TEXT, JSON)
ROOT: Final = "root"
DEFAULT_LEVEL: Final = "INFO"
LEVELS: Final[Mapping[str, int]] = {
    "TRACE": logging.DEBUG,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Kafka's names of levels. TRACE is the same as DEBUG here."""
_OWN: Final = "appliance"

_logger: Final = logging.getLogger(__name__)


class LineFormatter(logging.Formatter):
    """Writes an event as described above."""

    def __init__(self, role: str, *, for_systemd: bool = False) -> None:
        super().__init__()
        self._role = role
        self._for_systemd = for_systemd

    def format(self, record: logging.LogRecord) -> str:
        if self._for_systemd:
            start = f"<{PRIORITIES.get(record.levelno, 6)}>"
        else:
            start = f"{time_of(record)} {record.levelname} "
        line = f"{start}{self._role}: {one_line(record.getMessage())}"
        if record.exc_info:
            trace = self.formatException(record.exc_info)
            line = "\n".join([line, *(f"  | {one_line(part)}" for part in trace.splitlines())])
        return line


class LineLimit(logging.Filter):
    """Lets at most LINES_MAX lines of a kind pass in WINDOW_MS, ten times as many of errors.

    A kind is the text without its values, and the level. Of lines that a room makes as a whole text, those with the
    same first word are one kind. Clients do not choose that word, because such a text begins with `partition`,
    `connection` and the like.

    Args:
        clock: whose monotonic time counts.
    """

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._ends_ns = 0
        self._counts: dict[tuple[str, str, int], int] = {}
        self._left_out: dict[tuple[str, str, int], str] = {}
        self._is_telling = False
        self.on_first_left_out: Callable[[], object] = lambda: None

    def filter(self, record: logging.LogRecord) -> bool:
        if self._is_telling:
            return True
        if self._clock.monotonic_ns() >= self._ends_ns:
            self.tell()
            self._ends_ns = self._clock.monotonic_ns() + WINDOW_MS * NS_PER_MS
            self._counts.clear()
        text = str(record.msg)
        kind = (record.name, text if record.args else _first_word(text), record.levelno)
        count = self._counts.get(kind, 0) + 1
        if count == 1 and len(self._counts) >= _KINDS_MAX:
            self._counts.clear()
        self._counts[kind] = count
        if count <= (LINES_MAX if record.levelno < logging.ERROR else 10 * LINES_MAX):
            return True
        if not self._left_out:
            self.on_first_left_out()
        self._left_out.setdefault(kind, one_line(record.getMessage()))
        return False

    def tell(self) -> None:
        """Say how many lines were left out since the last time, one line for each kind."""
        left_out, self._left_out = self._left_out, {}
        self._is_telling = True
        try:
            for kind, example in left_out.items():
                allowed = LINES_MAX if kind[2] < logging.ERROR else 10 * LINES_MAX
                count = self._counts.get(kind, allowed + 1) - allowed
                _logger.log(kind[2], "%d more lines like this one were left out: %s", count, example)
        finally:
            self._is_telling = False


def _first_word(text: str) -> str:
    word = text.partition(" ")[0]
    return word if word.isalpha() else ""


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


class _Style:
    """How this process logs; its children begin with the same."""

    def __init__(self) -> None:
        self.form = TEXT
        self.levels: Mapping[str, str] = {ROOT: DEFAULT_LEVEL}
        self.role = ""
        self.limit: LineLimit | None = None


_style = _Style()


def _standard_error_is_the_journal() -> bool:
    """Whether systemd says that descriptor 2 is its journal (systemd.exec(5), JOURNAL_STREAM)."""
    stream = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(2)
    except OSError:
        return False
    return stream == f"{status.st_dev}:{status.st_ino}"


def style(form: str, levels: Mapping[str, str]) -> None:
    """Decide how this process and its children log: call it before `start`.

    Args:
        form: TEXT or JSON.
        levels: kind of process, or ROOT → level.
    """
    _style.form = form
    _style.levels = dict(levels)


def start(role: str) -> None:
    """Sends every event of this process to standard error under the name `role`; replaces an earlier one."""
    _style.role = role
    handler = _handler(role)
    _style.limit = LineLimit(SystemClock())
    handler.addFilter(_style.limit)
    root = logging.getLogger()
    for earlier in root.handlers:
        earlier.close()
    root.handlers[:] = [handler]
    _apply_level()
    logging.captureWarnings(True)
    # Never read by our lines; leaving them out makes an event cheaper.
    logging.logThreads = False
    logging.logMultiprocessing = False


class _Copy(logging.Filter):
    """Writes the first line of each event that is logged to a second place, as text, and lets it pass."""

    def __init__(self, role: str, write: Callable[[str], object]) -> None:
        super().__init__()
        self._formatter = LineFormatter(role)
        self._write = write

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            self._write(self._formatter.format(record).partition("\n")[0])
        except Exception:  # a line that cannot be copied is logged all the same
            return True
        return True


def copy_to(write: Callable[[str], object]) -> None:
    """Write each line of this process to a second place as well, whatever the format of the log is.

    Args:
        write: called in the thread that logs, one call at a time. It must not wait, and not log.
    """
    for handler in logging.getLogger().handlers:
        if _style.limit in handler.filters:
            handler.addFilter(_Copy(_style.role, write))


def _handler(role: str) -> logging.Handler:
    for_systemd = _standard_error_is_the_journal()
    formatter: logging.Formatter
    if _style.form == JSON:
        # Imported where it is used: the table of events is not needed for text.
        from appliance.journal_json import JsonFormatter

        formatter = JsonFormatter(role)
    else:
        formatter = LineFormatter(role, for_systemd=for_systemd)
    handler: logging.Handler | None = None
    if for_systemd:
        from appliance.journal_systemd import opened

        handler = opened(role, formatter if _style.form == JSON else None)
    if handler is None:
        handler = StandardErrorHandler()
    handler.setFormatter(formatter)
    return handler


def set_levels(levels: Mapping[str, str]) -> bool:
    """Log from these levels on from now on: kind of process, or ROOT → level. Children begin with them.

    Return whether they are others than before.
    """
    if levels == _style.levels:
        return False
    _style.levels = dict(levels)
    _apply_level()
    return True


def level_of(kind: str, levels: Mapping[str, str]) -> str:
    """Return the level of a kind of process, such as `netproc`."""
    return levels.get(kind) or levels.get(ROOT) or DEFAULT_LEVEL


def _apply_level() -> None:
    kind = _style.role.partition(" ")[0]
    level = LEVELS.get(level_of(kind, _style.levels), logging.INFO)
    for name, wanted in ((_OWN, level), (None, max(level, logging.INFO))):
        # A child has its parent's level: setting it again would visit every logger, and copy the pages of all of them.
        if (logger := logging.getLogger(name)).level != wanted:
            logger.setLevel(wanted)


def tell_left_out() -> None:
    """Say how many lines were left out, before the process ends."""
    if _style.limit is not None:
        _style.limit.tell()


def tell_left_out_by(after_ms: Callable[[int, Callable[[], None]], object]) -> None:
    """Say how many lines were left out when the window is over, by a timer of the process.

    Without it, that is said with the next line.

    Args:
        after_ms: calls an action after so many milliseconds. Only the thread that calls this one uses it.
    """
    limit, thread = _style.limit, threading.get_ident()
    if limit is None:
        return

    def arm() -> None:
        if threading.get_ident() == thread:
            after_ms(WINDOW_MS, limit.tell)

    limit.on_first_left_out = arm


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
