#!/usr/bin/env bash
# Chromium, in which the tests of the console run, from the Debian package. Idempotent and quick when it is there.
# Playwright, a package of the extra `test`, drives it; Playwright's own browsers are not used.
#
# Leaves in .cache/chromium/:
#   READY                  the path of the program, and its version
set -euo pipefail
cd "$(dirname "$0")/.."

home="$PWD/.cache/chromium"
if [[ -f "$home/READY" && -x "$(head -1 "$home/READY")" ]]; then exit 0; fi
mkdir -p "$home"
program="$(command -v chromium || command -v chromium-browser || command -v google-chrome || true)"
if [[ -z "$program" ]]; then
    scripts/install-debian.sh chromium
    program="$(command -v chromium)"
fi
version="$("$program" --version 2>/dev/null | head -1)"
printf '%s\n%s\n' "$program" "$version" >"$home/READY"
