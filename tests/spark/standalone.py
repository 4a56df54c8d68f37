"""A standalone Spark cluster on this machine: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pyspark

from spark_connector.java import find_java
from tests.support.broker import end_with_the_test_runner

HOME: Final = Path(pyspark.__file__).parent
START_TIMEOUT_S: Final = 240.0
_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER: Final = re.compile(r"Registering worker [\d.]+:\d+ with")


def spark_environment() -> dict[str, str]:
    """What Spark's scripts need to find: a Java, the Python of the tests, and nothing of this tree."""
    java = find_java()
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    home = {} if java.home is None else {"JAVA_HOME": str(java.home)}
    return {
        **kept,
        **home,
        "SPARK_HOME": str(HOME),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


@contextmanager
def standalone(at: Path, *, workers: int = 2) -> Iterator[str]:
    """The master's address, once all workers are registered with it."""
    with ExitStack() as running:
        log = at / "master.log"
        options = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        running.enter_context(_daemon("org.apache.spark.deploy.master.Master", options, log))
        address = _line(log, _MASTER)[0]
        for number in range(workers):
            options = ["--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"]
            options += ["--work-dir", str(at / f"work-{number}"), address]
            running.enter_context(
                _daemon("org.apache.spark.deploy.worker.Worker", options, at / f"worker-{number}.log")
            )
        _line(log, _WORKER, times=workers)
        yield address


@contextmanager
def _daemon(name: str, options: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [HOME / "bin" / "spark-class", name, *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**spark_environment(), "SPARK_DAEMON_MEMORY": "256m"},
            cwd=log.parent,
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)


def _line(log: Path, pattern: re.Pattern[str], *, times: int = 1) -> list[str]:
    """What the log says, once it has said it so often."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        found = pattern.findall(log.read_text())
        if len(found) >= times:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{log} does not say {pattern.pattern!r}:\n{log.read_text()[-2000:]}")
