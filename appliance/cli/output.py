"""How commands print: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, BinaryIO, Final

import click

from appliance.extras import is_installed

if TYPE_CHECKING:
    from appliance.cli.output_file import OutputFile

LONG_ROWS: Final = 500
"""Longer tables are printed line by line. rich measures and wraps each cell: 120,000 rows took it 57 s."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON with stable keys.")


def print_json(value: object) -> None:
    """One JSON document, on one line in a pipe and indented on a terminal."""
    if sys.stdout.isatty():
        click.echo(terminal_json(json.dumps(value, indent=2, ensure_ascii=False)))
    else:
        click.echo(json.dumps(value, ensure_ascii=False))


def print_table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()
) -> None:
    """A table without lines: headings above, columns aligned, those named in `right` to the right.

    In a pipe no column is cut or wrapped, whatever its length, so that tools can split it. On a terminal the cells of
    short tables are folded to its width, where rich is installed; the broker alone does not install it (decision 0090).
    """
    if not sys.stdout.isatty() or len(rows) > LONG_ROWS or not is_installed("rich"):
        _print_lines(headings, rows, right)
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(cell)) for cell in row))
    Console(highlight=False).print(table)


def _print_lines(headings: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str]) -> None:
    """Write one line after the other. Nothing is kept of a line, so the first one comes when all are measured."""
    widths = [len(heading) for heading in headings]
    for row in rows:
        for index, cell in enumerate(row):
            width = len(_shown(cell))
            widths[index] = max(widths[index], width)
    layout = "  ".join(
        f"{{:{'>' if heading in right else '<'}{width}}}"
        for heading, width in zip(headings, widths, strict=True)
    )
    out = sys.stdout
    out.write(layout.format(*headings).rstrip() + "\n")
    for row in rows:
        out.write(layout.format(*map(_shown, row)).rstrip() + "\n")
    out.flush()


def _shown(cell: object) -> str:
    return "-" if cell is None else plain(str(cell))


def plain(text: str) -> str:
    """`text` with escapes for what a terminal would obey or a table would break at: clients choose names of groups."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


def plain_lines(text: str) -> str:
    """`plain`, but lines stay lines, and tabs tabs."""
    return "\n".join("\t".join(map(plain, line.split("\t"))) for line in text.split("\n"))


def terminal_json(text: str) -> str:
    """`text`, a JSON document, with JSON's escapes for what would control a terminal: C1 controls, marks of direction.

    JSON itself escapes only what lies below U+0020.
    """
    return "\n".join(
        line
        if line.isprintable()
        else "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in line)
        for line in text.split("\n")
    )


def say(text: str, *, err: bool = False) -> None:
    """Print lines with names in them that a client may have chosen.

    Args:
        err: to standard error.
    """
    click.echo(plain_lines(text), err=err)


class TerminalSink:
    """A terminal that is given bytes of records: it shows what would control it as escapes.

    Args:
        as_json: records are JSON, and so are the escapes.
    """

    __slots__ = ("_escaped", "_terminal")

    def __init__(self, terminal: BinaryIO | OutputFile, *, as_json: bool = False) -> None:
        self._terminal = terminal
        self._escaped = terminal_json if as_json else plain_lines

    def write(self, data: bytes) -> None:
        """Write one record, as text. Bytes that are no UTF-8 are escapes, too."""
        self._terminal.write(self._escaped(data.decode(errors="backslashreplace")).encode())

    def flush(self) -> None:
        """Show it now."""
        self._terminal.flush()


def shown_duration(duration_ms: int) -> str:
    """`250 ms`, `4.2 s`, `3 min 5 s`, `2 h 10 min` or `5 d 3 h`: a duration for people."""
    if duration_ms < 1000:
        return f"{duration_ms} ms"
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.1f} s"
    seconds = duration_ms // 1000
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    minutes = seconds // 60
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // (24 * 60)} d {minutes // 60 % 24} h"


def shown_time(timestamp_ms: int) -> str:
    """`2026-01-31T12:00:00Z`, in UTC; the number itself where it lies outside of the calendar."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


def shown_bytes(amount: float) -> str:
    """`1.5 MiB`: a size for people."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
