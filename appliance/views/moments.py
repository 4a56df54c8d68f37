"""Times that a person writes. A time without an offset is UTC, as all times that commands and pages show."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Final

FORMS: Final = "2026-03-01T12:00:00Z, 2026-03-01 (UTC), or 30m for 30 minutes ago"
_AGO: Final = re.compile(r"(\d{1,9})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


def utc_ms(text: str) -> int:
    """Return the milliseconds since 1970 of a time in ISO 8601.

    Raises:
        ValueError: it is none.
    """
    found = datetime.fromisoformat(text)
    try:
        return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)
    except OverflowError:
        raise ValueError(f"{text!r} is too far away") from None


def moment_ms(text: str) -> int:
    """Return the milliseconds since 1970 of a time, or of a time ago such as 30m.

    Raises:
        ValueError: the text is neither.
    """
    if text.isascii() and (ago := _AGO.fullmatch(text)):
        return int(time.time() * 1000) - int(ago[1]) * _SECONDS[ago[2]] * 1000
    return utc_ms(text)
