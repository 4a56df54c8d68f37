"""The first moments of a child: what it lets go of and gives up, what it is called, how it ends.

The supervisor has one thread and no ZeroMQ context, so a fork copies nothing that is half done. Everything
imported before the fork stays in pages shared by all.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

import setproctitle

from appliance import journal
from appliance.channels.child import EXIT_CANNOT_START, EXIT_DEFECT, Child
from appliance.channels.roles import RoleKind
from appliance.channels.supervision import Failed
from appliance.control.supervisor.entry_points import Main
from appliance.control.supervisor.permissions import READERS_UMASK
from appliance.control.supervisor.signals import SUPERVISOR_SIGNALS
from appliance.errors import ApplianceDefect, ApplianceError, OperatorFault
from appliance.process.confinement import confine

# Whose files readers of `data.directory.group` may open.
_WRITE_LOGS = frozenset({RoleKind.IOPROC, RoleKind.REPLICA, RoleKind.CLEANER})

_logger = logging.getLogger(__name__)


def fork_child(child: Child, main: Main, *, let_go: Callable[[], None]) -> int:
    """Forks; returns the child's pid, and in the child never.

    Args:
        child: what `main` is given.
        main: the role's `run`.
        let_go: closes, in the child, what the supervisor holds and this child must not.

    Raises:
        OSError: the system has no process or no memory to give.
    """
    # A signal between the fork and the child's own set-up would be written into the supervisor's wake-up
    # pipe.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SUPERVISOR_SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _be(child, main, let_go)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def _be(child: Child, main: Main, let_go: Callable[[], None]) -> None:
    """The child's life, from the fork to its end."""
    code = EXIT_DEFECT
    try:
        gc.enable()
        signal.set_wakeup_fd(-1)
        for number in SUPERVISOR_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SUPERVISOR_SIGNALS)
        journal.start(str(child.role))
        setproctitle.setproctitle(f"appliance: {child.role}")
        if child.role.kind in _WRITE_LOGS and child.wiring.settings.data_directory_group is not None:
            os.umask(READERS_UMASK)
        let_go()
        confine(child.role.kind, child.wiring)
        code = main(child)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else EXIT_DEFECT
    except ApplianceDefect:
        _logger.critical("internal error; the process ends (traceback follows)", exc_info=True)
    except ApplianceError as fault:
        child.supervision.send(Failed(str(fault), fatal=isinstance(fault, OperatorFault)))
        code = EXIT_CANNOT_START
    except BaseException:
        _logger.critical("unhandled exception; the process ends (traceback follows)", exc_info=True)
    finally:
        journal.tell_left_out()
        # Not sys.exit: the frames below belong to the supervisor and would run its clean-up.
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(code)
