#!/usr/bin/env bash
# Unpacks kafka-python's own integration tests, which its source distribution carries. Idempotent.
#
# Leaves in .cache/kafka-python/source/: the library and its tests. Of the tests' own helpers the distribution lacks
# test/service.py, which starts brokers; tests against a broker that runs need nothing of it but two names.
set -euo pipefail
cd "$(dirname "$0")/.."

version=3.0.12
home="$PWD/.cache/kafka-python"
if [[ -f "$home/READY" ]] && grep -qx "$version" "$home/READY"; then exit 0; fi

mkdir -p "$home"
rm -rf "$home/source" "$home/READY"
.venv/bin/pip download --quiet --no-deps --no-binary :all: --dest "$home" "kafka-python==$version"
tar -xzf "$home/kafka_python-$version.tar.gz" -C "$home"
mv "$home/kafka_python-$version" "$home/source"
rm "$home/kafka_python-$version.tar.gz"

touch "$home/source/test/__init__.py" # or the standard library's package of that name is found
cat >"$home/source/test/service.py" <<'PYTHON'
class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port


class SpawnedService:
    pass
PYTHON
echo "$version" >"$home/READY"
