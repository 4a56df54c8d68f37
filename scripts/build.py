"""Build the appliance apart from the work tree, and print the directory to put first on the module path.

usage: build.py [auto|compiled|pure] [--root DIR] [--cache DIR]

    compiled   as `pip` builds a wheel, from a copy of the sources; fails where nothing can be compiled
    pure       the same sources, not compiled
    auto       compiled where that is possible, else pure

A build is a directory in the cache, named for its kind and for the digest of what it was made from, so a second call
returns at once. `make run` installs such a build, the gate tests it and the benchmarks measure it (decision 0080). The
work tree is never compiled, because a compiled module there would hide each later change of its source. Standard
library only: `make run` calls this before anything is installed, with a Python that has pip.
"""

from __future__ import annotations

import argparse
import compileall
import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("appliance", "spark_connector", "pyspark_appliance")
SETUP = ("setup.py", "pyproject.toml", "README.md")
KEPT_SECONDS = 24 * 3600
"""A build that nobody asked for in this time is removed when another one is made. Younger ones may be running."""

SILENCE_S = 10
"""A step that prints nothing for longer looks as if it hung."""

AUTO, COMPILED, PURE = "auto", "compiled", "pure"


class BuildFailed(Exception):
    """The build cannot be made. The text says why."""


def build(kind: str, *, root: Path = ROOT, cache: Path | None = None) -> Path:
    """Return the directory of the build of `root` of this kind, and make it if it is not there.

    Raises:
        BuildFailed: a compiler is missing, or a step failed.
    """
    cache = cache or root / ".cache" / "builds"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two callers want the same build: the second one finds it made
        # A build that may be compiled and is compiled is the same as one that must be.
        homes = [
            cache / f"{each}-{digest(each, root)}" for each in ((COMPILED, AUTO) if kind == AUTO else (kind,))
        ]
        home = next((each for each in homes if (each / "site").exists()), None) or _make(kind, root, homes)
        os.utime(home)
        for old in cache.glob("*-*"):
            if time.time() - old.stat().st_mtime > KEPT_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
    return home / "site"


def digest(kind: str, root: Path) -> str:
    """Return the digest of the sources, of how they are built and of the Python. Pages (`.md`) change no build."""
    made_from = hashlib.sha256(f"{kind} {platform.python_version()} {os.environ.get('CC', '')}".encode())
    for path in (*_files(root), root / "setup.py"):
        made_from.update(str(path.relative_to(root)).encode())
        made_from.update(path.read_bytes())
    project = tomllib.loads((root / "pyproject.toml").read_text())
    for table in ("build-system", "project"):  # the others are about tests and checks
        made_from.update(json.dumps(project.get(table)).encode())
    return made_from.hexdigest()[:12]


def _files(root: Path) -> list[Path]:
    return sorted(
        path
        for name in SOURCES
        for path in (root / name).rglob("*")
        if path.is_file() and path.suffix not in {".so", ".md"} and "__pycache__" not in path.parts
    )


def _make(kind: str, root: Path, homes: list[Path]) -> Path:
    """Make a build and return where it is: in the first of `homes`, or in the last one when it is not compiled."""
    with tempfile.TemporaryDirectory(dir=homes[0].parent, prefix=".new-") as directory:
        place = Path(directory)
        source = place / "source"
        for path in _files(root):
            copy = source / path.relative_to(root)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy)
        for name in SETUP:
            shutil.copy(root / name, source / name)
        made = place / "made"
        made.mkdir()
        if kind == PURE:
            source.rename(made / "site")
        else:
            _make_wheel(kind, source, made)
            with zipfile.ZipFile(next(made.glob("*.whl"))) as archive:
                archive.extractall(made / "site")
        compileall.compile_dir(made / "site", quiet=1)
        home = homes[0] if any((made / "site").rglob("*.so")) else homes[-1]
        shutil.rmtree(home, ignore_errors=True)
        made.rename(home)
    return home


def _make_wheel(kind: str, source: Path, into: Path) -> None:
    """Run `pip wheel` with its own environment for the build, and pass on what setup.py says of its progress."""
    say("building it: fetching the compiler mypyc (about 35 MB, kept by pip)")
    words = [sys.executable, "-m", "pip", "wheel", "--verbose", "--no-deps", "--disable-pip-version-check"]
    words += ["--wheel-dir", str(into), str(source)]
    environment = {**os.environ, "APPLIANCE_BUILD": "" if kind == AUTO else kind}

    def tell(line: str) -> None:
        if line.startswith("appliance: "):
            say(line.removeprefix("appliance: "))

    run(words, tell, environment)


def run(words: list[str], tell: Callable[[str], None], environment: Mapping[str, str]) -> None:
    """Run a command, hand each line that it prints to `tell`, and say every SILENCE_S that it still runs.

    Raises:
        BuildFailed: the command failed; the text has its last lines.
    """
    lines: list[str] = []
    ended = threading.Event()

    def say_that_it_runs() -> None:
        began = time.monotonic()
        while not ended.wait(SILENCE_S):
            say(f"... {time.monotonic() - began:.0f} s")

    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as command:
        assert command.stdout is not None
        threading.Thread(target=say_that_it_runs, daemon=True).start()
        try:
            for line in command.stdout:
                lines.append(line)
                tell(line.strip())
        finally:
            ended.set()
    if command.returncode:
        raise BuildFailed(f"{' '.join(words[2:5])} failed\n{''.join(lines[-40:])}")


def say(text: str) -> None:
    print(f"appliance: {text}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", default=AUTO, choices=(AUTO, COMPILED, PURE))
    parser.add_argument("--root", type=Path, default=ROOT, help="the tree to build")
    parser.add_argument(
        "--cache", type=Path, help="where builds are kept; .cache/builds of the tree by default"
    )
    asked = parser.parse_args()
    try:
        print(build(asked.kind, root=asked.root.resolve(), cache=asked.cache))
    except BuildFailed as fault:
        sys.exit(f"appliance: {fault}")


if __name__ == "__main__":
    main()
