"""The agent of the controller: messages of workers and network processes, messages of the supervisor, events of the
store.

It sleeps until one of them has something; there is no timer but the deadline of a change that is under way.
"""

from __future__ import annotations

import select
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from appliance.channels.roles import Role
from appliance.clock import NS_PER_MS
from appliance.control.controller.control_socket import ControlSocket
from appliance.control.controller.controller import Controller
from appliance.control.store.metadata_store import EventKind, MetadataStore
from appliance.errors import HostFault
from appliance.ipc.agent import Timer
from appliance.ipc.process_table import REQUESTS
from appliance.process.agent import AgentProcess


class Superseded(HostFault):
    """Another controller leads, or the session with the store is over: this process must begin anew."""


COUNTED: Final = ("isr_shrinks", "isr_expansions", "unclean_elections")
"""What a controller has counted since it leads; the process adds up what all of its sessions have."""


class ControllerAgent:
    """Waits, and calls the parts. `stopped` once the supervisor has sent Stop or is gone.

    One process may have several sessions with the store, one after the other, until one of them leads.
    """

    __slots__ = ("_earlier", "_process", "controller", "file_configs", "stopped")

    def __init__(self, process: AgentProcess, file_configs: Mapping[str, str] | None = None) -> None:
        """`file_configs`: what the configuration file said when it was read again; None: it was not."""
        self.file_configs = file_configs
        self._process = process
        self.controller: Controller | None = None
        self._earlier: Counter[str] = Counter()  # counted in earlier sessions
        self.stopped = False
        process.on_peer_held = self.peer_held
        process.on_reloaded = self.reloaded
        process.publish_counters(self.counters)

    def reloaded(self, configs: dict[str, str]) -> None:
        """The configuration file was read again; a controller that does not lead yet takes it up when it does."""
        self.file_configs = configs
        if self.controller is not None:
            self.controller.reload(configs)

    def alarm(self, delay_ms: int, action: Callable[[], None]) -> Timer:
        """See `alarms.Alarms`."""
        return self._process.after_ms(delay_ms, action)

    @contextmanager
    def session(self, store: MetadataStore) -> Iterator[None]:
        """Wake for the events of a store, while its session lasts. Alarms of the session end with it."""
        try:
            with self._watching(store.fileno()):
                yield
        finally:
            if self.controller is not None:
                counted = self.controller.statistics()
                self._earlier.update({name: counted[name] for name in COUNTED})
            self.controller = None
            self._process.cycle.timers.clear()

    @contextmanager
    def _watching(self, *descriptors: int) -> Iterator[None]:
        epoll = self._process.cycle.epoll
        for descriptor in descriptors:
            epoll.register(descriptor, select.EPOLLIN)
        try:
            yield
        finally:
            for descriptor in descriptors:
                with suppress(OSError):  # a session that has ended may have closed it
                    epoll.unregister(descriptor)

    def pause(self, pause_ms: int) -> bool:
        """Do nothing but carry out what the supervisor sends, for this time; whether to stop."""
        clock = self._process.clock
        until_ns = clock.monotonic_ns() + pause_ms * NS_PER_MS
        while not self.stopped and (left_ns := until_ns - clock.monotonic_ns()) > 0:
            self._process.cycle.wait(-(-left_ns // NS_PER_MS))
            self._process.hear(self)
        return self.stopped

    def await_vacancy(self, store: MetadataStore) -> None:
        """Stand by: sleep until /controller may be free, or the supervisor sends Stop."""
        while not self.stopped:
            self._process.cycle.wait()
            self._process.hear(self)
            if store.events():
                return

    def serve(
        self,
        controller: Controller,
        socket: ControlSocket,
        *,
        store: MetadataStore,
        registrations: MetadataStore,
    ) -> None:
        """Lead until Stop.

        Raises:
            Superseded: the store says that this process is not the controller any more, or the session is over that the
                slots are registered by.
        """
        self.controller = controller
        process, cycle = self._process, self._process.cycle
        others = [registrations] if registrations is not store else []
        cycle.add_inbox(socket)
        try:
            with self._watching(socket.fileno(), *(each.fileno() for each in others)):
                while not self.stopped:
                    cycle.wait()
                    process.hear(self)
                    self._hear_store(store, *others)
                    messages = socket.receive()
                    if messages:
                        process.attachment.row.cells[REQUESTS] += len(messages)
                        controller.turn(messages)
                    controller.settle()
        finally:
            cycle.remove_inbox(socket)

    def _hear_store(self, *sessions: MetadataStore) -> None:
        for event in (event for session in sessions for event in session.events()):
            if event.kind is EventKind.SESSION_EXPIRED or event.path == "/controller":
                raise Superseded(f"no longer the controller: {event.kind} {event.path}")

    def counters(self) -> Mapping[str, int]:
        """Topics, partitions, changes under way, and what has happened to leaders and ISRs; none before it leads."""
        if self.controller is None:
            return {}
        statistics = self.controller.statistics()
        return {
            "topics": statistics["topics"],
            "partitions": statistics["partitions"],
            "pending_changes": statistics["waves"],
            **{name: self._earlier[name] + statistics[name] for name in COUNTED},
        }

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End after this turn: the next life finishes what is under way."""
        self.stopped = True

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Do nothing: the process says hello, which tells more."""

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Elect other leaders for what a dead process led."""
        if self.controller is not None:
            self.controller.process_down(peer, generation)

    def peer_held(self, peer: Role, generation: int) -> None:
        """Elect other leaders at once: the process runs no more, though it has not ended."""
        if self.controller is not None:
            self.controller.process_down(peer, generation, held=True)
