"""Which build of the appliance this is: compiled, or pure Python (decision 0080).

Both come from the same source. An installation is compiled where a C compiler works.
"""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader
from importlib.util import find_spec
from typing import Final

COMPILED: Final = "compiled"
PURE: Final = "pure"
NAMES: Final = {COMPILED: "compiled build", PURE: "pure Python build"}
"""How each build is named to a person."""

_HOT_MODULE: Final = "appliance.ipc.ring"
"""One of the modules that every compiled build compiles (HOT_MODULES in setup.py)."""


def build() -> str:
    """Return COMPILED or PURE: what Python loads when the hot modules are imported. Imports none of them."""
    found = find_spec(_HOT_MODULE)
    return COMPILED if found and isinstance(found.loader, ExtensionFileLoader) else PURE
