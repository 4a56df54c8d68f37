"""Apache Flink in one JVM: a job of a Java source, with its own jars and not those of the Kafka that judges."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import Final

from tests.support.broker import end_with_the_test_runner

REPOSITORY: Final = Path(__file__).resolve().parents[2]
LIBS: Final = REPOSITORY / ".cache" / "flink" / "libs"
INSTALL: Final = REPOSITORY / "scripts" / "install-flink.sh"

_JVM: Final = (
    "-Xmx600m",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


@cache
def install() -> Path:
    """Fetches the jars where they are missing; their directory."""
    subprocess.run([str(INSTALL)], check=True, capture_output=True, text=True, timeout=900)
    return LIBS


class FlinkJob:
    """A job that keeps its checkpoints, killed or cancelled, and started again from the newest of them.

    Args:
        source: a class of the source's name takes the address, the directory of the checkpoints, `arguments` and,
            where it starts from a checkpoint, that one. It cancels itself at a line on standard input.
        directory: for the classes, the checkpoints and the output.
    """

    def __init__(self, source: Path, address: str, directory: Path, *arguments: str) -> None:
        self._name = source.stem
        self._directory = directory
        self._checkpoints = directory / "checkpoints"
        self._arguments = (address, str(self._checkpoints), *arguments)
        self.output = directory / f"{self._name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        command = ["javac", "-d", str(directory / "classes"), "-cp", f"{install()}/*", str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def checkpoint(self) -> Path | None:
        """The newest one that is complete."""
        complete = sorted(
            self._checkpoints.glob("*/chk-*/_metadata"), key=lambda each: each.stat().st_mtime_ns
        )
        return complete[-1].parent if complete else None

    def start(self) -> None:
        """From the newest checkpoint, where there is one."""
        checkpoint = self.checkpoint()
        restored = () if checkpoint is None else (str(checkpoint),)
        path = f"{self._directory / 'classes'}:{install()}/*"
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                ["java", *_JVM, "-cp", path, self._name, *self._arguments, *restored],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
            )

    def cancel(self) -> None:
        """Returns when the job has ended; its checkpoints stay."""
        assert self._process is not None
        self._process.communicate(b"\n", timeout=90)
        assert self._process.returncode == 0, self.told()

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate(timeout=30)

    def lives(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def told(self) -> str:
        """The end of its output, for a failure's text."""
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else "(no output)"
