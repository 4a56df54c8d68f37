"""Builds of the appliance that the harness runs: copies of this tree's source, pure or with its hot modules compiled.

A build is a directory under the cache, named for its kind and for the digest of what it was made from. Nothing is
built in the work tree, and what somebody compiled in the work tree is not measured by accident.
"""

import fcntl
import functools
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
from enum import Enum
from pathlib import Path

from benchmarks.places import CACHE, ROOT
from benchmarks.void import Void

SOURCES = ("appliance", "spark_connector")
SETUP = ("setup.py", "pyproject.toml", "README.md")
KEPT_SECONDS = 24 * 3600


class Kind(Enum):
    """Which of the two."""

    COMPILED = "compiled"
    """Hot modules compiled by mypyc (decision 0013)."""
    PURE = "pure"


@functools.cache  # one run measures one build, whatever happens to the source meanwhile
def build(kind: Kind) -> Path:
    """The directory to put first on the module path; built now when it is not there. Raises Void."""
    home = CACHE / "builds" / f"{kind.value}-{_digest(kind)}"
    home.parent.mkdir(parents=True, exist_ok=True)
    # One at a time: whoever waited finds it done.
    with (home.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not home.exists():
            _make(kind, home)
    return home


def _make(kind: Kind, home: Path) -> None:
    fresh = home.with_name(f"{home.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    for name in SOURCES:
        shutil.copytree(ROOT / name, fresh / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in SETUP:
        shutil.copy(ROOT / name, fresh / name)
    if kind is Kind.COMPILED:
        words = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
        _ran(words, fresh, {"APPLIANCE_COMPILED": "1"})
        if not any((fresh / "appliance").rglob("*.so")):
            raise Void("the compiled build has no compiled module")
        shutil.rmtree(fresh / "build", ignore_errors=True)
    _ran([sys.executable, "-m", "compileall", "-q", *SOURCES], fresh, {})
    for old in home.parent.glob(f"{kind.value}-*"):
        if time.time() - old.stat().st_mtime > KEPT_SECONDS:  # younger ones may be running
            shutil.rmtree(old, ignore_errors=True)
    fresh.rename(home)


def _digest(kind: Kind) -> str:
    """Of every source file, how it is built and by which Python; what a room's README says changes no build."""
    digest = hashlib.sha256(f"{kind.value} {platform.python_version()}".encode())
    files = sorted(path for name in SOURCES for path in (ROOT / name).rglob("*") if path.is_file())
    for path in (*files, ROOT / "setup.py", ROOT / "pyproject.toml"):
        if path.suffix not in {".so", ".md"} and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(ROOT)).encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _ran(words: list[str], where: Path, more: dict[str, str]) -> None:
    environment = {**os.environ, **more}
    done = subprocess.run(words, cwd=where, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-400:]
        raise Void(f"{' '.join(words[1:])} failed: {said}")
