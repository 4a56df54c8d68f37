"""The wiring of worker and replica: one listener instead of a callable for each event (decision 0087)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import appliance

ROOT = Path(appliance.__file__).parent
HOSTS = ("ioproc", "replicas", "partition_host")
CALLABLES_MAX = 20
WORKER_LINES_MAX = 40
WORKER_ATTRIBUTES_MAX = 15
CALLED_BACK = {"supervised.py"}
"""Three processes obey the supervisor through it."""


def constructors(path: Path) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ClassDef):
            for each in node.body:
                if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                    yield node.name, each


def callables(path: Path) -> list[str]:
    return [
        f"{path.parent.name}/{path.name}: {name}({argument.arg})"
        for name, made in constructors(path)
        for argument in (*made.args.args, *made.args.kwonlyargs)
        if argument.annotation is not None and "Callable[" in ast.unparse(argument.annotation)
    ]


def test_few_parts_of_worker_and_replica_are_wired_by_callables() -> None:
    found = [
        each for room in HOSTS for path in sorted((ROOT / room).rglob("*.py")) for each in callables(path)
    ]
    assert len(found) < CALLABLES_MAX, "\n".join(found)


def test_the_worker_is_made_of_few_parts() -> None:
    (made,) = (made for name, made in constructors(ROOT / "ioproc/worker.py") if name == "WorkerAgent")
    attributes = {
        node.attr
        for node in ast.walk(made)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    assert made.end_lineno is not None
    assert made.end_lineno - made.lineno < WORKER_LINES_MAX
    assert len(attributes) <= WORKER_ATTRIBUTES_MAX, attributes


def test_channels_only_pack_and_unpack() -> None:
    """No class there is to be derived from, and nobody is called back: that would be logic of a process."""
    found = []
    for path in sorted((ROOT / "channels").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "abc":
                found.append(f"{path.name}:{node.lineno}")
            if (
                isinstance(node, ast.arg)
                and "Callable[" in ast.unparse(node)
                and path.name not in CALLED_BACK
            ):
                found.append(f"{path.name}:{node.lineno}")
    assert not found, found
