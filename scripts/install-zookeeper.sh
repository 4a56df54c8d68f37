#!/usr/bin/env bash
# Copies Apache ZooKeeper's server from Maven artifacts into .cache/zookeeper/libs. Idempotent.
# Leaves .cache/zookeeper/READY. For the tests of `metadata.store = "zookeeper"`, which start servers themselves.
set -euo pipefail
cd "$(dirname "$0")/.."

pom=scripts/zookeeper/pom.xml
home="$PWD/.cache/zookeeper"
ready="$home/READY"
wanted=$(sha256sum "$pom" | cut -c1-16)
if [[ -f "$ready" ]] && grep -qx "pom=$wanted" "$ready"; then exit 0; fi

command -v java >/dev/null || scripts/install-debian.sh default-jdk-headless

mkdir -p "$home"
rm -f "$ready"
scripts/copy-jars.sh "$pom" "$home/libs"

printf 'pom=%s\nlibs=%s\n' "$wanted" "$home/libs" >"$ready"
