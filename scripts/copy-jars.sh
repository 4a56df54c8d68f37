#!/usr/bin/env bash
# Copies what a pom depends on from Maven artifacts into DIRECTORY, which is made anew: `copy-jars.sh POM DIRECTORY`.
set -euo pipefail

pom=$1
libs=$2
command -v mvn >/dev/null || scripts/install-debian.sh maven

rm -rf "$libs"
copy() {
    mvn -q -B "$@" -f "$pom" org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
        -DincludeScope=runtime -DoutputDirectory="$libs"
}
# Maven remembers a download that failed; -U makes the second try a real one.
copy || copy -U
