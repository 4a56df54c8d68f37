"""What became of each thing that a command was asked to do: a line each, or one JSON document with `--json`."""

from __future__ import annotations

from typing import Any, Final

import click

from appliance.cli.output import plain_lines, print_json, say

NAMES_MAX: Final = 6
"""Things that a line about a refusal names; the rest are counted."""


class Outcomes:
    """Collects the outcomes of one command. The exit code is 1 when anything was refused.

    As JSON it is an array, one object for each thing, with stable keys: what it is (the keys of `identity`), `result`,
    and `error`, which is null or the reason.
    """

    __slots__ = ("_as_json", "_refused", "_rows")

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._refused: dict[str, list[str]] = {}
        self._rows: list[dict[str, Any]] = []

    def done(self, identity: dict[str, Any], result: str, line: str, **facts: object) -> None:
        """One thing is done. `result` is a word for programs, `line` a sentence for people."""
        self._rows.append({**identity, "result": result, "error": None, **facts})
        if not self._as_json:
            say(line)

    def refused(self, identity: dict[str, Any], what: str, reason: object) -> None:
        """One thing was refused; `what` names it to a person."""
        self._rows.append({**identity, "result": "refused", "error": str(reason)})
        self._refused.setdefault(str(reason), []).append(what)

    def finish(self) -> int:
        """Prints the JSON, or a line for each reason of a refusal. Returns the exit code."""
        if self._as_json:
            print_json(self._rows)
            return 1 if self._refused else 0
        for reason, names in self._refused.items():
            shown = ", ".join(names[:NAMES_MAX])
            more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
            click.echo(f"appliance: {plain_lines(f'{shown}{more}: {reason}')}", err=True)
        return 1 if self._refused else 0
