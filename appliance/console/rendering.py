"""Templates and assets. Everything that a page shows is escaped, whatever it is.

Templates are Jinja2's with autoescape on, so a template can show no markup of a record, a topic or a group. `_shown`
goes over each value before that: control characters, and marks that turn the direction of text, become U+FFFD. The
fields of a form show what a person has typed by the filter `again`, which escapes and changes nothing, because the
browser sends them back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import resources
from typing import Any, Final
from urllib.parse import quote

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup, escape

from appliance.console.decoding import printable
from appliance.console.server import Response

_ROOM: Final = "appliance.console"
CONTENT_TYPES: Final[Mapping[str, str]] = {
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_MAX_AGE: Final = "public, max-age=31536000, immutable"
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


class Renderer:
    """All templates and assets, read once."""

    def __init__(self) -> None:
        room = resources.files(_ROOM)
        self._assets: dict[str, bytes] = {
            each.name: each.read_bytes() for each in (room / "assets").iterdir() if each.is_file()
        }
        digest = hashlib.sha256(b"".join(self._assets[name] for name in sorted(self._assets)))
        version = digest.hexdigest()[:12]
        templates = room / "templates"
        self._environment = Environment(
            loader=FunctionLoader(lambda name: (templates / name).read_text(encoding="utf-8")),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters.update(
            size=size,
            amount=amount,
            duration=duration,
            time=shown_time,
            url=lambda text: quote(str(text), safe=""),
            share=share,
            again=again,
        )
        self._environment.globals["asset"] = lambda name: f"/assets/{name}?{version}"

    def render(self, template: str, **values: Any) -> str:
        """Return a page."""
        return self._environment.get_template(template).render(**values)

    def asset(self, name: str) -> Response | None:
        """Return a file of the package; None if there is no such one."""
        body = self._assets.get(name)
        content_type = CONTENT_TYPES.get(name.rpartition(".")[2])
        if body is None or content_type is None:
            return None
        return Response(200, body, content_type, (("Cache-Control", _MAX_AGE),))


def _shown(value: Any) -> Any:
    # A subclass of str is markup that a template has made, and escaped, already.
    return printable(value) if type(value) is str else value


def again(value: object) -> Markup:
    """Return a value for a field of a form, escaped and otherwise unchanged, because the browser sends it back."""
    return escape(str(value))


def size(count: float | None) -> str:
    """Return bytes with a unit: `1.5 MiB`."""
    if count is None or count < 0:
        return "–"
    value, unit = float(count), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 or value >= 100 else f"{value:.1f} {_UNITS[unit]}"


def amount(count: int | None) -> str:
    """Return a number with narrow spaces, at which no line ends, between thousands."""
    return "–" if count is None else f"{count:,}".replace(",", "\u202f")


def duration(seconds: float | None) -> str:
    """Return a time span in its largest whole units: `2 d 3 h`; a dash where it is not known."""
    if seconds is None:
        return "–"
    left = round(seconds)
    parts = []
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def share(value: float) -> str:
    """Return a share as percent."""
    return f"{100 * value:.1f} %"


def shown_time(time_ms: int | None) -> str:
    """Return a time in UTC with milliseconds; a dash where there is none."""
    if time_ms is None or time_ms < 0:
        return "–"
    try:
        moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(time_ms)
    return moment.strftime("%Y-%m-%d %H:%M:%S.") + f"{time_ms % 1000:03d} UTC"
