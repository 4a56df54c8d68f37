"""Times that a person writes in a flag. A time without an offset is UTC, as all times that commands print."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

import click

_AGO: Final = re.compile(r"(\d{1,9})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def utc_ms(text: str) -> int:
    """Return the milliseconds since 1970 of a time in ISO 8601.

    Raises:
        ValueError: it is none.
    """
    found = datetime.fromisoformat(text)
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def moment(_context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a time of a flag, or a time ago such as 30m, in ms since 1970; None without a text."""
    if not text:
        return None
    if ago := _AGO.fullmatch(text):
        return int(time.time() * 1000) - int(ago[1]) * _SECONDS[ago[2]] * 1000
    try:
        return utc_ms(text)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no time: give 2026-03-01T12:00:00Z, 2026-03-01 (UTC), or 30m for 30 minutes ago",
            param=parameter,
        ) from None
