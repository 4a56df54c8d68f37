"""`make deb`: apt installs it in a fresh Debian system, it serves, and an upgrade, a removal and a purge keep what they
should (package_life.sh).

Slow: it compiles a wheel, unless these sources were compiled before, and fetches 60 MB.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.installation.debian_root import ROOT, DebianRoot

sys.path.insert(0, str(ROOT / "scripts"))  # the scripts import each other, as programs
deb = import_module("deb")
wheels = import_module("wheels")

BUILD_S = 3600
LATER = "0.1.1~test"
"""The version of the upgrade."""

CLIENTS = ("fish", "iproute2", "kcat", "man-db", "zsh")
"""What the test needs in the system, and the package does not bring along."""


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_a_fresh_debian_installs_serves_upgrades_removes_and_purges_the_package(tmp_path: Path) -> None:
    wheel = wheels.build_one(wheels.interpreters()[deb.version_of_python()], tmp_path / "dist")
    live(deb.build(wheel, tmp_path / "one", "~test"), tmp_path)


def live(package: Path, place: Path) -> None:
    """Install `package` in a fresh system below `place`, and take it through its life.

    Raises:
        AssertionError: a step failed; the text has the end of what was printed.
    """
    debian = DebianRoot(place / "root", "bookworm", *CLIENTS)
    packages = debian.directory / "packages"
    packages.mkdir()
    shutil.copy(package, packages / "one.deb")
    repack(package, packages / "two.deb", place / "unpacked")
    shutil.copy(Path(__file__).parent / "package_life.sh", packages)
    debian.run("apt-get", "update", network=True)
    debian.run("apt-get", "install", "--yes", "/packages/one.deb", network=True)
    said = debian.run("bash", "/packages/package_life.sh")
    assert "the life is over" in said


def repack(package: Path, to: Path, place: Path) -> None:
    """Make a later version of a package, whose modules say that they are of it. A second build would take minutes."""
    subprocess.run(["dpkg-deb", "--raw-extract", package, place], check=True)
    for path in (place / "DEBIAN" / "control", place / deb.LIBRARY / "appliance" / "version.py"):
        text = path.read_text()
        assert "0.1.0" in text
        path.write_text(text.replace("0.1.0~test", LATER).replace("0.1.0", LATER))
    subprocess.run(["dpkg-deb", "-Zgzip", "-z1", "--root-owner-group", "--build", place, to], check=True)


if __name__ == "__main__":
    live(Path(sys.argv[1]), Path(sys.argv[2]))
