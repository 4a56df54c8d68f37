"""What means something else once mypyc has compiled it (decision 0013) stands nowhere in the sources."""

from __future__ import annotations

import ast
from pathlib import Path

import appliance
from scripts.hot_modules import ROOT, hot_modules

SOURCES = sorted(Path(appliance.__file__).parent.rglob("*.py"))
WITHOUT_EFFECT = {"abs", "bisect_left", "bisect_right", "int", "len", "max", "min"}


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


def called_twice(text: str) -> list[int]:
    """Lines that read a slice whose bounds call what may have an effect.

    mypyc 2.4.1 calls it twice where what is sliced is no list, tuple, string or bytes. `room = room[read(room) :]` read
    two pieces and went on by the length of the second.
    """
    return [
        node.lineno
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)
        for bound in (node.slice.lower, node.slice.upper)
        if bound is not None
        for part in ast.walk(bound)
        if isinstance(part, ast.NamedExpr | ast.Await | ast.Yield)
        or (isinstance(part, ast.Call) and ast.unparse(part.func) not in WITHOUT_EFFECT)
    ]


def test_no_slice_is_bounded_by_a_call_that_may_have_an_effect() -> None:
    assert called_twice("room = room[read(room) :]\ndata[: len(data)]\ndata[(at := 1) :]") == [1, 3]
    compiled = [*hot_modules(), *hot_modules("appliance_client")]
    found = {name: lines for name in compiled if (lines := called_twice((ROOT / name).read_text()))}
    assert not found
