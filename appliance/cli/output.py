"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Final

import click

from appliance.extras import is_installed

PIPE_WIDTH: Final = 10_000

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")


def print_json(value: object) -> None:
    """One JSON document, on one line in a pipe and indented on a terminal."""
    indent = 2 if sys.stdout.isatty() else None
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False))


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """A table without lines: headings above, columns aligned, those named in `right` to the right.

    In a pipe no column is cut or wrapped, whatever its length, so that tools can split it.
    """
    shown = [["-" if cell is None else str(cell) for cell in row] for row in rows]
    if not is_installed("rich"):
        _print_plainly(headings, shown, right)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in shown:
        table.add_row(*map(Text, row))
    console.print(table)


def _print_plainly(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]) -> None:
    """Print the same columns without rich, which the broker alone does not install (decision 0090)."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    for row in (headings, *rows):
        cells = [
            cell.rjust(width) if heading in right else cell.ljust(width)
            for heading, cell, width in zip(headings, row, widths, strict=True)
        ]
        click.echo("  ".join(cells).rstrip())


def shown_bytes(amount: float) -> str:
    """`1.5 MiB`: a size for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
