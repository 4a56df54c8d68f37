"""A driver of a library of another language: takes one JSON object a line and answers one line.

An answer is `{"ok": …}` or `{"error": {"code": …, "message": …}}`; code -2 says that the driver's own time was over.
A driver that is released waits for its next user, because to start one takes a second.
"""

from __future__ import annotations

import json
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Final

from tests.clients.client import RefusedError

DRIVER_TIMED_OUT: Final = -2

Driver = subprocess.Popen[str]

_idle: defaultdict[str, list[Driver]] = defaultdict(list)


def end_idle_drivers() -> None:
    """Ends the processes that wait for a next user; a driver ends when its standard input is closed."""
    while _idle:
        _, drivers = _idle.popitem()
        for driver in drivers:
            driver.communicate(timeout=20)


class DriverProcess:
    """A driver from `kind`'s idle ones, or a new one."""

    def __init__(self, kind: str, command: Callable[[], Sequence[str]]) -> None:
        idle = _idle[kind]
        pipe = subprocess.PIPE
        self._kind = kind
        self._driver = idle.pop() if idle else subprocess.Popen(command(), stdin=pipe, stdout=pipe, text=True)

    @property
    def runs(self) -> bool:
        return self._driver.poll() is None

    @property
    def pid(self) -> int:
        return self._driver.pid

    def kill(self) -> None:
        """SIGKILL."""
        self._driver.kill()
        self._driver.communicate(timeout=20)

    def ask(self, operation: str, **request: Any) -> Any:
        """One operation's answer.

        Raises:
            RefusedError: the library reported an error.
            TimeoutError: the driver's own time was over.
        """
        assert self._driver.stdin is not None
        assert self._driver.stdout is not None
        self._driver.stdin.write(json.dumps({"op": operation, **request}) + "\n")
        self._driver.stdin.flush()
        line = self._driver.stdout.readline()
        if not line:
            code = self._driver.wait(timeout=20)
            raise AssertionError(f"the driver ended with {code} during {operation}; its words are on stderr")
        answer = json.loads(line)
        if "error" not in answer:
            return answer["ok"]
        error = answer["error"]
        if error["code"] == DRIVER_TIMED_OUT:
            raise TimeoutError(error["message"])
        raise RefusedError(error["code"], error["message"])

    def release(self) -> None:
        """Leave the process to its next user."""
        _idle[self._kind].append(self._driver)
