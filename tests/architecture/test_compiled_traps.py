"""What means something else once mypyc has compiled it (decision 0013) stands nowhere in the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import appliance

SOURCES = sorted(Path(appliance.__file__).parent.rglob("*.py"))


def test_no_module_asks_for_the_cause_of_an_exception() -> None:
    """A compiled module raises without one."""
    asked = [
        f"{path}:{node.lineno}"
        for path in SOURCES
        if "__cause__" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr == "__cause__"
    ]
    assert SOURCES
    assert not asked
