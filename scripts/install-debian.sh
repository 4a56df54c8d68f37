#!/usr/bin/env bash
# Installs the named Debian packages that are missing; needs root or sudo only when one is.
# usage: install-debian.sh PACKAGE...
set -euo pipefail

missing=()
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then exit 0; fi

cannot() {
    echo "these Debian packages are needed and cannot be installed here: ${missing[*]}" >&2
    echo "reason: $1" >&2
    echo "install them by hand, then run the same command again" >&2
    exit 1
}

command -v apt-get >/dev/null || cannot "this system has no apt-get"
as_root=()
if [[ "$(id -u)" -ne 0 ]]; then
    command -v sudo >/dev/null || cannot "not root, and there is no sudo"
    as_root=(sudo)
fi

export DEBIAN_FRONTEND=noninteractive
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }

# A list of packages that is missing or older than a day names versions the archive no longer has.
if [[ -z "$(find /var/lib/apt/lists -name '*Packages*' -mtime -1 2>/dev/null | head -1)" ]]; then
    apt update || cannot "the list of packages could not be fetched"
fi
if ! apt install --yes --no-install-recommends "${missing[@]}" >/dev/null; then
    apt update || cannot "the list of packages could not be fetched"
    apt install --yes --no-install-recommends "${missing[@]}" >/dev/null || cannot "apt-get install failed"
fi
