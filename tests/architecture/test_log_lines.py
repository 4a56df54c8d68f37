"""Every line that the broker logs is in the table of events, and the page shows the table."""

from __future__ import annotations

import re

import pytest

from appliance.journal_catalog import EXPLANATIONS, message_id
from appliance.journal_events import EVENTS, RESERVED
from scripts.log_catalog import catalog
from scripts.log_lines import ROOT, TABLE_MARK, LoggedLine, logged_lines, page

_NAME = re.compile(r"[a-z]+(-[a-z]+)*")
_FIELD = re.compile(r"[a-z]+(_[a-z]+)*")
_SECRETS = re.compile(r"password|secret_value|stored_key|token_hmac|record_value|record_key")


@pytest.fixture(scope="module")
def logged() -> list[LoggedLine]:
    """Every line of the sources, looked for once."""
    return list(logged_lines())


def test_every_line_of_the_sources_is_an_event_with_as_many_values(logged: list[LoggedLine]) -> None:
    events = {event.template: event for event in EVENTS}
    lines = [line for line in logged if line.template is not None]
    assert len(lines) > 150, "the search has found the lines"
    missing = [f"{line.place}: {line.template!r}" for line in lines if line.template not in events]
    assert not missing, "add these to appliance/journal_control_events.py or journal_log_events.py: " + str(
        missing
    )
    wrong = [
        line.place
        for line in lines
        if line.template is not None and line.values != len(events[line.template].fields)
    ]
    assert not wrong


def test_every_event_is_logged_somewhere(logged: list[LoggedLine]) -> None:
    templates = {line.template for line in logged}
    texts = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "appliance").rglob("*.py")
        if not path.name.endswith("_events.py")
    )
    made_elsewhere = {"state-served-again", "slow-request", "lines-lost", "lines-suppressed"}
    unused = [
        event.name for event in EVENTS if event.template not in templates and event.name not in made_elsewhere
    ]
    assert not unused
    for start in ("is replayed, its requests are served again", "slow request: ", "lines were lost, because"):
        assert start in texts


def test_names_are_stable_words_and_differ() -> None:
    names = [event.name for event in EVENTS]
    assert len(set(names)) == len(names)
    assert len({event.template for event in EVENTS}) == len(EVENTS)
    for event in EVENTS:
        assert _NAME.fullmatch(event.name), event.name
        assert len(set(event.fields)) == len(event.fields), event.name
        assert not RESERVED & set(event.fields), event.name
        for field in event.fields:
            assert _FIELD.fullmatch(field), (event.name, field)
            assert not _SECRETS.fullmatch(field), (event.name, field)


def test_page_shows_the_table() -> None:
    text = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")
    assert text == page(text.partition(TABLE_MARK)[0]), "run: python -m scripts.log_lines docs/logs.md"


def test_catalog_explains_events_that_there_are_with_their_values_and_is_written() -> None:
    events = {event.name: event for event in EVENTS}
    assert set(EXPLANATIONS) <= set(events)
    for name, (subject, text) in EXPLANATIONS.items():
        fields = set(re.findall(r"@([A-Z_]+)@", subject + text))
        assert fields <= {field.upper() for field in events[name].fields}, name
    assert len({message_id(name) for name in events}) == len(events)
    written = (ROOT / "deploy" / "systemd" / "appliance.catalog").read_text(encoding="utf-8")
    assert written == catalog(), "run: python -m scripts.log_catalog deploy/systemd/appliance.catalog"
