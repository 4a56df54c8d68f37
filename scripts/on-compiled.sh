#!/usr/bin/env bash
# Run a command with the compiled build of this tree first on Python's module path, made if it is not there.
# usage: scripts/on-compiled.sh .venv/bin/python -m pytest --import-mode=append tests/system/test_kills.py
# (pytest's other import modes would put the sources before the build; tests/conftest.py refuses that)
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(.venv/bin/python scripts/build.py compiled)
# Without the safe path, `python -m` would put this directory, and with it the sources, before the build.
export PYTHONPATH="$build:$PWD" PYTHONSAFEPATH=1 TESTED_BUILD=compiled
exec "$@"
