"""What is measured is this tree's source, built apart from the work tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.brokers import builds
from benchmarks.brokers.builds import Kind
from benchmarks.void import Void


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small source tree, with a module that somebody compiled in place."""
    root = tmp_path / "tree"
    for name in ("appliance", "spark_connector", "pyspark_appliance"):
        (root / name).mkdir(parents=True)
        (root / name / "__init__.py").write_text("")
    (root / "appliance" / "ring.so").write_bytes(b"stale")
    for name in ("setup.py", "pyproject.toml", "README.md"):
        (root / name).write_text("")
    return root


def made_of(tree: Path) -> Path:
    builds.build.cache_clear()
    made = builds.build(Kind.PURE, tree)
    builds.build.cache_clear()
    return made


def test_what_lies_compiled_in_the_work_tree_is_not_measured(tree: Path) -> None:
    made = made_of(tree)
    assert (made / "appliance" / "__init__.py").exists()
    assert not list(made.rglob("*.so"))
    assert (tree / "appliance" / "ring.so").exists()


def test_a_changed_source_is_built_anew_and_the_same_one_is_not(tree: Path) -> None:
    first = made_of(tree)
    assert made_of(tree) == first
    (tree / "appliance" / "__init__.py").write_text("changed = True\n")
    assert made_of(tree) != first


def test_an_interrupted_build_leaves_nothing_that_the_next_call_takes_for_a_build(tree: Path) -> None:
    (tree / "setup.py").unlink()
    with pytest.raises(Void):
        made_of(tree)
    (tree / "setup.py").write_text("")
    assert (made_of(tree) / "appliance" / "__init__.py").exists()
