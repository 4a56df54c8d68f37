"""No file imports itself through others, not even by an import within a function.

import-linter's contracts name rooms; this looks at every file. An import within a function hides a circle from Python
and not from a reader: neither file can be understood, tested or moved without the other.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

TREE = Path(__file__).parents[2]
PACKAGES = ("appliance", "spark_connector", "pyspark_appliance", "benchmarks", "tests")


def modules_of(tree: Path, packages: tuple[str, ...]) -> dict[str, Path]:
    """Every module under its dotted name; a package under its own."""
    found = {}
    for package in packages:
        for path in (tree / package).rglob("*.py"):
            parts = path.relative_to(tree).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement of a module, also within others. An import is one, so nobody has to look into expressions."""
    for each in getattr(node, "body", ()):
        yield each
        yield from statements(each)
    for part in ("orelse", "finalbody", "handlers", "cases"):
        for each in getattr(node, part, ()):
            yield each
            yield from statements(each)


def imports_of(name: str, modules: Mapping[str, Path]) -> set[str]:
    """Which of `modules` the module imports, at its head or within a function."""
    imported: set[str] = set()
    for node in statements(ast.parse(modules[name].read_bytes())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {each if each in modules else node.module for each in names}
    return (imported & modules.keys()) - {name}


def circle(modules: Mapping[str, Path]) -> list[str]:
    """One circle of imports, its first file again at the end; empty where there is none."""
    try:
        TopologicalSorter({name: imports_of(name, modules) for name in modules}).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def test_no_file_imports_itself_through_others() -> None:
    modules = modules_of(TREE, PACKAGES)
    assert len(modules) > 800, "the tree is not where it was"
    assert circle(modules) == []


def test_an_import_within_a_function_closes_a_circle(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "__init__.py").touch()
    (house / "door.py").write_text("from house import window\n")
    (house / "window.py").write_text("def open():\n    from house.roof import beam\n")
    (house / "roof.py").write_text("import house.door\n")
    assert set(circle(modules_of(tmp_path, ("house",)))) == {"house.door", "house.window", "house.roof"}
    (house / "roof.py").write_text("beam = 1\n")
    assert circle(modules_of(tmp_path, ("house",))) == []
