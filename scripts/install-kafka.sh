#!/usr/bin/env bash
# Copies Apache Kafka (broker, tools, Java clients) from Maven artifacts into .cache/kafka/libs. Idempotent.
# Leaves .cache/kafka/READY with name=path lines. The judge of our tests, and the rival of the benchmarks.
set -euo pipefail
cd "$(dirname "$0")/.."

pom=scripts/kafka/pom.xml
home="$PWD/.cache/kafka"
ready="$home/READY"
wanted=$(sha256sum "$pom" | cut -c1-16)
if [[ -f "$ready" ]] && grep -qx "pom=$wanted" "$ready"; then exit 0; fi

java_version=$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' || true)
if [[ -z "$java_version" || "$java_version" -lt 17 ]] || ! command -v javac >/dev/null; then
    scripts/install-debian.sh default-jdk-headless
fi

mkdir -p "$home"
rm -f "$ready"
scripts/copy-jars.sh "$pom" "$home/libs"

cat >"$ready" <<LINES
pom=$wanted
kafka=$(sed -n 's/.*<kafka.version>\(.*\)<.*/\1/p' "$pom")
libs=$home/libs
LINES
cat "$ready"
