#!/usr/bin/env bash
# moto's S3 server, a judge of what is read from object stores, in an environment of its own. Idempotent and quick when
# it is there.
#
# Leaves in .cache/s3/:
#   venv/    with `python -m moto.server`
#   READY    the version
set -euo pipefail
cd "$(dirname "$0")/.."

version=5.2.5
home="$PWD/.cache/s3"
if [[ -f "$home/READY" ]] && grep -qx "moto=$version" "$home/READY"; then exit 0; fi
mkdir -p "$home"
python3 -m venv "$home/venv"
"$home/venv/bin/python" -m pip install --quiet --disable-pip-version-check "moto[s3]==$version" flask flask-cors
echo "moto=$version" >"$home/READY"
