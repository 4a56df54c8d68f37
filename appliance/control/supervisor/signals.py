"""The signals that the supervisor acts on, and that mean nothing to its children."""

from __future__ import annotations

import os
import signal

# Ctrl-C and a closed terminal reach the whole process group; only the supervisor acts on them. SIGINT and SIGTERM
# stop the appliance. SIGHUP stops it only when its terminal was closed (duty_cycle.py).
SUPERVISOR_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal that is still there."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def take_signals(wake_write: int) -> None:
    """Have each of SUPERVISOR_SIGNALS written into a descriptor from now on, as one byte."""
    for number in SUPERVISOR_SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISOR_SIGNALS)


def give_signals_back() -> None:
    """Ignore them from now on."""
    signal.set_wakeup_fd(-1)
    for number in SUPERVISOR_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
