#!/usr/bin/env bash
# Copies Kafka Streams, MirrorMaker 2 and Connect's file connectors from Maven artifacts into .cache/kafka-streams/libs.
# Idempotent. Leaves .cache/kafka-streams/READY. Judges of transactions; the version is that of scripts/kafka/pom.xml.
set -euo pipefail
cd "$(dirname "$0")/.."

pom=scripts/kafka-streams/pom.xml
home="$PWD/.cache/kafka-streams"
ready="$home/READY"
wanted=$(sha256sum "$pom" | cut -c1-16)
if [[ -f "$ready" ]] && grep -qx "pom=$wanted" "$ready"; then exit 0; fi

scripts/install-kafka.sh >/dev/null
mkdir -p "$home"
rm -f "$ready"
scripts/copy-jars.sh "$pom" "$home/libs"

printf 'pom=%s\nlibs=%s\n' "$wanted" "$home/libs" >"$ready"
