"""Templates and script: everything is escaped, and a form gives back what was typed into it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources
from typing import Final

import pytest

from appliance.console.rendering import Renderer

ROOM: Final = resources.files("appliance.console")
TEMPLATES: Final = sorted(each.name for each in (ROOM / "templates").iterdir())
TYPED: Final = "\r\n retention.ms=1\r\nx=\u200d\u202e</textarea><script>&\"'"


class Fields(HTMLParser):
    """Values of the fields of a page, as a browser sends them: it ends the lines of a text area with CR LF."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.values: dict[str, str] = {}
        self._area = ""
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if tag == "input":
            self.values[found["name"] or ""] = found.get("value") or ""
        if tag == "textarea":
            self._area = found["name"] or ""
            self.values[self._area] = ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            text = self.values[self._area].replace("\r\n", "\n").removeprefix("\n")
            self.values[self._area] = text.replace("\n", "\r\n")
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.values[self._area] += data


def test_a_form_that_is_shown_again_has_what_was_typed() -> None:
    page = Renderer().render(
        "new_topic.html",
        visit=None,
        notices=[],
        csrf="",
        text="no",
        fields={"configs": TYPED, "name": "a\u200db"},
    )
    found = Fields(page)
    assert found.values["configs"] == TYPED
    assert found.values["name"] == "a\u200db"
    assert found.tags.count("script") == 1


@pytest.mark.parametrize("name", TEMPLATES)
def test_no_template_switches_the_escaping_off(name: str) -> None:
    text = (ROOM / "templates" / name).read_text(encoding="utf-8")
    assert not re.search(r"\|\s*safe|autoescape|Markup|<script(?! src=)| on\w+=| style=|javascript:", text)
    # An attribute without quotes ends at the first space of a value.
    assert not re.search(r"\s[\w-]+=\{[{%]", text)


def test_the_script_makes_no_markup_of_text() -> None:
    script = (ROOM / "assets" / "console.js").read_text(encoding="utf-8")
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(", script)
