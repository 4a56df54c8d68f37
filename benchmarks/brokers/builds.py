"""Builds of the appliance that the harness runs: copies of this tree's source, pure or with its hot modules compiled.

They are made by `scripts/build.py`, as those that `make run` installs and the gate tests (decision 0080). Nothing is
built in the work tree, and what somebody compiled in the work tree is not measured by accident.
"""

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from enum import Enum
from pathlib import Path

from benchmarks.places import CACHE, ROOT
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


@functools.cache
def client_build() -> Path:
    """The native client out of its own wheel, compiled; the directory to put first on the module path. Raises Void."""
    digest = hashlib.sha256()
    parts = ("appliance_client", "appliance/errors.py", "appliance/protocol")
    for part in parts:
        place = ROOT / part
        for path in [place] if place.is_file() else sorted(place.rglob("*.*")):
            if (
                path.is_file()
                and path.suffix in {".py", ".toml", ".md", ".typed"}
                and "build" not in path.parts
            ):
                digest.update(str(path.relative_to(ROOT)).encode() + path.read_bytes())
    built = CACHE / "client" / digest.hexdigest()[:16]
    if built.exists():
        return built
    with tempfile.TemporaryDirectory() as copied:
        tree, wheels = Path(copied) / "tree", Path(copied) / "wheels"
        for part in parts:
            (tree / part).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copyfile if (ROOT / part).is_file() else shutil.copytree
            copy(ROOT / part, tree / part)
        words = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(wheels)]
        done = subprocess.run(
            [*words, str(tree / "appliance_client")],
            env={**os.environ, "APPLIANCE_BUILD": "compiled"},
            check=False,
        )
        if done.returncode:
            raise Void("the native client cannot be built, see above")
        (wheel,) = wheels.glob("*.whl")
        unpacked = Path(copied) / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(unpacked)
        built.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(unpacked, built.with_suffix(".new"), dirs_exist_ok=True)
        built.with_suffix(".new").rename(built)
    return built
