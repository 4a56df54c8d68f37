"""Runs the commands of a page as a reader pastes them: each block in order, in one directory.

A page is read as follows.

    ```sh         every line is a command, as a shell reads it
    ```console    a line that begins with `$ ` is a command; the lines below it are what it prints, exactly,
                  unless one of them is `…`

A command that serves (`make run`, `appliance serve`) keeps running while the next ones run, until the page starts
another one or ends. Its port is a free one: the address 127.0.0.1:9092 of the page, and the default of the commands,
become that port. `make run` is taken for what it does after its installation; tests/installation tests that.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.broker import Output, end_with_the_test_runner
from tests.support.wire import free_ports

ADDRESS: Final = "127.0.0.1:9092"
SERVES: Final = re.compile(r"(make run|(\S*/)?appliance serve)\b")
COMMAND_S: Final = 60
READY_S: Final = 60
STATE: Final = "state.sh"
"""What a command changed in its shell: the next one starts with it."""


@dataclass(slots=True)
class Command:
    """One command of a page, and the lines that the page says it prints."""

    text: str
    printed: list[str] = field(default_factory=list)


def commands_of(page: str) -> list[Command]:
    """Return the commands of the `sh` and `console` blocks of a Markdown page, in order."""
    found: list[Command] = []
    for language, block in re.findall(r"^```(sh|console)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if language == "sh":
            found += [Command(text) for text in _shell_commands(block)]
            continue
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line.removeprefix("$ ")))
            elif found:
                found[-1].printed.append(line)
    return found


def _shell_commands(block: str) -> list[str]:
    """Return the lines of a block; a line that ends in `|` or a backslash goes on in the next one."""
    commands: list[str] = []
    goes_on = False
    for line in block.splitlines():
        if goes_on:
            commands[-1] += f"\n{line}"
        elif line.strip() and not line.startswith("#"):
            commands.append(line)
        goes_on = line.rstrip().endswith(("|", "\\"))
    return commands


class Terminal:
    """A directory with the command `appliance` installed in `.venv`, as `make run` leaves a clone."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_ports(1)
        self._broker: subprocess.Popen[str] | None = None
        self._output: Output | None = None
        installed = directory / ".venv" / "bin" / "appliance"
        installed.parent.mkdir(parents=True)
        installed.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m appliance "$@"\n')
        installed.chmod(0o755)

    def run(self, command: Command) -> None:
        """Paste a command. Raises AssertionError when it fails or prints something else than the page says."""
        text = command.text.replace(ADDRESS, f"127.0.0.1:{self._port}")
        if SERVES.match(text):
            self._serve(text)
            return
        state = self._directory / STATE
        shell = f"[ -e {state} ] && . {state}\n{text}\ncode=$?\nexport -p > {state}\nexit $code\n"
        done = subprocess.run(
            ["bash", "-c", shell],
            cwd=self._directory,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        assert done.returncode == 0, f"{text}\nended with {done.returncode}: {done.stdout}{done.stderr}"
        if command.printed and "…" not in command.printed:
            assert done.stdout.splitlines() == command.printed, text

    def _serve(self, text: str) -> None:
        self.close()
        if text.startswith("make run"):
            text = "appliance serve --data-dir ./data"
        words = f'export PATH="$PWD/.venv/bin:$PATH"; exec {text} --port {self._port}'
        self._broker = subprocess.Popen(
            ["bash", "-c", words],
            cwd=self._directory,
            env=self._environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )
        self._output = Output(self._broker, "ready on")
        assert self._output.is_ready.wait(READY_S), self._output.tail()
        assert self._broker.poll() is None, self._output.tail()

    def close(self) -> None:
        """Stop what serves, as Ctrl-C does."""
        if self._broker is None or self._output is None:
            return
        self._broker.send_signal(signal.SIGINT)
        try:
            self._broker.wait(COMMAND_S)
        finally:
            self._broker.kill()
        assert self._broker.returncode == 0, self._output.tail()
        self._output.close()
        self._broker = None

    def _environment(self) -> Mapping[str, str]:
        tree = str(Path(__file__).parent.parent.parent)
        return {
            **os.environ,
            "APPLIANCE_BOOTSTRAP": f"127.0.0.1:{self._port}",
            "PYTHONPATH": os.environ.get("PYTHONPATH", tree),
        }
