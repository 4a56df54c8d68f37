"""Ask the children whether they live, and kill a child that hangs.

An answer is any message of the child. `silence.py` decides whether a child without an answer hangs, or works for long.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from appliance.channels.roles import RoleKind
from appliance.channels.supervision import Heartbeat, Message
from appliance.clock import NS_PER_MS, Clock
from appliance.control.supervisor.child_states import State
from appliance.control.supervisor.children import ChildRecord
from appliance.control.supervisor.silence import processor_ns
from appliance.control.systemd import Notifier
from appliance.ipc.agent import Timers

_logger = logging.getLogger(__name__)


class Heartbeats:
    """Sends heartbeats to children that serve.

    Args:
        children: returns all children.
        clock: time of heartbeats and answers.
        timers: the supervisor's timers, which repeat each round.
        tell: sends a message to a child.
        kill: kills a child, and looks after its death.
    """

    def __init__(
        self,
        children: Callable[[], Iterable[ChildRecord]],
        clock: Clock,
        timers: Timers,
        *,
        tell: Callable[[ChildRecord, Message], None],
        kill: Callable[[ChildRecord], None],
    ) -> None:
        self._children = children
        self._clock = clock
        self._timers = timers
        self._tell = tell
        self._kill = kill
        self._asked_workers_ns = 0

    def watch_all(self, notifier: Notifier) -> None:
        """Notify systemd's watchdog that the supervisor lives, and ask all children; again every third of its time."""
        allowed_ms = notifier.watchdog_ms
        notifier.alive()
        self._ask(self._children(), allowed_ms)
        self._timers.after_ms(max(1, allowed_ms // 3), lambda: self.watch_all(notifier))

    def watch_workers(self, timeout_ms: int) -> None:
        """Ask workers and replica processes, again every third of `timeout_ms`.

        A worker that hangs keeps its partitions, although another slot or the next generation could lead them. It also
        delays requests to the other workers of its slot. A replica process that hangs keeps its copies from the worker
        of its slot. Only the end of the process proves that it writes no more, so the supervisor kills it
        (decision 0036).
        """
        now_ns = self._clock.monotonic_ns()
        period_ms = timeout_ms // 3
        kinds = (RoleKind.IOPROC, RoleKind.REPLICA)
        workers = [child for child in self._children() if child.role.kind in kinds]
        if now_ns - self._asked_workers_ns > 2 * period_ms * NS_PER_MS:
            # The supervisor or the host stood still, so the workers may not have received the last question.
            for child in workers:
                child.silence.answered()
        self._asked_workers_ns = now_ns
        self._ask(workers, timeout_ms)
        self._timers.after_ms(period_ms, lambda: self.watch_workers(timeout_ms))

    def _ask(self, children: Iterable[ChildRecord], allowed_ms: int) -> None:
        now_ns = self._clock.monotonic_ns()
        for child in children:
            if child.state is not State.SERVING:
                continue
            ran_ns = processor_ns(child.pid)
            if not child.silence.is_owed:
                child.silence.asked(now_ns, ran_ns)
                self._tell(child, Heartbeat(now_ns))
            elif (
                child.silence.is_hang(now_ns, ran_ns, allowed_ns=allowed_ms * NS_PER_MS) and not child.killed
            ):
                _logger.error("%s did not answer for %d ms and was killed", child.role, allowed_ms)
                self._kill(child)
