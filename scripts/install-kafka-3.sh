#!/usr/bin/env bash
# Copies the last Apache Kafka of the 3.x line from Maven artifacts into .cache/kafka-3/libs. Idempotent.
# Leaves .cache/kafka-3/READY. For the slow tests of the tree in ZooKeeper, and of taking over a broker of that kind.
set -euo pipefail
cd "$(dirname "$0")/.."

pom=scripts/kafka-3/pom.xml
home="$PWD/.cache/kafka-3"
ready="$home/READY"
wanted=$(sha256sum "$pom" | cut -c1-16)
if [[ -f "$ready" ]] && grep -qx "pom=$wanted" "$ready"; then exit 0; fi

command -v java >/dev/null || scripts/install-debian.sh default-jdk-headless

mkdir -p "$home"
rm -f "$ready"
scripts/copy-jars.sh "$pom" "$home/libs"

printf 'pom=%s\nlibs=%s\n' "$wanted" "$home/libs" >"$ready"
