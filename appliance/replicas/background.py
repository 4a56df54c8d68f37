"""Long work behind all others of a busy host, while its process hears its supervisor."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

from appliance.clock import NS_PER_MS

# Against others that want the same core, about a tenth of it.
BACKGROUND_NICE: Final = 10
LOOK_MS: Final = 500
# Longer than any takeover lasts. Without this bound, a replica on a host without an idle core took a minute to open
# sixty logs. It joined the ISR of the first ones, and did not copy for them in time.
BEHIND_MAX_MS: Final = 3_000

Result = TypeVar("Result")


def behind_others(
    steps: Generator[None, None, Result],
    *,
    meanwhile: Callable[[], None],
    at_most_ms: int = BEHIND_MAX_MS,
) -> Result:
    """Run `steps` to their end on a thread of low priority, and return or raise what they do.

    `meanwhile` is called now and then, on the calling thread. After `at_most_ms` the remaining steps go on with this
    process's own priority.

    The process is thus never still, whatever becomes of the work: a thread that hangs in it is given as long as one
    that spins (`control/supervisor/silence.py`).
    """
    done: Future[Result] = Future()
    deadline_ns = time.monotonic_ns() + at_most_ms * NS_PER_MS
    _on_a_thread(partial(_take, steps, done, behind_until_ns=deadline_ns), meanwhile)
    if not done.done():
        # A thread of its own again, because a thread cannot take its low priority back.
        _on_a_thread(partial(_take, steps, done), meanwhile)
    return done.result()


def _take(
    steps: Generator[None, None, Result], done: Future[Result], *, behind_until_ns: int | None = None
) -> None:
    """Take steps until they end, or with low priority until that time at the latest."""
    if behind_until_ns is not None:
        # Of this thread alone, so it ends with it.
        with suppress(OSError):
            thread_id = threading.get_native_id()
            nice = max(BACKGROUND_NICE, os.getpriority(os.PRIO_PROCESS, thread_id))
            os.setpriority(os.PRIO_PROCESS, thread_id, nice)
    try:
        while behind_until_ns is None or time.monotonic_ns() < behind_until_ns:
            next(steps)
    except StopIteration as end:
        done.set_result(end.value)
    except BaseException as error:
        done.set_exception(error)


def _on_a_thread(work: Callable[[], None], meanwhile: Callable[[], None]) -> None:
    thread = threading.Thread(target=work, name="open")
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_MS / 1000)
        meanwhile()
