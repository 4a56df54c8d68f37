#!/usr/bin/env bash
# Build a wheel with the Python of a Debian release that this host does not run, in a fresh system of that release
# (debian-root.sh), and print the wheel's path. auditwheel has not looked at it yet: wheels.py --debian does both.
# usage: wheel-in-debian.sh VERSION SUITE          wheel-in-debian.sh 3.14 forky
set -euo pipefail
cd "$(dirname "$0")/.."
version=$1
suite=$2
kept=$PWD/.cache/debian/wheels/$suite-$version
root=$(mktemp -d "${TMPDIR:-/tmp}/appliance-wheel-XXXXXX")
trap 'rm -rf "$root"' EXIT

scripts/debian-root.sh "$suite" "$root/debian" "python$version-dev" "python$version-venv" ca-certificates gcc libc6-dev python3-pip
mkdir -p "$root/debian/src/scripts" "$kept"
tar -c --exclude=__pycache__ --exclude='*.so' appliance spark_connector pyspark_appliance setup.py pyproject.toml README.md \
    scripts/build.py | tar -x -C "$root/debian/src"
# The authorities that this host trusts, for hosts behind a proxy.
cp /etc/ssl/certs/ca-certificates.crt "$root/debian/etc/ssl/certs/ca-certificates.crt"
unshare --mount --pid --fork --kill-child sh -euc '
    mount -t proc none "$1/proc"
    mount -t tmpfs -o mode=1777 none "$1/dev/shm"
    exec chroot "$1" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 \
        "python$2" /src/scripts/build.py compiled --root /src --cache /built
' sh "$root/debian" "$version" >&2
rm -f "$kept"/*.whl
cp "$root"/debian/built/compiled-*/*.whl "$kept/"
ls "$kept"/*.whl
