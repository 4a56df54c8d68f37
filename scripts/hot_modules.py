"""The modules that a build compiles, read from `setup.py` without running it: that would build."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def hot_modules(package: str = "") -> list[str]:
    """What `setup.py` of the tree, or of a package in it, names; paths from the tree."""
    (named,) = [
        ast.literal_eval(statement.value)
        for statement in ast.parse((ROOT / package / "setup.py").read_text()).body
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "HOT_MODULES"
    ]
    return list(named)
