"""`--watch`: a command's output again and again, until Ctrl-C."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

import click

_TOP_OF_SCREEN: Final = "\x1b[H\x1b[2J"

watch_option = click.option(
    "--watch",
    "watch_s",
    metavar="[SECONDS]",
    is_flag=False,
    flag_value=2.0,
    type=click.FloatRange(min=0.1),
    help="Repeat after this many seconds (2 if not given), until Ctrl-C.",
)


def watched(show: Callable[[], None], watch_s: float | None) -> None:
    """Calls `show` once, or every `watch_s` seconds; on a terminal each picture replaces the one before."""
    if watch_s is None:
        show()
        return
    while True:
        if sys.stdout.isatty():
            click.echo(_TOP_OF_SCREEN, nl=False)
        show()
        sys.stdout.flush()
        time.sleep(watch_s)
