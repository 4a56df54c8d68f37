#!/usr/bin/env bash
# Builds librdkafka with its own test-runner and its load generator, from the source that the npm tarball of
# node-rdkafka carries. Idempotent: a second call finds READY and returns at once.
#
# Leaves in .cache/librdkafka/:
#   source/                            the unpacked and built tree
#   source/tests/test-runner           librdkafka's own suite
#   source/examples/rdkafka_performance
#   source/src/librdkafka.so.1         with the mock cluster (test.mock.num.brokers)
#   READY                              name=path lines of the above, and the LD_LIBRARY_PATH they need
set -euo pipefail
cd "$(dirname "$0")/.."

version=3.6.1 # of node-rdkafka; its librdkafka is named in READY
home="$PWD/.cache/librdkafka"
ready="$home/READY"
is_ready() { [[ -f "$ready" ]] && grep -qx "node_rdkafka=$version" "$ready"; }
if is_ready && grep -qx "test_runner=$home/source/tests/test-runner" "$ready"; then exit 0; fi

tell() {
    cat >"$ready" <<LINES
node_rdkafka=$version
librdkafka=$(sed -n 's/^# librdkafka v\([0-9.]*\).*/\1/p' "$home/source/CHANGELOG.md" | head -1)
test_runner=$home/source/tests/test-runner
rdkafka_performance=$home/source/examples/rdkafka_performance
library=$home/source/src/librdkafka.so.1
library_path=$home/source/src:$home/source/src-cpp
LINES
    cat "$ready"
}
# The tree was moved since it was built: only the paths have changed.
if is_ready && [[ -x "$home/source/tests/test-runner" ]]; then
    tell
    exit 0
fi

scripts/install-debian.sh build-essential zlib1g-dev libzstd-dev libssl-dev python3

mkdir -p "$home"
rm -rf "$home/source" "$home/package" "$ready"
(cd "$home" && npm pack --silent "node-rdkafka@$version" >/dev/null)
tar -xzf "$home/node-rdkafka-$version.tgz" -C "$home" package/deps/librdkafka
mv "$home/package/deps/librdkafka" "$home/source"
rm -rf "$home/package" "$home/node-rdkafka-$version.tgz"

log="$home/build.log"
build() {
    cd "$home/source"
    find . \( -name '*.sh' -o -name configure -o -path './mklove/*' \) -exec chmod +x {} +
    ./configure --disable-gssapi --disable-curl
    make -j "$(nproc)" -C src
    make -j "$(nproc)" -C src-cpp
    make -j "$(nproc)" -C examples rdkafka_performance
    make -j "$(nproc)" -C tests test-runner
}
echo "building librdkafka (a few minutes, once); log in .cache/librdkafka/build.log"
if ! (build) >"$log" 2>&1; then
    tail -40 "$log" >&2
    echo "librdkafka did not build" >&2
    exit 1
fi

tell
