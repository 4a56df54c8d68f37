"""The agent of the console process: a web page for the people who run this appliance.

Does: serves HTML over HTTP to people who have logged in; reads shared memory for what the pages show of processes and
logs; speaks Kafka's protocol to the broker slots, as any client, with the user and the password of the person. Never:
changes anything but by a Kafka request of that person; writes a word that another process reads; opens a log; connects
to anything but the broker slots. Dies: sessions are gone, people log in again. It runs only where `console.listener` is
set.

The main thread has the duty cycle: the supervisor's messages, new connections, looks at shared memory, deadlines. Each
connection has a thread (server.py), because a page waits for answers of the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from appliance.channels.roles import Role
from appliance.clock import NS_PER_MS
from appliance.console.history import History
from appliance.console.kafka_link import BrokerAddress
from appliance.console.observation import IDLE_LOOK_MS, LOOK_MS, LOOK_SHARE, Observer, totals_of
from appliance.console.own_log import OwnLog
from appliance.console.server import PAUSE_MS, Server
from appliance.console.sessions import Sessions
from appliance.console.site import Site
from appliance.errors import HostFault, OperatorFault
from appliance.ipc.process_table import REQUESTS
from appliance.journal import RateLimited
from appliance.process.agent import AgentProcess

LISTEN_AGAIN_MS: Final = 5_000
COMPLAINT_INTERVAL_MS: Final = 60_000

_logger = logging.getLogger(__name__)


class ConsoleAgent:
    """The loop and its state; `run` returns when the supervisor sends Stop, or is gone."""

    def __init__(self, process: AgentProcess) -> None:
        settings, clock = process.settings, process.clock
        self._process = process
        self._settings = settings.console
        self._clock = clock
        self._complain = RateLimited(process.warn, clock, interval_ms=COMPLAINT_INTERVAL_MS)
        self._observer = Observer(process.attachment, settings, processes=len(process.wiring.planned))
        self._history = History()
        self._own_log = OwnLog(process.attachment, process.wiring)
        process.on_log_line = self._own_log.add_supervisors
        self._sessions = Sessions(
            sessions_max=self._settings.sessions_max, idle_ms=self._settings.session_idle_ms
        )
        self._site = Site(
            settings,
            BrokerAddress(settings),
            self._sessions,
            self._history,
            self._observer,
            own_log=self._own_log,
            clock=clock,
            complain=self._complain,
        )
        self._server = Server(
            self._settings.address,
            self._site.serve,
            clock=clock,
            allowed_hosts=self._settings.allowed_hosts,
            is_known=self._site.is_known,
        )
        self._running = True
        self._listen(is_first=process.generation == 1)
        self._look()

    def run(self) -> None:
        """Serve until Stop."""
        process, server = self._process, self._server
        process.publish_counters(self.counters)
        process.ready()
        while self._running:
            for descriptor, _ in process.cycle.wait():
                if descriptor == process.supervision_fd:
                    process.hear(self)
                elif descriptor == server.descriptor and not server.accept():
                    self._pause()
        process.stopping()
        self._history.close()
        server.close()
        self._sessions.close()
        process.close()

    def counters(self) -> Mapping[str, int]:
        """What this life has served and refused."""
        self._process.attachment.row.cells[REQUESTS] = self._server.requests
        return {
            "sessions": len(self._sessions),
            "refused_logins": self._site.refused_logins,
            "refused_requests": self._server.refused_requests + self._site.refused_requests,
            "ended_connections": self._server.ended_connections,
            "streams": self._site.streams.count,
        }

    def _listen(self, *, is_first: bool) -> None:
        """Bind the address.

        Raises:
            OperatorFault: the address cannot be bound at the start of the appliance. Later it is tried again and again,
                because a broker does not end for its console.
        """
        try:
            descriptor = self._server.listen()
            self._process.cycle.epoll.register(descriptor)
            _logger.info("console at http://%s", self._settings.listener)
        except HostFault as fault:
            if is_first:
                raise OperatorFault(str(fault)) from fault
            self._complain(f"{fault}; next attempt in {LISTEN_AGAIN_MS} ms")
            self._process.after_ms(LISTEN_AGAIN_MS, lambda: self._listen(is_first=False))

    def _pause(self) -> None:
        """Accept nothing for a moment, because the system has no descriptor left."""
        descriptor = self._server.descriptor
        self._process.cycle.epoll.unregister(descriptor)
        self._complain(f"no descriptor is left for a connection; next attempt in {PAUSE_MS} ms")
        self._process.after_ms(PAUSE_MS, lambda: self._process.cycle.epoll.register(descriptor))

    def _look(self) -> None:
        """Look at shared memory, end what is late, and come again."""
        began_ns = self._clock.monotonic_ns()
        try:
            look = self._observer.look()
            if look is not None:
                self._history.add(totals_of(look, time_ms=self._clock.now_ms()))
        except Exception as error:  # one look fails, and the next one may not
            self._complain(f"internal error in a look at shared memory: {error!r}")
        self._server.expire()
        self._sessions.expire(began_ns)
        took_ms = (self._clock.monotonic_ns() - began_ns) / NS_PER_MS
        pause_ms = LOOK_MS if len(self._sessions) else IDLE_LOOK_MS
        self._process.after_ms(max(pause_ms, int(took_ms / LOOK_SHARE)), self._look)

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End at once: a browser asks again."""
        self._running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Do nothing: the console has no rings."""

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Do nothing: a request to a dead network process ends with its connection."""
