"""Runs the command line as a user does: in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a command left: exit code, standard output, standard error."""

    code: int
    output: bytes
    errors: str

    @property
    def text(self) -> str:
        return self.output.decode()

    def succeeded(self) -> Outcome:
        """Itself, after the assertion that it ended with 0."""
        assert self.code == 0, self.errors + self.text
        return self


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Without what a developer's shell may carry."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("APPLIANCE_", "COLUMNS", "PYTHONDONT", "PYTHONUNBUFFERED"))
    }
    return kept | dict(more or {})


def appliance(
    *arguments: object, given: bytes = b"", timeout_s: float = 60, more: Mapping[str, str] | None = None
) -> Outcome:
    """`appliance ARGUMENTS`, with `given` on standard input."""
    done = subprocess.run(
        [sys.executable, "-m", "appliance", *map(str, arguments)],
        input=given,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        env=environment(more),
    )
    return Outcome(done.returncode, done.stdout, done.stderr.decode())
