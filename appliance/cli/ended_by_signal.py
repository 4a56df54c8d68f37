"""A command that cleans up after itself when a service manager or a closed terminal ends it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ends_by_signal() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the command as Ctrl-C does, so that it cleans up.

    One that is ignored stays ignored: `nohup` keeps a command going when its terminal is closed.
    """

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    heard = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
