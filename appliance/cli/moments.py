"""Times in flags, as `views/moments.py` reads them."""

from __future__ import annotations

import click

from appliance.views.moments import FORMS, moment_ms


def moment(_context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """Return a time of a flag, or a time ago such as 30m, in ms since 1970; None without a text."""
    if not text:
        return None
    try:
        return moment_ms(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time: give {FORMS}", param=parameter) from None
