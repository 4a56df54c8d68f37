"""Install the appliance into a virtual environment of this tree, for `make run`, and show the progress.

usage: install.py VENV [--pure|--auto] [--extras NAME,...]

    --auto   the compiled build of these sources, or the pure one where nothing can be compiled; made by build.py
    --pure   the sources themselves as an editable installation: a change takes effect at the next start
    --extras the packages that these extras of pyproject.toml name

The choice holds until the other one is made. Without an option the last choice counts, at first --auto. When nothing
has changed since the last call, nothing happens. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
import tomllib
import venv
from pathlib import Path

from build import AUTO, PURE, ROOT, BuildFailed, digest, run, say

STAMP = ".installed"
CHOICE = ".build-choice"
WITH = "[cli,console,schemas,zookeeper]"
"""The extras of every installation of this tree: the README's commands need them (decision 0090)."""


def install(environment: Path, choice: str | None) -> None:
    """Make `environment` hold the chosen build of this tree.

    Raises:
        BuildFailed: a step failed.
    """
    chosen = _chosen(environment, choice)
    wanted = f"{chosen} {_state(chosen)}"
    stamp = environment / STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return
    began = time.monotonic()
    python = environment / "bin" / "python"
    if not (environment / "bin" / "pip").exists():
        say(f"making the virtual environment {environment.name}")
        venv.create(environment, with_pip=True)
    if chosen == PURE:
        say("installing the sources of this tree, uncompiled; `make compiled` takes that back")
        _pip(python, ["--editable", f"{ROOT}{WITH}"], {"APPLIANCE_BUILD": PURE})
    else:
        wheel = _wheel(python)
        # The same version number may stand for other sources, so pip would keep the old ones.
        _pip(python, ["--force-reinstall", "--no-deps", str(wheel)])
        _pip(python, [f"{wheel}{WITH}"])
    (environment / CHOICE).write_text(chosen)
    stamp.write_text(wanted)
    say(f"installed in {time.monotonic() - began:.0f} s")


def install_extras(environment: Path, extras: list[str]) -> None:
    """Install what the extras name and not the appliance itself, so that its build stays what it is."""
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    _pip(environment / "bin" / "python", [package for extra in extras for package in optional[extra]])


def _chosen(environment: Path, choice: str | None) -> str:
    kept = environment / CHOICE
    return choice or (kept.read_text() if kept.exists() else AUTO)


def _state(chosen: str) -> str:
    """Return what must not change for an installation to be up to date."""
    if chosen == PURE:
        return hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()[:12]
    return digest(AUTO, ROOT)


def _wheel(python: Path) -> Path:
    """Return the wheel of the build, made with the pip of the environment."""
    words = [str(python), str(ROOT / "scripts" / "build.py"), AUTO]
    made = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode:
        raise BuildFailed("the build failed, see above")
    return next(Path(made.stdout.strip()).parent.glob("*.whl"))


def _pip(python: Path, what: list[str], more: dict[str, str] | None = None) -> None:
    """Run `pip install`, and name each package as pip turns to it."""
    words = [
        str(python),
        "-m",
        "pip",
        "install",
        "--disable-pip-version-check",
        "--progress-bar",
        "off",
        *what,
    ]
    run(words, _tell, {**os.environ, **(more or {})})


def _tell(line: str) -> None:
    """Pass on the lines of pip that show progress."""
    words = line.split()
    if words[:1] == ["Downloading"]:
        say(f"downloading {' '.join(words[1:])}")
    elif words[:3] == ["Installing", "collected", "packages:"]:
        say(f"installing {len(words) - 3} packages")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("environment", type=Path, metavar="VENV")
    parser.add_argument("--pure", action="store_const", const=PURE, dest="choice")
    parser.add_argument("--auto", action="store_const", const=AUTO, dest="choice")
    parser.add_argument("--extras", type=lambda names: names.split(","), default=[], metavar="NAME,...")
    asked = parser.parse_args()
    try:
        install(asked.environment.absolute(), asked.choice)
        if asked.extras:
            install_extras(asked.environment.absolute(), asked.extras)
    except BuildFailed as fault:
        sys.exit(f"appliance: {fault}")


if __name__ == "__main__":
    main()
