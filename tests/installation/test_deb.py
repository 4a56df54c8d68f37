"""`make deb`: the scripts and the unit of the package. test_package_life.py installs it.

The tests of the purge need root.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from appliance.config.settings import Settings
from appliance.console.server import CONNECTIONS_MAX
from appliance.log import flusher, log_directory

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))  # the scripts import each other, as programs
deb = import_module("deb")

PURGE = r"""
mount -t tmpfs none /etc
mount -t tmpfs none /var/lib
mkdir -p /etc/appliance /var/lib/appliance
touch /etc/appliance/appliance.toml
test "$2" = no || mount -t tmpfs none /var/lib/appliance
mkdir -p /var/lib/appliance/slot-0/t-0
touch /var/lib/appliance/slot-0/t-0/00000000000000000000.log
test "$2" != two || mount -t tmpfs none /var/lib/appliance/slot-0
sh "$1" purge
test ! -e /etc/appliance
test -z "$(find /var/lib ! -type d)"
test "$2" != no || test ! -e /var/lib/appliance
"""


@pytest.mark.parametrize("mounts", ["no", "one", "two"])
def test_a_purge_removes_all_data_where_the_data_directory_is_a_mount_point(mounts: str) -> None:
    script = ROOT / "deploy/debian/log-appliance.postrm"
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-euc", PURGE, "sh", script, mounts],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_the_options_host_and_port_count_because_no_socket_comes_with_the_service() -> None:
    unit = deb.packaged_unit((ROOT / "deploy/systemd/appliance.service").read_text())
    assert "appliance.socket" not in unit
    assert "ExecStart=/usr/bin/appliance serve " in unit
    rules = (ROOT / "deploy/debian/rules").read_text().splitlines()
    (socket,) = [line.split() for line in rules if line.startswith("\t") and "appliance.socket" in line]
    assert {"--no-enable", "--no-start"} <= set(socket)
    (service,) = [line.split() for line in rules if line.startswith("\t") and "appliance.service" in line]
    assert "--no-enable" not in service
    with pytest.raises(deb.BuildFailed):
        deb.packaged_unit(unit)


def test_the_package_makes_byte_code_before_the_service_starts() -> None:
    script = (ROOT / "deploy/debian/log-appliance.postinst").read_text()
    assert script.index("py3compile -p log-appliance /usr/lib/log-appliance") < script.index("#DEBHELPER#")


def test_the_unit_allows_as_many_tasks_as_its_readme_derives_from_the_threads_of_a_worker() -> None:
    # Of a worker: its loop, flushers, a mover of partitions, sweep, checkpoints, replicas that open, logs that close.
    worker = 1 + flusher.THREADS + 1 + 1 + 1 + log_directory._CLOSING_THREADS
    unit = (ROOT / "deploy/systemd/appliance.service").read_text().splitlines()
    (tasks_max,) = [int(line.partition("=")[2]) for line in unit if line.startswith("TasksMax=")]
    (slots,) = [each.metadata["declaration"].maximum for each in fields(Settings) if each.name == "slots"]
    assert tasks_max >= slots * (4 + 1) * worker + CONNECTIONS_MAX + 8 * 20
    readme = " ".join((ROOT / "deploy/systemd/README.md").read_text().split())
    assert f"at most {worker} threads" in readme
    assert f"{slots} × (4 + 1) × {worker} = {slots * 5 * worker} tasks" in readme
    assert f"TasksMax={tasks_max}`" in readme
