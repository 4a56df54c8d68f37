"""Long work behind all others of a busy host, while its process hears its supervisor."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final, TypeVar

# Against others that want the same core, about a tenth of it.
BACKGROUND_NICE: Final = 10
LOOK_MS: Final = 500

Result = TypeVar("Result")


def behind_others(work: Callable[[], Result], *, meanwhile: Callable[[], None]) -> Result:
    """What `work` returns, or raises, on a thread of its own that goes behind the others; `meanwhile` is called now and
    then, here.

    The process is thus never still, whatever becomes of the work: who hangs in it is given as long as one that spins
    (`control/supervisor/silence.py`).
    """
    done: Future[Result] = Future()

    def run() -> None:
        # Of this thread alone, so it ends with it; a process could not take that back.
        with suppress(OSError):
            thread_id = threading.get_native_id()
            nice = max(BACKGROUND_NICE, os.getpriority(os.PRIO_PROCESS, thread_id))
            os.setpriority(os.PRIO_PROCESS, thread_id, nice)
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    thread = threading.Thread(target=run, name="open")
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_MS / 1000)
        meanwhile()
    return done.result()
