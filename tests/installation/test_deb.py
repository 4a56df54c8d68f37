"""`make deb`: dpkg installs, upgrades, removes and purges it, on a copy of this host's system that is thrown away.

The copy is an overlay: the host's files below, a file system in memory above. It needs root and Debian.
"""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BUILD_S = 3600
sys.path.insert(0, str(ROOT / "scripts"))  # the scripts import each other, as programs
deb = import_module("deb")
wheels = import_module("wheels")

LIFE = r"""
mount -t tmpfs none "$1"
mkdir "$1/above" "$1/work" "$1/root" "$1/packages"
cp "$2" "$1/packages/one.deb"
cp "$3" "$1/packages/two.deb"
mount -t overlay -o "lowerdir=/,upperdir=$1/above,workdir=$1/work" none "$1/root"
mkdir "$1/root/packages"
mount --bind "$1/packages" "$1/root/packages"
mount -t proc none "$1/root/proc"
mount -t tmpfs none "$1/root/dev/shm"
exec chroot "$1/root" sh -euxc '
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin
unset PYTHONPATH
dpkg -i /packages/one.deb
id appliance
test "$(stat -c "%a %U %G" /etc/appliance/appliance.toml)" = "640 root appliance"
appliance --version | grep "compiled build"
test -n "$(find /usr/lib/log-appliance -name "*.pyc" -print -quit)"
man -w appliance-serve appliance.toml
bash -nc ". /usr/share/bash-completion/completions/appliance"
test "$(systemctl is-enabled appliance.service)" = enabled
test "$(systemctl is-enabled appliance.socket)" = disabled
systemd-analyze verify /lib/systemd/system/appliance.service
install -d -o appliance -g appliance -m 0700 /var/lib/appliance
serve() {
    runuser -u appliance -- appliance serve --data-dir /var/lib/appliance --port 19092 > /tmp/serve.log 2>&1 &
    broker=$!
    for _ in $(seq 200); do grep -q "ready on" /tmp/serve.log && return; sleep 0.1; done
    cat /tmp/serve.log; exit 1
}
serve
echo one record | appliance produce t --bootstrap 127.0.0.1:19092
kill $broker; wait $broker || true
echo "slots = 1" >> /etc/appliance/appliance.toml
dpkg -i /packages/two.deb
grep "slots = 1" /etc/appliance/appliance.toml
serve
test "$(appliance consume t --bootstrap 127.0.0.1:19092 --from beginning)" = "one record"
kill $broker; wait $broker || true
dpkg -r log-appliance
test ! -e /usr/lib/log-appliance
test -e /var/lib/appliance/slot-0/t-0
test -e /etc/appliance/appliance.toml
dpkg -P log-appliance
test ! -e /var/lib/appliance
test ! -e /etc/appliance
echo the life is over
'
"""


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


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S)
def test_a_package_is_installed_upgraded_removed_and_purged(tmp_path: Path) -> None:
    python = wheels.interpreters()[deb.version_of_python()]
    wheel = wheels.build_one(python, tmp_path / "dist")
    one = deb.build(wheel, tmp_path / "one", "~test1")
    two = deb.build(wheel, tmp_path / "two", "~test2")
    live(one, two, tmp_path / "copy")


def live(one: Path, two: Path, place: Path) -> None:
    place.mkdir()
    done = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-euc", LIFE, "sh", place, one, two],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert "the life is over" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
