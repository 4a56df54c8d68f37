"""The process that started the appliance, watched for its end.

An ephemeral broker ends with its parent: a test run that was killed leaves none behind. PR_SET_PDEATHSIG would do that
for the *thread* that started it, and test runners start brokers from threads that end. A pidfd (pidfd_open(2)) becomes
readable when the whole process ends, and cannot mean another process that got the same number.
"""

from __future__ import annotations

import os

from appliance.errors import OperatorFault


def watch_parent(expected: int | None = None) -> int:
    """Return a pidfd of the parent process, for epoll; it is readable once the parent has ended.

    Return -1 for the first process of a container, whose parent is not in its namespace: it ends with its container.

    Args:
        expected: its process id where the parent has said it; None takes the one there is. The parent may have ended
            before this process could look, and another process is the parent then.

    Raises:
        OperatorFault: the parent has ended already.
    """
    parent = os.getppid()
    if parent == 0 and not expected:
        return -1
    try:
        if expected is not None and parent != expected:
            raise ProcessLookupError
        pidfd = os.pidfd_open(parent)
    except ProcessLookupError:
        raise OperatorFault("the process that started this ephemeral broker has ended") from None
    if os.getppid() != parent:
        os.close(pidfd)
        raise OperatorFault("the process that started this ephemeral broker has ended")
    return pidfd
