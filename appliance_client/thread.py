"""The thread that runs the core of a sync client and waits for its transport.

Callers hand work over through a deque and ring an eventfd; nobody but this thread touches core or transport. The thread
sleeps in epoll until a descriptor, the bell or the core's next deadline.

A fork copies none of it: in the child every call raises ForkedError, and nothing is closed that the parent uses.
"""

from __future__ import annotations

import logging
import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from appliance_client.core import Core
from appliance_client.errors import ClosedError, ForkedError, IllegalStateError, TimedOutError
from appliance_client.scheduling import Outcome, Scheduler
from appliance_client.tcp import TcpTransport
from appliance_client.transport import READABLE, WRITABLE, do_what_is_wanted, transport_for

logger = logging.getLogger("appliance_client")

T = TypeVar("T")

_SLEEP_MAX_S: Final = 3_600.0
_TROUBLE: Final = select.EPOLLERR | select.EPOLLHUP


class IoThread:
    """Runs a core. `submit` and `call` are for other threads."""

    def __init__(self, core: Core, name: str) -> None:
        self._core = core
        self._transport = transport_for(core.network.options, self, TcpTransport)
        core.network.run_aside = self._run_aside
        self._tasks: deque[Callable[[], None]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._bell_lock = threading.RLock()
        """Nobody rings while the bell is closed: its number may be that of another file at once."""
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._watched: dict[int, Callable[[int], None]] = {}
        self._closing = False
        self._stopping = False
        self.ended = threading.Event()
        self.forked = False
        self.after_fork: Callable[[], None] = lambda: None
        """Called in the child of a fork."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when an internal error has ended the thread."""
        self.before_sleep: Callable[[float], bool] = lambda _next_s: True
        """Called with the time of the next wake-up. False where there is news, so that the thread must not sleep."""
        self.after_sleep: Callable[[], None] = lambda: None
        _living.add(self)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    # ── for other threads ────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """Raise where nothing can be asked of this thread."""
        if self.forked:
            raise ForkedError(
                "the process was forked after this client was made; make another one in the child"
            )
        if self._closing or self._stopping:
            raise ClosedError("the client is closed")

    def ring(self) -> None:
        """Wake the thread, unless it has ended."""
        with self._bell_lock:
            if not self.ended.is_set():
                os.eventfd_write(self._bell, 1)

    def submit(self, work: Callable[[], None]) -> None:
        """Have this called on the thread."""
        self._tasks.append(work)
        self.ring()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None, what: str) -> T:
        """Run a coroutine on the thread and wait for it.

        Raises:
            TimedOutError: it was not done after `timeout_s`; it is cancelled.
            ClosedError: the client is closed, or was while waiting.
        """
        try:
            self.check()
        except Exception:
            coroutine.close()
            raise
        if self.is_current():
            coroutine.close()
            raise IllegalStateError(f"{what} waits for the brokers; a callback must not")
        done = threading.Event()
        started: list[Any] = []

        def start() -> None:
            task = self._core.scheduler.spawn(coroutine)
            started.append(task)
            task.when_done(lambda _task: done.set())

        self.submit(start)
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            while not done.is_set():
                left_s = 1.0 if deadline_s is None else min(1.0, deadline_s - time.monotonic())
                if left_s <= 0:
                    raise TimedOutError(f"{what}: not done within {timeout_s:.1f} s")
                if not done.wait(left_s) and self.ended.is_set():
                    raise ClosedError("the client was closed")
        except BaseException:  # KeyboardInterrupt, too: what nobody waits for must not go on
            self.submit(lambda: _cancel(started))
            raise
        outcome: Outcome[T] = started[0]
        return outcome.result()

    def is_current(self) -> bool:
        """Whether this thread calls: in a callback, for example."""
        return threading.current_thread() is self._thread

    def stop(self, timeout_s: float) -> None:
        """End the thread, and wait for it at most `timeout_s`; 0 does not wait."""
        if self.forked:
            return
        self._closing = True
        self.submit(self._stop)
        if timeout_s > 0 and not self.is_current():
            self._thread.join(timeout_s)

    def _stop(self) -> None:
        self._stopping = True

    # ── for the transport ────────────────────────────────────────────────────────────────────────────────

    @property
    def scheduler(self) -> Scheduler:
        return self._core.scheduler

    def watch(self, descriptor: int, call: Callable[[int], None], events: int = READABLE) -> None:
        """Call with what is ready of a descriptor; see `transport.Io`."""
        known = descriptor in self._watched
        self._watched[descriptor] = call
        if known:
            self._epoll.modify(descriptor, events)
        else:
            self._epoll.register(descriptor, events)

    def unwatch(self, descriptor: int) -> None:
        """Forget a descriptor."""
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def _run_aside(self, work: Callable[[], Any], outcome: Outcome[Any]) -> None:
        """Run a function of the application on a thread of its own: it may wait, and this one must not."""

        def run() -> None:
            try:
                value = work()
            except BaseException as error:
                failure = error
                self.submit(lambda: outcome.reject(failure))
            else:
                self.submit(lambda: outcome.resolve(value))

        try:
            threading.Thread(target=run, name=f"{self._thread.name} aside", daemon=True).start()
        except RuntimeError as error:  # no thread is left
            outcome.reject(error)

    # ── the thread ───────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except Exception:
            logger.exception("internal error of the client: its thread ended")
            self._stopping = True
            self.on_failure()
        finally:
            self._stopping = True
            self._end()

    def _turn(self) -> None:
        core = self._core
        with core.lock:
            wake_s = self._work()
            rests = self._transport.may_sleep()
        may_sleep = self.before_sleep(wake_s)
        timeout_s = min(max(0.0, wake_s - time.monotonic()), _SLEEP_MAX_S)
        if not (rests and may_sleep) or self._tasks or self._stopping:
            timeout_s = 0.0
        events = self._epoll.poll(timeout_s)
        self.after_sleep()
        with core.lock:
            if not may_sleep:
                core.touch()
            core.scheduler.advance(time.monotonic())
            self._transport.woken()
            self._take_events(events)

    def _work(self) -> float:
        """Do what callers and the clock want; returns when to wake up."""
        core = self._core
        while self._tasks:
            self._tasks.popleft()()
        core.run(time.monotonic())
        do_what_is_wanted(self._core.network, self._transport)
        next_s = core.next_s()
        return time.monotonic() + 60.0 if next_s is None else next_s

    def _take_events(self, events: list[tuple[int, int]]) -> None:
        for descriptor, event in events:
            if descriptor == self._bell:
                os.eventfd_read(self._bell)
                self._core.touch()
                continue
            call = self._watched.get(descriptor)
            if call is not None:
                call(READABLE | WRITABLE if event & _TROUBLE else event)

    def _end(self) -> None:
        with self._core.lock:
            self._end_core()
        with self._bell_lock:
            self.ended.set()
            os.close(self._bell)
        self._epoll.close()

    def _end_core(self) -> None:
        self._core.network.close()
        try:
            do_what_is_wanted(self._core.network, self._transport)
            self._transport.close()
            self._core.run(time.monotonic())
        except Exception:
            logger.exception("internal error of the client while it was closed")


def _cancel(started: list[Any]) -> None:
    for task in started:
        task.cancel()


_living: weakref.WeakSet[IoThread] = weakref.WeakSet()


def _mark_forked() -> None:
    for each in _living:
        each.forked = True
        each.after_fork()


os.register_at_fork(after_in_child=_mark_forked)
