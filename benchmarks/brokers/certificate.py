"""A certificate for the brokers of the setting `secure`, made by openssl once for each data directory."""

import subprocess
from pathlib import Path

from benchmarks.void import Void

USER, PASSWORD = "bench", "bench-secret"
"""The one user, of PLAIN."""


def make(directory: Path) -> tuple[Path, Path]:
    """Return the authority's PEM file, and one with the broker's key and certificate for `localhost`. Raises Void."""
    ca, key, both = (directory / name for name in ("ca.pem", "key.pem", "broker.pem"))
    if both.exists():
        return ca, both
    directory.mkdir(parents=True, exist_ok=True)
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    try:
        done = subprocess.run(
            [*words, "-keyout", str(key), "-out", str(ca)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Void(f"no certificate: {error}") from error
    if done.returncode:
        raise Void(f"no certificate: {done.stderr.strip()[-200:]}")
    both.touch(mode=0o600)
    both.write_text(key.read_text() + ca.read_text())
    return ca, both
