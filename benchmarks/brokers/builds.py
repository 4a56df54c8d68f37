"""Builds of the appliance that the harness runs: copies of this tree's source, pure or with its hot modules compiled.

They are made by `scripts/build.py`, as those that `make run` installs and the gate tests (decision 0080). Nothing is
built in the work tree, and what somebody compiled in the work tree is not measured by accident.
"""

import functools
import subprocess
import sys
from enum import Enum
from pathlib import Path

from benchmarks.places import ROOT
from benchmarks.void import Void

BUILDER = ROOT / "scripts" / "build.py"


class Kind(Enum):
    """Which of the two."""

    COMPILED = "compiled"
    """Hot modules compiled by mypyc."""
    PURE = "pure"


@functools.cache  # one run measures one build, whatever happens to the source meanwhile
def build(kind: Kind, tree: Path = ROOT) -> Path:
    """Return the directory to put first on the module path; make it now when it is not there. Raises Void."""
    words = [sys.executable, str(BUILDER), kind.value, "--root", str(tree)]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise Void(f"the {kind.value} build failed, see above")
    return Path(done.stdout.strip())
