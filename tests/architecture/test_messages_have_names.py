"""Fields of messages, answers, operations and batch headers are read by name: `message[ROW]`, never `message[5]`."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
POSITIONAL = re.compile(r"\b(message|answer|header|operation)\[[0-9]+\]")
REFUSAL = re.compile(r"-1,\s*-1,\s*-1,\s*0,\s*0,\s*0,\s*-1,\s*-1")


def sources() -> list[Path]:
    return [path for room in ("appliance", "tests") for path in sorted((ROOT / room).rglob("*.py"))]


def test_no_field_of_a_message_is_read_by_its_position() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sources()
        if path != Path(__file__)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if POSITIONAL.search(line)
    ]
    assert not found, "\n".join(found)


def test_a_refusal_is_packed_in_one_place() -> None:
    packed = [
        path for path in sources() if path != Path(__file__) and REFUSAL.search(path.read_text("utf-8"))
    ]
    assert packed == []


def test_a_positional_read_would_be_found() -> None:
    assert POSITIONAL.search("if answer[2]:")
    assert REFUSAL.search("(op, 0, error, 1, 2, 3, -1, -1, -1, 0, 0, 0, -1, -1)")
    assert not POSITIONAL.search("header[H_CRC]")
