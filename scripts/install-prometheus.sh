#!/usr/bin/env bash
# Prometheus and promtool, judges of the pages of metrics, from the Debian package. Idempotent and quick when they are
# there. The package is unpacked and not installed, because its installation would start a server.
#
# Leaves in .cache/prometheus/:
#   prometheus, promtool
#   READY                  the version
set -euo pipefail
cd "$(dirname "$0")/.."

home="$PWD/.cache/prometheus"
if [[ -f "$home/READY" && -x "$home/prometheus" && -x "$home/promtool" ]]; then exit 0; fi
mkdir -p "$home"
parts="$(mktemp -d "$home/parts.XXXXXX")"
trap 'rm -rf "$parts"' EXIT
command -v apt-get >/dev/null || { echo "Prometheus is needed, and this system has no apt-get" >&2; exit 1; }
download() { (cd "$parts" && apt-get -qq -o APT::Sandbox::User=root download prometheus); }
# Where the list of packages is missing or old, it is fetched once.
download || { apt-get -qq update && download; }
dpkg-deb -x "$parts"/prometheus_*.deb "$parts/tree"
mv "$parts/tree/usr/bin/prometheus" "$parts/tree/usr/bin/promtool" "$home/"
"$home/promtool" --version 2>&1 | head -1 >"$home/READY"
