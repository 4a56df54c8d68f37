"""The controller's loop: messages of workers and network processes, words of the supervisor, events of the
store.

It sleeps until one of them has something; there is no timer but the deadline of a change that is under way.
"""

from __future__ import annotations

import logging
import select
from collections.abc import Callable

from appliance.channels import controller_counters as counters
from appliance.channels.supervision import Heartbeat, PeerDown, PeerHeld, PeerUp, Stop, SupervisionSocket
from appliance.clock import Clock
from appliance.control.controller.control_socket import ControlSocket
from appliance.control.controller.controller import Controller
from appliance.control.store.metadata_store import EventKind, MetadataStore
from appliance.errors import HostFault
from appliance.ipc.agent import DutyCycle, Timer
from appliance.ipc.process_table import REQUESTS, ProcessRow

_NS_PER_MS = 1_000_000

_logger = logging.getLogger(__name__)


class Superseded(HostFault):
    """Another controller leads, or the session with the store is over: this process must begin anew."""


class ControllerLoop:
    """Waits, and calls the parts. `stopped` once the supervisor said so or is gone."""

    __slots__ = ("_clock", "_cycle", "_row", "_store", "_supervision", "controller", "stopped")

    def __init__(
        self,
        cycle: DutyCycle,
        row: ProcessRow,
        *,
        store: MetadataStore,
        supervision: SupervisionSocket,
        clock: Clock,
    ) -> None:
        self._cycle = cycle
        self._row = row
        self._store = store
        self._supervision = supervision
        self._clock = clock
        self.controller: Controller | None = None
        self.stopped = False
        cycle.epoll.register(supervision.fileno(), select.EPOLLIN)
        cycle.epoll.register(store.fileno(), select.EPOLLIN)

    def alarm(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """See `alarms.Alarms`."""
        return self._cycle.timers.add(self._clock.monotonic_ns() + delay_ms * _NS_PER_MS, action)

    def await_vacancy(self) -> None:
        """Standing by: sleeps until /controller may be free, or the supervisor says stop."""
        while not self.stopped:
            self._cycle.wait()
            self._hear_supervisor()
            if self._store.events():
                return

    def serve(self, controller: Controller, socket: ControlSocket, *, registrations: MetadataStore) -> None:
        """Until stopped.

        Raises:
            Superseded: the store says that this process is not the controller any more, or the session is over that the
                slots are registered by.
        """
        self.controller = controller
        others = [registrations] if registrations is not self._store else []
        for each in others:
            self._cycle.epoll.register(each.fileno(), select.EPOLLIN)
        self._cycle.add_inbox(socket)
        self._cycle.epoll.register(socket.fileno(), select.EPOLLIN)
        while not self.stopped:
            self._cycle.wait()
            self._hear_supervisor()
            self._hear_store(self._store, *others)
            messages = socket.receive()
            if messages:
                self._row.cells[REQUESTS] += len(messages)
                controller.turn(messages)
            controller.settle()
            self._show(controller)

    def _hear_supervisor(self) -> None:
        words = self._supervision.receive()
        if words is None:
            _logger.warning("the supervisor is gone; stopping")
            self.stopped = True
            return
        for word in words:
            match word:
                case Stop():
                    self.stopped = True
                case Heartbeat():
                    self._supervision.send(word)
                case PeerDown():
                    if self.controller is not None:
                        self.controller.process_down(word.role, word.generation)
                case PeerHeld():
                    if self.controller is not None:
                        self.controller.process_down(word.role, word.generation, held=True)
                case PeerUp():
                    pass  # its hello says more
                case _:
                    _logger.warning("unexpected word of the supervisor: %s", word)

    def _hear_store(self, *sessions: MetadataStore) -> None:
        for event in (event for session in sessions for event in session.events()):
            if event.kind is EventKind.SESSION_EXPIRED or event.path == "/controller":
                raise Superseded(f"no longer the controller: {event.kind} {event.path}")

    def _show(self, controller: Controller) -> None:
        cells, statistics = self._row.cells, controller.statistics()
        cells[counters.TOPICS] = statistics["topics"]
        cells[counters.PARTITIONS] = statistics["partitions"]
        cells[counters.PENDING_CHANGES] = statistics["waves"]
        cells[counters.ISR_SHRINKS] = statistics["isr_shrinks"]
        cells[counters.ISR_EXPANSIONS] = statistics["isr_expansions"]
