#!/usr/bin/env bash
# Make a fresh Debian system in a directory, with debootstrap: the smallest one, and the named packages. A second call
# for the same release and packages unpacks what the first one made. Needs root, because it makes device files.
# usage: debian-root.sh SUITE DIRECTORY [PACKAGE...]          debian-root.sh bookworm /tmp/root kcat
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
suite=$1
root=$2
shift 2
if [[ -e "$root" ]]; then echo "$root is there already" >&2; exit 1; fi
mirror=$(sed -n 's/^URIs: *//p' /etc/apt/sources.list.d/debian.sources 2>/dev/null | head -1)
mirror=${mirror:-http://deb.debian.org/debian}
cache=$repository/.cache/debian
kept=$cache/$suite-$(printf '%s\n' "$mirror" "$@" | sha256sum | cut -c1-12).tar

if [[ ! -e "$kept" ]]; then
    "$repository/scripts/install-debian.sh" debootstrap >&2
    mkdir -p "$cache"
    new=$(mktemp -d "$cache/new-XXXXXX")
    trap 'rm -rf "$new"' EXIT
    # debootstrap of an older release has no script for a later one; they are all the same.
    script=/usr/share/debootstrap/scripts/$suite
    if [[ ! -e "$script" ]]; then script=/usr/share/debootstrap/scripts/sid; fi
    packages=$(IFS=,; echo "$*")
    echo "appliance: making a Debian system ($suite); a minute or two" >&2
    if ! debootstrap --variant=minbase ${packages:+--include="$packages"} "$suite" "$new/root" "$mirror" "$script" > "$new/log"; then
        tail -20 "$new/log" "$new/root/debootstrap/debootstrap.log" >&2
        exit 1
    fi
    rm -rf "$new"/root/var/cache/apt/archives/*.deb
    tar -C "$new/root" --one-file-system -cf "$new/tar" .
    mv "$new/tar" "$kept"
fi
mkdir -p "$root"
tar -C "$root" -xf "$kept"
cp /etc/resolv.conf /etc/hosts "$root/etc/"
