"""A broker that is forked from a template process, with the interface of `subprocess.Popen`.

To load the broker's code takes 0.3 s of processor time, half of what a short test of one broker needs. The template
(`appliance/testing/template.py`) has loaded it once for a whole run of pytest. From there on everything is as if a user
had started the command: the same arguments, configuration, processes and output.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import Final

from appliance.testing.launcher import launcher

_AT_FIRST: Final = dict(os.environ), Path.cwd()
"""Environment and directory of the run of pytest, which the template has, too."""
_OF_ONE_TEST: Final = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION"})


def can_fork() -> bool:
    """Whether a forked broker has the environment and the directory that a new process would have now."""
    environment, directory = _AT_FIRST
    return _without_pytest(os.environ) == _without_pytest(environment) and Path.cwd() == directory


def _without_pytest(environment: os._Environ[str] | dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _OF_ONE_TEST}


class Forked:
    """`appliance ARGUMENTS`, started through the template. `stdout`: what it prints, on both of its outputs."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._launched = launcher().launch(arguments)
        self.args = ["appliance", *arguments]
        self.stdout: TextIOWrapper = os.fdopen(self._launched.output)

    @property
    def pid(self) -> int:
        return self._launched.pid

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        return self._launched.poll()

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code once it has ended.

        Raises:
            TimeoutExpired: it still runs.
        """
        try:
            return self._launched.wait(timeout)
        except TimeoutError:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout) from None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
