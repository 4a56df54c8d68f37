"""`--yes`: what a command asks before it removes something that nobody can bring back."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

from appliance.cli.output import say

NAMES_MAX: Final = 20

yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")


def require_terminal(command: str) -> None:
    """Raise click.UsageError where nobody can be asked."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{command} asks for confirmation; without a terminal give --yes")


def require_yes(command: str, question: str, *, names: Sequence[str] = ()) -> None:
    """Return when the person at the terminal agrees.

    Args:
        command: as it was called, for the error.
        question: such as `Delete this group?`.
        names: shown above the question.

    Raises:
        click.UsageError: there is no terminal to ask at.
        click.Abort: the person does not agree.
    """
    require_terminal(command)
    for name in names[:NAMES_MAX]:
        say(f"  {name}", err=True)
    if len(names) > NAMES_MAX:
        click.echo(f"  … and {len(names) - NAMES_MAX} more", err=True)
    click.confirm(question, abort=True, err=True)
