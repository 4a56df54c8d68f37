"""What is measured is this tree's source, built apart from the work tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.brokers import builds
from benchmarks.brokers.builds import Kind


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A small source tree, with a module that somebody compiled in place."""
    root = tmp_path / "tree"
    for name in builds.SOURCES:
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("")
    (root / "appliance" / "ring.so").write_bytes(b"stale")
    for name in builds.SETUP:
        (root / name).write_text("")
    monkeypatch.setattr(builds, "ROOT", root)
    monkeypatch.setattr(builds, "CACHE", tmp_path / "cache")
    builds.build.cache_clear()
    return root


def test_what_lies_compiled_in_the_work_tree_is_not_measured(tree: Path) -> None:
    made = builds.build(Kind.PURE)
    assert made.is_dir()
    assert not list(made.rglob("*.so"))
    assert (tree / "appliance" / "ring.so").exists()


def test_a_changed_source_is_built_anew_and_the_same_one_is_not(tree: Path) -> None:
    first = builds.build(Kind.PURE)
    builds.build.cache_clear()
    assert builds.build(Kind.PURE) == first
    (tree / "appliance" / "__init__.py").write_text("changed = True\n")
    builds.build.cache_clear()
    assert builds.build(Kind.PURE) != first
    builds.build.cache_clear()
