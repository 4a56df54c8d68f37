#!/usr/bin/env bash
# Copies Spark's own source for Kafka from Maven artifacts into .cache/spark-kafka/libs: the rival of the connector's
# benchmarks, which no test needs. Idempotent.
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/install-kafka.sh >/dev/null
pom=scripts/spark/pom.xml
home="$PWD/.cache/spark-kafka"
ready="$home/READY"
wanted=$(sha256sum "$pom" | cut -c1-16)
if [[ -f "$ready" ]] && grep -qx "pom=$wanted" "$ready"; then exit 0; fi

mkdir -p "$home"
rm -f "$ready"
scripts/copy-jars.sh "$pom" "$home/libs"
cp .cache/kafka/libs/kafka-clients-*.jar "$home/libs/"

cat >"$ready" <<LINES
pom=$wanted
libs=$home/libs
LINES
cat "$ready"
