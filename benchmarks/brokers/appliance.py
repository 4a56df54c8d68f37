"""The appliance, started the way its users start it."""

import re
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.brokers.broker import SpawnedBroker, free_port


class Appliance(SpawnedBroker):
    """`appliance serve` with one slot and its default settings, by the interpreter that runs the harness."""

    name = "appliance"

    def __init__(self, data_dir: Path, *, cpus: Sequence[int] = ()) -> None:
        super().__init__(data_dir, cpus=cpus)
        self._port = 0

    def command(self) -> list[str]:
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        program = str(Path(sys.executable).parent / "appliance")
        data_dir = str(self.data_dir)
        return [program, "serve", "--data-dir", data_dir, "--port", str(self._port), "--slots", "1"]

    def on_ready(self, line: str) -> None:
        if found := re.search(r"127\.0\.0\.1:\d+", line):
            self.address = found[0]

    def version(self) -> str:
        return version("log-appliance")
