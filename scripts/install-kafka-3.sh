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
command -v mvn >/dev/null || scripts/install-debian.sh maven

mkdir -p "$home"
rm -rf "$home/libs" "$ready"
copy() {
    mvn -q -B "$@" -f "$pom" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$home/libs"
}
# Maven remembers a download that failed; -U makes the second try a real one.
copy || copy -U

printf 'pom=%s\nlibs=%s\n' "$wanted" "$home/libs" >"$ready"
