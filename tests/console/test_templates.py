"""Rules of the templates and the script that a reader could break without seeing it (appliance/console/README.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from jinja2 import UndefinedError

from appliance.console.rendering import Renderer, amount, shown_time, size
from appliance.console.routes import ROUTES

ROOM: Final = Path(__file__).parents[2] / "appliance" / "console"
TEMPLATES: Final = sorted((ROOM / "templates").glob("*.html"))
HOSTILE: Final = "\"'><script>alert(1)</script>\u202e"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.name)
def test_no_template_turns_escaping_off_or_holds_a_script_or_style(template: Path) -> None:
    text = template.read_text()
    assert not re.search(r"\|\s*(safe|tojson|xmlattr)|autoescape|Markup", text)
    assert not re.search(r"\son[a-z]+=|\sstyle=|javascript:|<style", text)
    assert not re.search(r"<script(?! src=\"{{ asset\()", text)
    assert "http://" not in text
    assert "https://" not in text


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda each: each.name)
def test_every_form_that_changes_something_sends_the_secret(template: Path) -> None:
    for form in re.findall(r"<form method=\"post\".*?</form>", template.read_text(), re.DOTALL):
        assert 'name="csrf" value="{{ csrf }}"' in form or 'action="/login"' in form


def test_the_script_writes_text_only() -> None:
    script = (ROOM / "assets" / "console.js").read_text()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "http",
    ):
        assert word not in script


def test_every_handler_that_changes_something_is_a_post() -> None:
    for method, path in ROUTES:
        assert method in {"GET", "POST"}
        assert path.startswith("/")
    assert {path for method, path in ROUTES if method == "POST"} >= {"/topic/delete", "/group/reset"}


def test_values_are_escaped_and_marks_are_not_shown() -> None:
    page = Renderer().render("error.html", visit=None, notices=[("done", HOSTILE)], text=HOSTILE)
    assert "<script>" not in page
    assert page.count("&#34;&#39;&gt;&lt;script&gt;alert(1)&lt;/script&gt;�") == 2


def test_a_name_that_no_handler_gives_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        Renderer().render("error.html", visit=None, notices=[])


def test_only_files_of_the_package_are_assets() -> None:
    renderer = Renderer()
    script = renderer.asset("console.js")
    assert script is not None
    assert script.content_type.startswith("text/javascript")
    for name in ("../main.py", "console.html", "", ".", "console.js/../console.css"):
        assert renderer.asset(name) is None


def test_numbers_are_readable() -> None:
    assert [size(each) for each in (0, 1023, 1536, 1 << 20, 150 << 30, -1, None)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "1.0 MiB",
        "150 GiB",
        "–",
        "–",
    ]
    assert amount(1234567) == "1 234 567"
    assert shown_time(0) == "1970-01-01 00:00:00.000 UTC"
    assert shown_time(-1) == "–"
    assert shown_time(1 << 62) == str(1 << 62)
