"""Virtual environments with an installation of the appliance, as a user makes them with pip."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Final

import psutil

from tests.support.broker import end_with_the_test_runner
from tests.support.wire import free_ports

ROOT: Final = Path(__file__).parent.parent.parent
SOURCES: Final = ("appliance", "spark_connector", "pyspark_appliance")
OWN: Final = (*SOURCES, "log_appliance")
SETUP: Final = ("setup.py", "pyproject.toml", "README.md")
INSTALL_S: Final = 900
SDIST: Final = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def copy_of_the_tree(to: Path) -> Path:
    """Copy what a clone has to build from. Compiled modules and byte code of this tree stay here."""
    for name in SOURCES:
        shutil.copytree(ROOT / name, to / name, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for name in SETUP:
        shutil.copy(ROOT / name, to / name)
    return to


class InstalledCommand:
    """The command `appliance` of one installation.

    Args:
        commands: the directory that it is in.
        elsewhere: a directory that is not the tree, from which it is called; is made.
    """

    def __init__(self, commands: Path, elsewhere: Path) -> None:
        self._bin = commands
        self._elsewhere = elsewhere
        elsewhere.mkdir()

    def appliance(self, *arguments: object, given: str = "") -> str:
        """Run the installed command in a directory that is not the tree, and return what it printed."""
        done = subprocess.run(
            [str(self._bin / "appliance"), *map(str, arguments)],
            input=given,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=self._elsewhere,
            env=clean({}),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def serve_one_record(self) -> str:
        """Serve, produce and consume one record, and stop. Return the build that `status` names.

        Every process of the broker is asked whether the library of compiled modules is in its memory; all must agree
        with `status`.
        """
        port = free_ports(1)
        data = self._elsewhere / "data"
        words = [str(self._bin / "appliance"), "serve", "--data-dir", str(data), "--port", str(port)]
        with subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self._elsewhere,
            env=clean({}),
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        ) as broker:
            assert broker.stdout is not None
            said = []
            try:
                for line in broker.stdout:
                    said.append(line)
                    if "ready on" in line:
                        break
                else:
                    raise AssertionError("".join(said))
                at = ("--bootstrap", f"127.0.0.1:{port}")
                self.appliance("produce", "t", *at, given="one record\n")
                assert self.appliance("consume", "t", *at) == "one record\n"
                build: str = json.loads(self.appliance("status", "--data-dir", data, "--json"))["build"]
                self._check_memory(broker.pid, build, "".join(said))
            finally:
                broker.terminate()
                broker.communicate(timeout=60)
            assert broker.returncode == 0
        return build

    def _check_memory(self, supervisor: int, build: str, said: str) -> None:
        found = psutil.Process(supervisor)
        for process in (found, *found.children(recursive=True)):
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            compiled = re.search(r"/appliance/compiled__mypyc\.", maps) is not None
            assert compiled == (build == "compiled"), (process, build)
        assert {"compiled": "compiled build", "pure": "pure Python build"}[build] in said


class Installation(InstalledCommand):
    """A virtual environment outside the tree, and the command `appliance` in it.

    The packages that the appliance needs are those of the Python that runs the tests, found through a `.pth` file and
    links: they are the same for each installation, and each test would spend most of its time on installing them. The
    appliance itself is left out, because pip would take it for installed, and Python would import it.
    """

    def __init__(self, place: Path) -> None:
        super().__init__(place / "environment" / "bin", place / "elsewhere")
        venv.create(place / "environment", with_pip=True, symlinks=True)
        (packages,) = (place / "environment" / "lib").glob("python*/site-packages")
        needs = place / "needs"
        needs.mkdir()
        for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
            if not path.name.removeprefix("__editable__").lstrip("._").startswith(OWN):
                (needs / path.name).symlink_to(path)
        (packages / "needs.pth").write_text(f"{needs}\n")

    def pip_install(self, *what: object, **environment: str) -> str:
        """Run `pip install --no-deps WHAT` and return everything it printed."""
        words = [str(self._bin / "python"), "-m", "pip", "install", "--verbose", "--no-deps", *map(str, what)]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=INSTALL_S,
            check=False,
            cwd=self._elsewhere,
            env=clean(environment),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def source_distribution(self, tree: Path, to: Path) -> Path:
        """Make the source distribution of a tree as `python -m build --sdist` does."""
        self.pip_install("setuptools>=77")
        words = [str(self._bin / "python"), "-c", SDIST, str(to)]
        done = subprocess.run(
            words, cwd=tree, capture_output=True, text=True, check=False, timeout=120, env=clean({})
        )
        assert done.returncode == 0, done.stdout + done.stderr
        (made,) = to.glob("*.tar.gz")
        return made


def clean(more: dict[str, str]) -> dict[str, str]:
    """Return the environment without anything that leads Python or pip back to this tree."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "APPLIANCE_", "VIRTUAL_ENV", "DIST_EXTRA"))
    }
    return kept | more


def cached_wheel() -> Path:
    """Return the wheel of the compiled build that `make test` has made, or make it now."""
    words = [sys.executable, str(ROOT / "scripts" / "build.py"), "compiled"]
    made = subprocess.run(
        words, stdout=subprocess.PIPE, text=True, check=True, timeout=INSTALL_S, env=clean({})
    )
    (wheel,) = Path(made.stdout.strip()).parent.glob("*.whl")
    return wheel
