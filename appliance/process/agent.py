"""The skeleton of a process: its shared memory, its duty cycle, and what it does when the supervisor sends something.

Each wing has a `main.py`, which wires, and one class `…Agent`, which has the loop and the state. `main.py` is

    def run(child):
        return run_agent(child, wire)                       wire(process) makes the agent

An agent keeps its own loop, because the order of a turn is what makes it fast; the skeleton gives it the pieces:

    process.ready()                                         the process serves from now on
    while running:
        for descriptor, _ in process.cycle.wait():          the doorbell, the rings and the supervisor wake it
            if descriptor == process.supervision_fd:
                process.hear(agent)                         calls `agent.peer_up`, `peer_down` and `stop`
        …                                                   a turn of the agent's own
        process.beat()                                      in the middle of long work only
    process.stopping(); process.close()

| message | what the skeleton does | what it asks of the agent |
|---|---|---|
| PeerUp | lets go of an older generation; attaches to the rings of the new one | `peer_up` |
| PeerDown | afterwards: lets go of the rings | `peer_down`, once for each generation |
| PeerHeld (to the controller only) | nothing | `on_peer_held` |
| MemoryShare (to the metrics process only) | nothing | `on_memory_share` |
| Reloaded (to the controller only) | nothing | `on_reloaded` |
| Heartbeat | sends it back | nothing |
| LogLevels | logs from these levels on | nothing |
| Stop, or the end of the socket | nothing | `stop` |

Costs: `hear` runs only when the supervisor has sent something. A turn of the loop calls nothing of this module.
"""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import zmq

from appliance import journal
from appliance.channels.child import EXIT_CLEAN, Child
from appliance.channels.controller_link import ControllerLink
from appliance.channels.counter_names import COUNTER_NAMES
from appliance.channels.roles import Role
from appliance.channels.supervision import (
    Failed,
    Heartbeat,
    LogLevels,
    LogLine,
    MemoryShare,
    Message,
    PeerDown,
    PeerHeld,
    PeerUp,
    Ready,
    Reloaded,
    Stop,
)
from appliance.clock import NS_PER_MS, Clock, SystemClock
from appliance.ipc.agent import DutyCycle, Timer, freeze_garbage
from appliance.ipc.process_table import COUNTER_0, ProcessState

BEAT_MS: Final = 500
"""The least time between two heartbeats that a process sends unasked."""
COUNTERS_MS: Final = 100
"""How old the counters of a process are at most, while they change."""

_logger = logging.getLogger(__name__)


class Agent(Protocol):
    """What the skeleton asks of a process. It calls between two steps of a turn, never in the middle of one."""

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """`peer` serves.

        Args:
            peer: any process of the instance, also one to which no ring runs.
            new_rings: rings of a new generation were attached just now, and the duty cycle looks at the inbound one.
        """

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """That generation of `peer` has ended; forget what it was asked and what it asked.

        Args:
            peer: any process of the instance.
            generation: the one that has ended. It is not older than the one that was attached.
            had_rings: rings to it are attached. They are released when this returns; call `AgentProcess.release` to
                have them released before.
        """

    def stop(self, within_ms: int) -> None:
        """Finish what is under way within this time and end; 0 when the supervisor is gone."""


class RunningAgent(Protocol):
    """An agent that has its own loop."""

    def run(self) -> None:
        """Serve until Stop, and close."""


def run_agent(child: Child, wire: Callable[[AgentProcess], RunningAgent]) -> int:
    """The life of a process that has one agent from its beginning to its end; its exit code.

    Args:
        child: what the supervisor gave it.
        wire: makes the agent. What lives when it returns is never looked at by the garbage collector again.
    """
    process = AgentProcess(child)
    agent = wire(process)
    freeze_garbage()
    agent.run()
    process.end()
    return EXIT_CLEAN


class AgentProcess:
    """One life of one process, around its agent.

    Args:
        child: what the supervisor gave it.
        warn: where lines for the operator go.
        clock: the process's clock.
    """

    __slots__ = (
        "_beaten_ns",
        "_context",
        "_ended",
        "attachment",
        "clock",
        "cycle",
        "generation",
        "held",
        "on_log_line",
        "on_memory_share",
        "on_peer_held",
        "on_reloaded",
        "peers",
        "role",
        "settings",
        "supervision",
        "supervision_fd",
        "warn",
        "wiring",
    )

    def __init__(
        self, child: Child, *, warn: Callable[[str], None] = _logger.warning, clock: Clock | None = None
    ) -> None:
        self.clock: Clock = SystemClock() if clock is None else clock
        self.warn = warn
        self.role = child.role
        self.generation = child.generation
        self.settings = child.settings
        self.wiring = child.wiring
        self.supervision = child.supervision
        self.supervision_fd = child.supervision.fileno()
        self.attachment = child.attach()
        self.attachment.row.start(
            os.getpid(), child.generation, now_ms=self.clock.now_ms(), now_ns=self.clock.monotonic_ns()
        )
        self.cycle = DutyCycle(
            self.attachment.doorbell, self.attachment.row, monotonic_ns=self.clock.monotonic_ns
        )
        self.cycle.epoll.register(self.supervision_fd, select.EPOLLIN)
        for reader in self.attachment.inbound.values():
            self.cycle.add_inbox(reader)
        self.peers: dict[Role, int] = dict(child.peers)
        """The living generation of every other process, as far as the supervisor has said."""
        self.held: set[Role] = set(child.held)
        """Those of them that were killed, and that the kernel does not let end. Only the controller is told."""
        self.on_peer_held: Callable[[Role, int], object] | None = None
        self.on_memory_share: Callable[[MemoryShare], object] | None = None
        self.on_reloaded: Callable[[dict[str, str]], object] | None = None
        self.on_log_line: Callable[[int, str], object] | None = None
        self._ended: dict[Role, int] = {}
        self._beaten_ns = 0
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        journal.tell_left_out_by(self.cycle.timers.after_ms)
        journal.copy_to(self.attachment.last_lines.write)

    # Sockets between processes

    @property
    def context(self) -> zmq.Context[zmq.Socket[bytes]]:
        """The process's ZeroMQ context. It is made when it is first wanted, so never before the fork."""
        if self._context is None:
            self._context = zmq.Context()
        return self._context

    def controller_link(self) -> ControllerLink:
        """Connect to the controller, and wake for what it sends."""
        link = ControllerLink(self.wiring, self.role, self.generation, context=self.context)
        self.cycle.add_inbox(link)
        self.cycle.epoll.register(link.fileno(), select.EPOLLIN)
        return link

    # What the process tells the supervisor

    def ready(self) -> None:
        """The process serves from now on."""
        self.attachment.row.set_state(ProcessState.RUNNING)
        self.supervision.send(Ready())

    def log_from(self, levels: dict[str, str]) -> None:
        """Log from these levels on, and have the supervisor tell all other processes."""
        if journal.set_levels(levels):
            _logger.info("log levels: %s", ", ".join(f"{name} {level}" for name, level in levels.items()))
            self.supervision.send(LogLevels(levels))

    def failed(self, why: str, *, fatal: bool) -> None:
        """The process cannot start. With `fatal` the appliance ends."""
        self.supervision.send(Failed(why, fatal=fatal))

    def beat(self) -> None:
        """Send a heartbeat during long work, so that the supervisor does not take this process for one that hangs.

        Call it as often as is convenient: at most one is sent in BEAT_MS.
        """
        now_ns = self.clock.monotonic_ns()
        if now_ns - self._beaten_ns >= BEAT_MS * NS_PER_MS:
            self._beaten_ns = now_ns
            self.supervision.send(Heartbeat(now_ns))

    # What the supervisor tells the process

    def wait(self, agent: Agent, timeout_ms: int | None = None) -> None:
        """Sleep until there is work, at most `timeout_ms`, and carry out what the supervisor has sent.

        For agents that wait for no descriptor but the supervisor's. One call more a turn than the loop of a hot agent,
        which asks the duty cycle itself.
        """
        if self.cycle.wait(timeout_ms):
            self.hear(agent)

    def hear(self, agent: Agent) -> None:
        """Carry out what the supervisor has sent."""
        self.carry_out(agent, self.supervision.receive())

    def carry_out(self, agent: Agent, messages: list[Message] | None) -> None:
        """Carry out what was received; None means that the supervisor is gone."""
        if messages is None:
            self.warn("the supervisor is gone; stopping")
            agent.stop(0)
            return
        for message in messages:
            match message:
                case PeerUp():
                    self._peer_up(agent, message.role, message.generation)
                case PeerDown():
                    self._peer_down(agent, message.role, message.generation)
                case PeerHeld() if self.on_peer_held is not None:
                    self.held.add(message.role)
                    self.on_peer_held(message.role, message.generation)
                case MemoryShare() if self.on_memory_share is not None:
                    self.on_memory_share(message)
                case Reloaded() if self.on_reloaded is not None:
                    self.on_reloaded(message.configs)
                case LogLine() if self.on_log_line is not None:
                    self.on_log_line(message.position, message.text)
                case Stop():
                    agent.stop(message.within_ms)
                case Heartbeat():
                    self.supervision.send(message)
                case LogLevels():
                    journal.set_levels(message.levels)
                case _:
                    self.warn(f"unexpected message from the supervisor: {message}")

    def _peer_up(self, agent: Agent, peer: Role, generation: int) -> None:
        attached = self.attachment.generations.get(peer, generation)
        if attached != generation:
            self._peer_down(agent, peer, attached)
        self.peers[peer] = generation
        self.held.discard(peer)
        new_rings = self.attachment.peer_up(peer, generation)
        if new_rings and (reader := self.attachment.inbound.get(peer)) is not None:
            self.cycle.add_inbox(reader)
        agent.peer_up(peer, new_rings=new_rings)

    def _peer_down(self, agent: Agent, peer: Role, generation: int) -> None:
        if self._ended.get(peer, 0) >= generation:
            return  # a process that the kernel held is reported twice: when it runs no more, and when it ends
        self._ended[peer] = generation
        if self.peers.get(peer) == generation:
            del self.peers[peer]
            self.held.discard(peer)
        attached = self.attachment.generations.get(peer, generation)
        if attached != generation:
            return
        had_rings = peer in self.attachment.generations
        agent.peer_down(peer, generation, had_rings=had_rings)
        if had_rings:
            self.release(peer)

    def release(self, peer: Role) -> None:
        """Let go of everything that was shared with `peer`; nothing, when that was done."""
        reader = self.attachment.inbound.get(peer)
        if reader is not None:
            self.cycle.remove_inbox(reader)
        self.attachment.peer_down(peer)

    # Time and counters

    def after_ms(self, pause_ms: int, action: Callable[[], None]) -> Timer:
        """Call `action` after `pause_ms`, in a turn of the duty cycle."""
        return self.cycle.timers.after_ms(pause_ms, action)

    def publish_counters(self, counters: Callable[[], Mapping[str, int]]) -> None:
        """Write what `counters` returns into this process's row from now on, each by its name in COUNTER_NAMES.

        It is called at the end of a turn, at most every COUNTERS_MS and only while something happens; keep it cheap.
        """
        cells = self.attachment.row.cells
        places = {
            name: place
            for place, name in enumerate(COUNTER_NAMES[self.role.kind], COUNTER_0)
            if name is not None
        }

        def publish() -> None:
            for name, value in counters().items():
                cells[places[name]] = value

        self.cycle.report_every(COUNTERS_MS, publish)

    # The end

    def stopping(self) -> None:
        """The process ends; what is under way is finished."""
        self.attachment.row.set_state(ProcessState.STOPPING)

    def close(self) -> None:
        """Close the duty cycle. The doorbell's descriptor stays the supervisor's."""
        self.cycle.close()

    def end(self) -> None:
        """Wait until what the agent's closed sockets sent has left."""
        if self._context is not None:
            self._context.term()
