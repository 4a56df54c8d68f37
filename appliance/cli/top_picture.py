"""The picture of `appliance top` on a terminal: it is never larger than the terminal, and says what it leaves out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from rich.console import Group
from rich.table import Table
from rich.text import Text

from appliance.cli.top import PROCESS_RIGHT, group_table, headline, process_table, topic_table

if TYPE_CHECKING:
    from rich.console import ConsoleDimensions, RenderableType

HINT: Final = "q ends"
_BUSY: Final = 0.1
"""A process with less idle time than this is drawn in yellow."""
_LINES_OF_FRAME: Final = 2
"""The headline, and the hint below."""
_LINES_OF_TABLE: Final = 2
"""A free line and the headings."""
_LEAST_ROWS: Final = 3


def waiting() -> RenderableType:
    """Return what is shown until the first interval is over."""
    return Text("measuring …", style="dim")


def picture(told: dict[str, Any], size: ConsoleDimensions) -> RenderableType:
    """Return a picture of at most `size`."""
    left = size.height - _LINES_OF_FRAME
    shown: list[RenderableType] = [
        _one_line(headline(told), style="bold" if told["error"] is None else "bold red")
    ]
    headings, processes = process_table(told)
    tables = [
        (headings, processes, PROCESS_RIGHT, _styles(told)),
        *((names, rows, names[1:], ()) for names, rows in (topic_table(told), group_table(told))),
    ]
    tables = [each for each in tables if each[1]]
    for number, (names, rows, right, styles) in enumerate(tables):
        others = sum(_LINES_OF_TABLE + min(len(later[1]), _LEAST_ROWS) + 1 for later in tables[number + 1 :])
        room = left - others - _LINES_OF_TABLE
        if room < 1:
            room = left - _LINES_OF_TABLE
            if room < 1:
                break
        fits = len(rows) if len(rows) <= room else room - 1
        shown += [Text(""), _table(names, rows[: max(0, fits)], right, styles)]
        left -= _LINES_OF_TABLE + max(0, fits)
        if fits < len(rows):
            shown.append(Text(f"… and {len(rows) - max(0, fits)} more", style="dim"))
            left -= 1
    shown.append(Text(HINT, style="dim"))
    return Group(*shown)


def _styles(told: dict[str, Any]) -> tuple[str, ...]:
    """Return the style of each process's row."""
    return tuple(
        "red"
        if each["pid"] is None or each["state"] not in ("running", "starting")
        else "yellow"
        if each["idle"] is not None and each["idle"] < _BUSY
        else ""
        for each in told["processes"]
    )


def _table(
    names: Sequence[str], rows: Sequence[Sequence[object]], right: Sequence[str], styles: Sequence[str]
) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in names:
        table.add_column(
            name, justify="right" if name in right else "left", no_wrap=True, overflow="ellipsis"
        )
    for number, row in enumerate(rows):
        style = styles[number] if number < len(styles) else ""
        table.add_row(*(_one_line("-" if cell is None else str(cell)) for cell in row), style=style)
    return table


def _one_line(text: str, *, style: str = "") -> Text:
    """Return a text as it is: clients choose names of groups, so nothing in it is markup or a control character."""
    return Text(
        "".join(character if character.isprintable() else "�" for character in text),
        style=style,
        no_wrap=True,
        overflow="ellipsis",
    )
