"""An S3 server on a loopback port: moto's, a process of its own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from tests.support.broker import end_with_the_test_runner
from tests.support.wire import free_ports

REPOSITORY: Final = Path(__file__).resolve().parents[2]
INSTALL: Final = REPOSITORY / "scripts" / "install-s3.sh"
PYTHON: Final = REPOSITORY / ".cache" / "s3" / "venv" / "bin" / "python"
START_TIMEOUT_S: Final = 120.0
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": "reader", "AWS_SECRET_ACCESS_KEY": "secret"}
"""For the environment of whoever reads."""


@contextmanager
def s3_server(at: Path, *, open_calls: int | None = None) -> Iterator[str]:
    """`host:port` of a server that answers; its output goes to a file in `at`.

    Args:
        open_calls: how many calls it serves before it asks who may do what, and nobody may; None: for ever.
    """
    subprocess.run([str(INSTALL)], check=True, capture_output=True, text=True, timeout=600)
    port = free_ports()
    rights = {} if open_calls is None else {"INITIAL_NO_AUTH_ACTION_COUNT": str(open_calls)}
    with (at / "s3.log").open("wb") as log:
        server = subprocess.Popen(
            [str(PYTHON), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
            stdout=log,
            stderr=log,
            env={**os.environ, **rights},
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )
        try:
            _wait_for_answer(port, server)
            yield f"127.0.0.1:{port}"
        finally:
            server.kill()
            server.wait(30)


def _wait_for_answer(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=10).close()
        except (URLError, OSError):
            assert server.poll() is None, "the server ended"
            assert time.monotonic() < deadline, "no answer in time"
            time.sleep(0.05)
        else:
            return
