"""docs/message-audit.md names what a program needs to use the audit."""

from __future__ import annotations

from pathlib import Path

from appliance.message_audit.batches import ID_HEADER, TIME_HEADER
from appliance.message_audit.entry import Kind

PAGE = Path(__file__).parents[2] / "docs" / "message-audit.md"


def test_the_page_has_a_row_for_each_kind_and_each_header() -> None:
    first_cells = {
        line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("|")
    }
    wanted = [kind.value for kind in Kind if kind is not Kind.POSITIONS] + [ID_HEADER, TIME_HEADER]
    assert [name for name in wanted if f"`{name}`" not in first_cells] == []
