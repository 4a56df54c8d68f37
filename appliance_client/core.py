"""What producer, consumer and admin have in common: scheduler, network, metadata, and one `run` for all of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

from appliance_client.network import Metadata, Network
from appliance_client.options import ConnectionOptions
from appliance_client.scheduling import Cancelled, Outcome, Scheduler, Task

logger = logging.getLogger("appliance_client")


class Core:
    """A client without I/O. A driver calls `run`, takes what `network` wants done, and waits until `next_s`."""

    def __init__(self, options: ConnectionOptions, *, now_s: float, auto_create: bool) -> None:
        self.lock: AbstractContextManager[Any] = nullcontext()
        """Held by the driver while it touches the core; a consumer's application thread takes it, too."""
        self.scheduler = Scheduler(now_s)
        self.network = Network(self.scheduler, options)
        self.metadata = Metadata(self.network, auto_create=auto_create)
        self.pump: Callable[[], float | None] = lambda: None
        """Sends what can be sent, and says when to look again."""
        self.network.on_change = self.touch
        self.metadata.on_change = self.touch
        self._starting = False
        self._touched = True
        self._pump_at_s: float | None = None

    def start(self) -> None:
        """Begin to keep metadata with the first run. A client whose transport is refused never runs."""
        self._starting = True

    def touch(self) -> None:
        """Something has changed: pump with the next run."""
        self._touched = True

    def background(self, coroutine: Coroutine[Any, Any, Any]) -> Task[Any]:
        """Start a task that nobody awaits; what it raises is logged."""
        task = self.scheduler.spawn(coroutine)
        task.when_done(_log_failure)
        return task

    def run(self, now_s: float) -> None:
        """Do all that can be done at this time."""
        if self._starting:
            self._starting = False
            self.background(self.metadata.keep_up())
        self.scheduler.run(now_s)
        while self._touched or (self._pump_at_s is not None and self._pump_at_s <= self.scheduler.now_s):
            self._touched = False
            self._pump_at_s = self.pump()
            self.scheduler.run(now_s)

    def next_s(self) -> float | None:
        """When `run` must be called again; None where only news can bring something on."""
        if self._touched:
            return self.scheduler.now_s
        times = [each for each in (self.scheduler.next_s(), self._pump_at_s) if each is not None]
        return min(times, default=None)


class NotCopied:
    """A client has connections of its own: it is made where it is used."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} has connections of its own and cannot be pickled or copied; "
            "make one in each process"
        )


def _log_failure(outcome: Outcome[Any]) -> None:
    error = outcome.error
    if error is not None and not isinstance(error, Cancelled):
        logger.error("internal error of the client: a background task ended", exc_info=error)
