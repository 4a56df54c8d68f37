"""Boot a Debian root with systemd as process 1, and check the units of deploy/systemd in it: `make test-systemd`.

Needs root, and the Debian packages debootstrap and systemd-container (scripts/install-debian.sh installs them). The
root is made once, in .cache/systemd/root; each run writes into a layer in memory above it. The machine has a network of
its own, so ports of this host do not matter.

    python scripts/systemd/boot.py                      the compiled build of this tree
    python scripts/systemd/boot.py --sources            the sources, without compiling
    python scripts/systemd/boot.py --only reload,watchdog
    python scripts/systemd/boot.py --upgrade-from REV   the upgrade begins with this revision, as sources
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
HOME: Final = REPOSITORY / ".cache" / "systemd"
ROOT: Final = HOME / "root"
READY: Final = HOME / "READY"
SUITE: Final = "bookworm"
PACKAGES: Final = "systemd,systemd-sysv,dbus,python3,libpython3.11,procps,iproute2"
WANTED: Final = f"{SUITE} {PACKAGES}\n"
TOP: Final = "/opt/appliance"
BOOT_TIMEOUT_S: Final = 120.0
LAYER: Final = Path("/run/appliance-systemd")
IN_OWN_NAMESPACE: Final = "APPLIANCE_SYSTEMD_NAMESPACE"


def main() -> int:
    """Return the exit code: 0 if every check passed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sources", action="store_true", help="do not compile")
    parser.add_argument("--build", type=Path, metavar="DIR", help="this build, made by scripts/build.py")
    parser.add_argument("--only", default="", help="names of checks, separated by commas")
    parser.add_argument(
        "--upgrade-from", default="", metavar="REV", help="default: the last tag, else 30 commits ago"
    )
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("make test-systemd needs root, because it boots a machine of its own", file=sys.stderr)
        return 2
    if IN_OWN_NAMESPACE not in os.environ:
        _make_root()
        # Mounts of the run end with this process and its children.
        own = ["unshare", "--mount", "--uts", "--ipc", "--propagation", "private", sys.executable, *sys.argv]
        return subprocess.run(own, env={**os.environ, IN_OWN_NAMESPACE: "1"}, check=False).returncode
    build = arguments.build or (REPOSITORY if arguments.sources else _compiled())
    with_old = _old_sources(arguments.upgrade_from)
    _mount_layer()
    _install(build, with_old)
    machine = _boot()
    try:
        leader = _leader(machine)
        return _check(leader, arguments.only)
    finally:
        machine.kill()
        machine.wait(30)


def _make_root() -> None:
    if READY.exists() and READY.read_text() == WANTED:
        return
    subprocess.run(
        [str(REPOSITORY / "scripts" / "install-debian.sh"), "debootstrap", "systemd-container"], check=True
    )
    print(f"making a root of Debian {SUITE} in {ROOT} (a minute or two)", flush=True)
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    subprocess.run(
        ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, str(ROOT)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    READY.write_text(WANTED)


def _compiled() -> Path:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "build.py"), "compiled"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Path(done.stdout.split()[-1])


def _old_sources(revision: str) -> Path:
    """The sources of an earlier revision, in a directory of their own."""
    if not revision:
        found = _git("describe", "--tags", "--abbrev=0", check=False)
        revision = found or _git("rev-parse", "HEAD~30")
    target = Path("/run") / f"appliance-old-{os.getpid()}"
    target.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(REPOSITORY), "archive", revision, "appliance"], check=True, stdout=subprocess.PIPE
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive, check=True)
    print(f"the upgrade begins with {_git('log', '-1', '--format=%h %s', revision)}", flush=True)
    return target


def _git(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(
        ["git", "-C", str(REPOSITORY), *arguments], check=check, capture_output=True, text=True
    )
    return done.stdout.strip()


def _mount_layer() -> None:
    LAYER.mkdir(exist_ok=True)
    _run("mount", "-t", "tmpfs", "layer", str(LAYER))
    for name in ("upper", "work", "merged"):
        (LAYER / name).mkdir()
    options = f"lowerdir={ROOT},upperdir={LAYER}/upper,workdir={LAYER}/work"
    _run("mount", "-t", "overlay", "overlay", "-o", options, str(LAYER / "merged"))
    # The machine is to have version 2 of control groups, whatever this host mounts there.
    subprocess.run(["umount", "--recursive", "/sys/fs/cgroup"], check=False, capture_output=True)
    _run("mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")


def _install(build: Path, old: Path) -> None:
    """As deploy/systemd/README.md says, but with the packages of this tree's environment."""
    root = LAYER / "merged"
    top = root / TOP.lstrip("/")
    (top / "bin").mkdir(parents=True)
    for name, source in (("new", build), ("old", old)):
        shutil.copytree(source / "appliance", top / name / "appliance", symlinks=True)
        for extension in source.glob("*__mypyc*.so"):
            shutil.copy2(extension, top / name)
    (top / "current").symlink_to("new")
    (top / "site-packages").mkdir()
    launcher = top / "bin" / "appliance"
    launcher.write_text(
        "#!/bin/sh\n"
        f"PYTHONPATH={TOP}/current:{TOP}/site-packages PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 \\\n"
        '  exec /usr/bin/python3 -m appliance "$@"\n'
    )
    launcher.chmod(0o755)
    units = root / "etc/systemd/system"
    deploy = REPOSITORY / "deploy" / "systemd"
    shutil.copy2(deploy / "appliance.service", units)
    shutil.copy2(deploy / "appliance.socket", units)
    shutil.copy2(deploy / "appliance.slice", units)
    for name, folder, called in (
        ("sysusers.conf", "etc/sysusers.d", "appliance.conf"),
        ("tmpfiles.conf", "etc/tmpfiles.d", "appliance.conf"),
        ("zookeeper.conf", "opt/appliance", "zookeeper.conf"),
        ("appliance.catalog", "usr/lib/systemd/catalog", "appliance.catalog"),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy2(deploy / name, root / folder / called)
    shutil.copy2(Path(__file__).with_name("inside.py"), top)
    (root / "etc/hostname").write_text("machine\n")
    (root / "etc/systemd/system/console-getty.service").symlink_to("/dev/null")


def _boot() -> subprocess.Popen[bytes]:
    packages = next((REPOSITORY / ".venv" / "lib").glob("python*/site-packages"))
    binds = [f"--bind-ro={packages}:{TOP}/site-packages"]
    libraries = REPOSITORY / ".cache" / "zookeeper" / "libs"
    if libraries.is_dir():
        binds.append(f"--bind-ro={libraries.resolve()}:/opt/zookeeper")
        if (java := shutil.which("java")) is not None:
            home = Path(java).resolve().parents[1]
            binds += [
                f"--bind-ro={home}:/opt/java",
                # Debian keeps Java's configuration there, behind links.
                *(f"--bind-ro={each}" for each in Path("/etc").glob("java-*")),
            ]
    command = [
        *(
            "systemd-nspawn",
            "--quiet",
            "--register=no",
            "--keep-unit",
            "--private-network",
            "--link-journal=no",
        ),
        *binds,
        *("-D", str(LAYER / "merged"), "--boot"),
    ]
    log = open("/run/appliance-systemd.log", "wb")  # noqa: SIM115 - as long as the machine
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env={**os.environ, "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1"},
    )


def _leader(machine: subprocess.Popen[bytes]) -> int:
    """The process that is process 1 of the machine."""
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    while time.monotonic() < deadline:
        if machine.poll() is not None:
            print(Path("/run/appliance-systemd.log").read_text(errors="replace"), file=sys.stderr)
            raise SystemExit("the machine did not boot; its output is above")
        for pid in _descendants(machine.pid):
            status = Path(f"/proc/{pid}/status")
            try:
                lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            except OSError:
                continue
            if lines["NSpid"].split()[-1] == "1" and lines["Name"].strip() == "systemd":
                return pid
        time.sleep(0.1)
    raise SystemExit("the machine did not boot in time; see /run/appliance-systemd.log")


def _descendants(pid: int) -> list[int]:
    found = []
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    for child in map(int, children):
        found += [child, *_descendants(child)]
    return found


def _check(leader: int, only: str) -> int:
    inside = [
        *(
            "nsenter",
            "--target",
            str(leader),
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--pid",
            "--cgroup",
            "--root",
            "--wd",
        ),
        *("/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", "TERM=dumb"),
        *(f"PYTHONPATH={TOP}/new:{TOP}/site-packages", "PYTHONSAFEPATH=1", "PYTHONDONTWRITEBYTECODE=1"),
        *("/usr/bin/python3", "-u", f"{TOP}/inside.py", *([only] if only else [])),
    ]
    return subprocess.run(inside, check=False, stdin=subprocess.DEVNULL).returncode


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    raise SystemExit(main())
