"""Find the lines that the appliance logs, and write docs/logs.md from their table (appliance/journal_events.py).

    .venv/bin/python -m scripts.log_lines docs/logs.md

A line is a call of a method of a logger, or of a rate limit of one (`complain`, `say_closed`, `warn` and the like). Its
template is the text with `%s` for each value, whether the source has an f-string or arguments.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
_LEVELS: Final = {"debug", "info", "warning", "error", "exception", "critical"}
_LOGGER: Final = re.compile(r"_?log(ger)?")
_SAYS: Final = re.compile(r"_?(complain|say_closed|say_refused|say_full|say|tell|warn|complain_of_limits)")
_LEFT_OUT: Final = ("cli", "testing", "control/adoption")
"""Rooms of commands: what they print is for the person who ran them."""


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """A call that logs: where it is, and its text; None if the text comes from elsewhere."""

    place: str
    template: str | None
    values: int


def logged_lines(root: Path = ROOT) -> Iterator[LoggedLine]:
    """Yield every call in the sources of the broker that logs a line, in the order of the files."""
    for path in sorted((root / "appliance").rglob("*.py")):
        relative = path.relative_to(root)
        inside = relative.relative_to("appliance")
        if any(inside.is_relative_to(each) for each in _LEFT_OUT) or inside.name == "journal_events.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and node.args and (given := _text_of(node)) is not None:
                template, values = _template(given)
                own = 0 if template is None else values + len(node.args) - 1 - node.args.index(given)
                yield LoggedLine(f"{relative}:{node.lineno}", template, own)


def _text_of(call: ast.Call) -> ast.expr | None:
    """Return the text of a call that logs, or None."""
    name = call.func
    if not isinstance(name, ast.Attribute | ast.Name):
        return None
    called = name.attr if isinstance(name, ast.Attribute) else name.id
    if isinstance(name, ast.Attribute) and called in _LEVELS:
        of = name.value
        owner = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
        return call.args[0] if _LOGGER.fullmatch(owner) else None
    return call.args[0] if _SAYS.fullmatch(called) else None


def _template(text: ast.expr) -> tuple[str | None, int]:
    """Return the template of a text, and how many values an f-string brings itself."""
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        return text.value, 0
    if isinstance(text, ast.JoinedStr):
        parts = [
            str(part.value).replace("%", "%%") if isinstance(part, ast.Constant) else "%s"
            for part in text.values
        ]
        return "".join(parts), sum(isinstance(part, ast.FormattedValue) for part in text.values)
    return None, 0


def page(text_before: str) -> str:
    """Return docs/logs.md: what stands before the table, and the table."""
    from appliance.journal_events import EVENTS

    lines = [text_before.rstrip(), "", TABLE_MARK, "", "| event | text | values |", "|---|---|---|"]
    for event in EVENTS:
        values = ", ".join(f"`{name}`" for name in event.fields) or "–"
        lines.append(f"| `{event.name}` | {_shown(event.template, event.fields)} | {values} |")
    return "\n".join(lines) + "\n"


TABLE_MARK: Final = "<!-- The table is generated: python -m scripts.log_lines docs/logs.md -->"


def _shown(template: str, fields: tuple[str, ...]) -> str:
    """Return a template with the names of its values, for a table."""
    names = iter(fields)
    text = re.sub(r"%(?:\.\d+)?[sdrxf]", lambda _: f"*{next(names)}*", template).replace("%%", "%")
    return text.replace("|", "\\|").replace("<", "&lt;")


def main() -> None:
    """Write the table of the page that is named."""
    path = Path(sys.argv[1])
    before = path.read_text(encoding="utf-8").partition(TABLE_MARK)[0]
    path.write_text(page(before), encoding="utf-8")


if __name__ == "__main__":
    main()
