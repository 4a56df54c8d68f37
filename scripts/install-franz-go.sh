#!/usr/bin/env bash
# Builds the tests' program on franz-go, tests/clients/franz_go, as .cache/franz-go/driver. Idempotent.
# Go from 1.21 on fetches the newer Go that franz-go asks for; Debian 12's Go 1.19 cannot.
set -euo pipefail
cd "$(dirname "$0")/.."

source=tests/clients/franz_go
driver="$PWD/.cache/franz-go/driver"
if [[ -x "$driver" && -z "$(find "$source" -type f -newer "$driver")" ]]; then exit 0; fi

command -v go >/dev/null || scripts/install-debian.sh golang-go
mkdir -p "$(dirname "$driver")"
if ! (cd "$source" && go build -o "$driver.new" .); then
    echo "franz-go needs the Go that $source/go.mod names, or Go 1.21 and later; here is $(go version)" >&2
    exit 1
fi
mv "$driver.new" "$driver"
