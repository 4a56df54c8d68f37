"""Build a Debian package from a wheel, and put it into `dist`.

usage: deb.py [--wheel FILE] [--into DIR] [--revision TEXT]

The package has the appliance and the Python packages that it needs, from PyPI, in /usr/lib/log-appliance, for the
Python of the Debian release that this runs on. `appliance`, manual pages, completions, the systemd units, the user and
the limits of the system lie where Debian wants them. The wheel is that of `make wheels`; without --wheel it is built.
Needs debhelper and dpkg-dev; lintian looks at the result where it is installed.
"""

from __future__ import annotations

import argparse
import gzip
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from email.utils import formatdate
from pathlib import Path

from build import ROOT, BuildFailed, say

PACKAGE = "log-appliance"
PYTHON = "/usr/bin/python3"
STAGE = "staged"
"""deploy/debian/rules takes the files from there."""
LIBRARY = Path("usr/lib") / PACKAGE
EXTRAS = "[cli,console,oauth,schemas,telemetry,zookeeper]"
PLATFORMS = (
    "linux_x86_64",
    "manylinux_2_34_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)
NOT_SHIPPED = (
    *("**/tests", "**/__pycache__", "bin", "**/*.pyi", "**/*.pyx", "**/*.pxd", "**/include"),
    *("MANIFEST.in", "README.md"),  # some wheels put such files beside the packages
    "zstandard/_cffi*.so",  # for PyPy; CPython uses zstandard/backend_c*.so
)
DEPLOY = ROOT / "deploy"

COMMAND = f"""#!{PYTHON} -I
import sys

sys.path.insert(0, "/{LIBRARY}")

from appliance.__main__ import main

raise SystemExit(main())
"""
COMPLETIONS = {
    "bash": "usr/share/bash-completion/completions/appliance",
    "zsh": "usr/share/zsh/vendor-completions/_appliance",
    "fish": "usr/share/fish/vendor_completions.d/appliance.fish",
}


def version_of_python() -> str:
    """Return the version of the release's Python: `3.11`."""
    asked = run([PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"])
    return asked.strip()


def run(words: Sequence[str], **more: object) -> str:
    """Run a command and return its standard output.

    Raises:
        BuildFailed: it failed, or is not there; the text has its last lines.
    """
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
    except FileNotFoundError:
        raise BuildFailed(f"{words[0]} is not installed") from None
    if done.returncode:
        raise BuildFailed(f"{' '.join(words[:4])} failed\n{(done.stdout + done.stderr)[-4000:]}")
    return str(done.stdout)


def build(wheel: Path, into: Path, revision: str) -> Path:
    """Build the package of a wheel. Return its path in `into`.

    Raises:
        BuildFailed: a step failed, or lintian found something.
    """
    version = f"{_project_version()}{revision}"
    with tempfile.TemporaryDirectory(prefix="appliance-deb-") as directory:
        source = Path(directory) / f"{PACKAGE}-{version}"
        debian = source / "debian"
        shutil.copytree(DEPLOY / "debian", debian)
        stage = source / STAGE
        _install_python(wheel, stage)
        _install_command(stage)
        _install_pages(stage, debian)
        _install_service(stage, debian)
        _write_control_files(debian, version)
        run(["dpkg-buildpackage", "--build=binary", "--no-sign", "-d"], cwd=source)
        (made,) = Path(directory).glob("*.deb")
        into.mkdir(parents=True, exist_ok=True)
        package = into / made.name
        shutil.copy(made, package)
    _lint(package)
    return package


def _project_version() -> str:
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def _install_python(wheel: Path, stage: Path) -> None:
    """Install the wheel and what it needs for the release's Python, without byte code: postinst makes that."""
    words = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    words += ["--target", str(stage / LIBRARY), "--only-binary", ":all:", "--implementation", "cp"]
    words += ["--python-version", version_of_python()]
    for platform in PLATFORMS:
        words += ["--platform", platform]
    say("fetching the packages that the broker needs")
    run([*words, f"{wheel.absolute()}{EXTRAS}"])
    for pattern in NOT_SHIPPED:
        for path in (stage / LIBRARY).glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
    for path in (stage / LIBRARY).rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            if path.suffix == ".py":
                _without_interpreter_line(path)
            elif ".so" in path.suffixes and b".debug_info" in path.read_bytes():
                run(["strip", "--strip-debug", str(path)])  # PyPI's lz4 and zstandard: 25 MB


def _without_interpreter_line(path: Path) -> None:
    """A module is no program: its first line names an interpreter that may not be there."""
    content = path.read_bytes()
    if content.startswith(b"#!"):
        path.write_bytes(b"#" + content[2:])


def _install_command(stage: Path) -> None:
    path = stage / "usr/bin/appliance"
    path.parent.mkdir(parents=True)
    path.write_text(COMMAND)
    path.chmod(0o755)


def _install_pages(stage: Path, debian: Path) -> None:
    """Write manual pages and completions with the staged appliance itself."""
    environment = {
        "PYTHONPATH": str(stage / LIBRARY),
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    pages = debian / "pages"
    run([PYTHON, str(ROOT / "scripts/man_pages.py"), str(pages)], env=environment)
    for page in sorted(pages.iterdir()):
        home = stage / "usr/share/man" / f"man{page.suffix[1:]}" / f"{page.name}.gz"
        home.parent.mkdir(parents=True, exist_ok=True)
        home.write_bytes(gzip.compress(page.read_bytes(), mtime=0))
    for shell, name in COMPLETIONS.items():
        script = run([PYTHON, "-m", "appliance", "completion", shell], env=environment)
        path = stage / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(script)


def packaged_unit(unit: str) -> str:
    """Return the unit of the service for the package: its paths and pages, and no socket of systemd.

    Raises:
        BuildFailed: the unit does not have what is to be replaced.
    """
    for text, becomes in (
        ("/opt/appliance/bin/appliance", "/usr/bin/appliance"),
        (
            "Documentation=man:systemd.service(5)",
            "Documentation=man:appliance-serve(1) man:appliance.toml(5)",
        ),
        # The options host and port say where the service listens; the address of a socket would replace them.
        ("Wants=appliance.socket\n", ""),
    ):
        if unit.count(text) != 1:
            raise BuildFailed("deploy/systemd/appliance.service has changed: correct scripts/deb.py")
        unit = unit.replace(text, becomes)
    return unit


def _install_service(stage: Path, debian: Path) -> None:
    """Put units, user, directories and limits where debhelper finds them, and the configuration into /etc."""
    systemd = DEPLOY / "systemd"
    installed = packaged_unit((systemd / "appliance.service").read_text())
    (debian / f"{PACKAGE}.appliance.service").write_text(installed)
    shutil.copy(systemd / "appliance.socket", debian / f"{PACKAGE}.appliance.socket")
    shutil.copy(systemd / "sysusers.conf", debian / f"{PACKAGE}.appliance.sysusers")
    shutil.copy(systemd / "tmpfiles.conf", debian / f"{PACKAGE}.appliance.tmpfiles")
    for source, name in (
        (debian / "sysctl.conf", "usr/lib/sysctl.d/50-appliance.conf"),
        (systemd / "sysctl.conf", f"usr/share/doc/{PACKAGE}/examples/sysctl.conf"),
        # debhelper installs no slices; it puts the other units there, too.
        (systemd / "appliance.slice", "lib/systemd/system/appliance.slice"),
        (systemd / "appliance.catalog", "usr/lib/systemd/catalog/appliance.catalog"),
        (debian / "appliance.toml", "etc/appliance/appliance.toml"),
        (debian / "lintian-overrides", f"usr/share/lintian/overrides/{PACKAGE}"),
    ):
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, stage / name)
        (stage / name).chmod(0o644)


def _write_control_files(debian: Path, version: str) -> None:
    python = version_of_python()
    major, minor = python.split(".")
    control = debian / "control"
    needed = f"python3:any (>= {python}~), python3:any (<< {major}.{int(minor) + 1})"
    if "@PYTHON@" not in control.read_text():
        raise BuildFailed("deploy/debian/control has changed: correct scripts/deb.py")
    control.write_text(control.read_text().replace("@PYTHON@", needed))
    (debian / "changelog").write_text(
        f"{PACKAGE} ({version}) unstable; urgency=medium\n\n"
        "  * Changes: CHANGELOG.md of the appliance.\n\n"
        f" -- The appliance's authors <appliance@localhost.localdomain>  {formatdate()}\n"
    )
    (debian / f"{PACKAGE}.docs").write_text("")
    for name in ("README.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, debian / name)
    (debian / f"{PACKAGE}.docs").write_text("debian/README.md\n")


def _lint(package: Path) -> None:
    if shutil.which("lintian") is None:
        say("lintian is not installed, so nothing has looked at the package")
        return
    words = ["lintian", "--fail-on", "error,warning", "--allow-root", str(package)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"lintian refuses {package.name}\n{done.stdout}{done.stderr}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path)
    parser.add_argument("--into", type=Path, default=ROOT / "dist")
    parser.add_argument("--revision", default="", help="a suffix of the version, such as ~test2")
    asked = parser.parse_args()
    try:
        wheel = asked.wheel
        if wheel is None:
            words = [sys.executable, str(ROOT / "scripts/wheels.py"), "--python", version_of_python()]
            made = subprocess.run(
                [*words, "--into", str(asked.into)], stdout=subprocess.PIPE, text=True, check=False
            )
            if made.returncode:
                raise BuildFailed("the wheel could not be built, see above")
            wheel = Path(made.stdout.split()[-1])
        began = time.monotonic()
        package = build(wheel, asked.into, asked.revision)
        size_mb = package.stat().st_size / 1e6
        say(f"{package.name}, {size_mb:.1f} MB, in {time.monotonic() - began:.0f} s")
        print(package)
    except BuildFailed as fault:
        sys.exit(f"appliance: {fault}")


if __name__ == "__main__":
    main()
