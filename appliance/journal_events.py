"""The events that the appliance logs: a stable name and named values for each line (docs/logs.md).

The text of a line stands where it is logged, and here. A line is recognised by its text, so that logging costs nothing
but the text while nobody wants more: this table is loaded only where lines become JSON, or fields of systemd's journal.

    logged with values   `_logger.error("flush failed: %s", fault)`: its template is looked up
    logged as a text     `warn(f"partition {name}: {fault}")`: the templates are tried, the longest first

`tests/architecture/test_log_lines.py` finds every line in the sources, and fails for one that is not here. An event
keeps its name and the names of its values when its text changes: programs look for them.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from appliance.journal_control_events import CONTROL_EVENTS
from appliance.journal_event import LogEvent
from appliance.journal_log_events import LOG_EVENTS

OTHER: Final = "other"
"""The event of a line that is not in the table: of a library, or with a text that its caller made."""
RESERVED: Final = frozenset(
    {"time", "level", "process", "pid", "event", "message", "logger", "suppressed", "traceback"}
)
"""Keys of every JSON line; no value of an event has such a name."""

_VALUE: Final = re.compile(r"%(?:\.\d+)?[sdrxf]")
_SUPPRESSED: Final = re.compile(r" \(and (\d+) more like it\)\Z")


EVENTS: Final[tuple[LogEvent, ...]] = tuple(
    sorted((*CONTROL_EVENTS, *LOG_EVENTS), key=lambda each: each.name)
)
"""Every kind of line, by name."""

_BY_TEMPLATE: Final = {each.template: each for each in EVENTS}


def _letters(template: str) -> int:
    return len(_VALUE.sub("", template))


_LETTERS_MIN: Final = 3
_PIECES: Final = [
    (each, tuple(piece.replace("%%", "%") for piece in _VALUE.split(each.template)))
    for each in sorted(EVENTS, key=lambda each: -_letters(each.template))
    if _letters(each.template) >= _LETTERS_MIN
]
"""Each event with the text between its values, the longest first."""


def _values(text: str, pieces: tuple[str, ...]) -> list[str] | None:
    """Return what stands between the pieces, or None. It takes each piece where it comes first and never goes back, so
    its time is linear: clients decide parts of the text, and a regular expression could take hours for some.
    """
    first, *between = pieces
    if not between:
        return [] if text == first else None
    last = between.pop()
    at, end = len(first), len(text) - len(last)
    if not text.startswith(first) or end < at or not text.endswith(last):
        return None
    found = []
    for piece in between:
        next_at = text.find(piece, at, end)
        if next_at < 0:
            return None
        found.append(text[at:next_at])
        at = next_at + len(piece)
    return [*found, text[at:end]]


def described(record: logging.LogRecord, text: str) -> tuple[str, dict[str, Any]]:
    """Return the event of a line and its values by name; numbers stay numbers.

    Args:
        record: the line.
        text: its whole text.
    """
    values: dict[str, Any] = {}
    if (suppressed := _SUPPRESSED.search(text)) is not None:
        values["suppressed"] = int(suppressed[1])
        text = text[: suppressed.start()]
    given = record.args
    event = _BY_TEMPLATE.get(record.msg) if isinstance(record.msg, str) else None
    if event is not None and isinstance(given, tuple) and len(given) == len(event.fields):
        values |= zip(event.fields, map(_plain, given), strict=True)
        return event.name, values
    for event, pieces in _PIECES:
        if (found := _values(text, pieces)) is not None:
            values |= zip(event.fields, map(_number, found), strict=True)
            return event.name, values
    return OTHER, values


def _plain(value: object) -> Any:
    return value if isinstance(value, int | float) else str(value)


def _number(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
