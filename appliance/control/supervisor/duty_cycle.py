"""The supervisor's duty cycle: it waits for a death, a word of a child, a signal or a moment, and acts.

What it does: forks the roles in start order, says who died and who serves again, gives each new generation
fresh rings and pools, restarts with back-off, stops in the written order, feeds systemd's watchdog.
What it never does: start a thread, make a ZeroMQ context, touch a byte of shared memory, read a client's byte.
It never polls: with nothing to do it sleeps, with several workers until it asks them whether they live.
How it fails: every child sees the end of its supervision socket and stops in good order; the data directory's
lock is free when the last of them is gone.

Order that matters. A dead generation's rings are removed and its death is told before its next life is
prepared; the next life's rings exist before it is forked; the others are told of it only once it serves. So
a peer attaches to rings that exist, and whoever dies in between is only one more death.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from appliance import journal
from appliance.channels.child import Child
from appliance.channels.roles import CONTROLLER, Role, RoleKind
from appliance.channels.supervision import (
    Failed,
    Heartbeat,
    LogLevels,
    MemoryWanted,
    Message,
    PeerDown,
    PeerHeld,
    PeerUp,
    Ready,
    Stop,
    SupervisionSocket,
    socket_pair,
)
from appliance.channels.wiring import Wiring
from appliance.clock import NS_PER_MS, Clock
from appliance.config import Settings
from appliance.control.supervisor import stop_order
from appliance.control.supervisor.back_off import BackOff
from appliance.control.supervisor.child_states import Event, State
from appliance.control.supervisor.children import ChildRecord
from appliance.control.supervisor.entry_points import Main
from appliance.control.supervisor.fork import fork_child
from appliance.control.supervisor.heartbeats import Heartbeats
from appliance.control.supervisor.held import runs_no_more
from appliance.control.supervisor.listening import close_all
from appliance.control.supervisor.memory_shares import MemoryShares
from appliance.control.supervisor.own_lines import OwnLines
from appliance.control.supervisor.reloading import read_again
from appliance.control.supervisor.signals import (
    SUPERVISOR_SIGNALS,
    give_signals_back,
    has_terminal,
    take_signals,
)
from appliance.control.supervisor.silence import Silence
from appliance.control.systemd import Notifier
from appliance.errors import HostFault
from appliance.ipc.agent import Timer, Timers

# A process that dies this often in a row and never served is not going to: the appliance ends and says so.
STILLBIRTHS_MAX = 5
# SIGKILL ends whom the kernel holds (in a read of a disk that does not answer) once it lets go: waited for so long.
UNKILLABLE_MS = 10_000
# Of it, others may know what it led as soon as it is certain that it runs no more.
HELD_LOOK_MS = 1_000
EXIT_CLEAN = 0
EXIT_FAILED = 1
EXIT_KILLED = 4

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Stopping:
    """A stop under way: since when, how much time it has, and which stage is running."""

    started_ns: int
    total_ms: int
    stage: int = -1
    hurried: bool = False
    timer: Timer | None = None


class Supervisor:
    """Keeps the children of one instance.

    Args:
        wiring: the instance; its standing regions exist.
        mains: what each kind of role runs.
        listeners: name of a listener and slot → listening socket, given to the acceptor; closed here once a stop has
            begun.
        clock: deadlines and back-off.
        notifier: systemd, or nobody.
        on_ready: called once, when every child serves.
        parent: a pidfd of the process whose end stops the appliance, or -1; closed here.
        settings_now: reads the configuration again; None: there is no file.
        own_lines: what the console gets of the supervisor's log; None: nothing.
    """

    def __init__(
        self,
        wiring: Wiring,
        mains: Mapping[RoleKind, Main],
        *,
        listeners: Mapping[tuple[str, int], socket.socket],
        clock: Clock,
        notifier: Notifier,
        on_ready: Callable[[], None],
        parent: int = -1,
        settings_now: Callable[[], Settings] | None = None,
        own_lines: OwnLines | None = None,
    ) -> None:
        self._own_lines = own_lines
        self._settings_now = settings_now
        broker = wiring.settings.broker
        self._wiring = wiring
        self._mains = mains
        self._listeners = dict(listeners)
        self._clock = clock
        self._notifier = notifier
        self._on_ready = on_ready
        self._parent = parent
        self._children = {
            role: ChildRecord(role, BackOff(broker.restart_backoff_ms, broker.restart_backoff_max_ms))
            for role in wiring.running
        }
        self._by_pidfd: dict[int, ChildRecord] = {}
        self._by_socket: dict[int, ChildRecord] = {}
        self._timers = Timers(clock.monotonic_ns)
        self._shares = MemoryShares(self._children.values, self._tell, self._timers.after_ms)
        self._epoll = select.epoll()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._epoll.register(self._wake_read, select.EPOLLIN)
        if parent >= 0:
            self._epoll.register(parent, select.EPOLLIN)
        self._heartbeats = Heartbeats(
            self._children.values, clock, self._timers, tell=self._tell, kill=self._kill
        )
        self._was_ready = False
        self._had_terminal = has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
        self._stopping: Stopping | None = None
        self._exit_code = EXIT_CLEAN

    def start(self) -> None:
        """Forks everything, in the order of the roles. Call once, from the main thread."""
        take_signals(self._wake_write)
        journal.tell_left_out_by(self._timers.after_ms)
        self._start(self._children.values())

    def run(self) -> int:
        """Keeps what was started, and stops it; the exit code. Call once, from the main thread."""
        settings = self._wiring.settings
        if self._notifier.watchdog_ms:
            self._heartbeats.watch_all(self._notifier)
        # No other process could lead the partitions of an only worker, so only systemd's watchdog watches it.
        is_alone = settings.slots == 1 and settings.io.workers == 1
        if settings.broker.worker_hang_timeout_ms and not is_alone:
            self._heartbeats.watch_workers(settings.broker.worker_hang_timeout_ms)
        while any(child.state is not State.GONE for child in self._children.values()):
            self._turn()
        give_signals_back()
        return self._exit_code

    def close(self) -> None:
        """Lets go of every descriptor; the children are gone by now."""
        for child in self._children.values():
            child.close()
        close_all(self._listeners.values())
        self._listeners.clear()
        self._epoll.close()
        self._close_parent()
        os.close(self._wake_read)
        os.close(self._wake_write)

    # One turn

    def _turn(self) -> None:
        due_ns = self._timers.next_due_ns()
        timeout_s = -1.0 if due_ns is None else max(0, due_ns - self._clock.monotonic_ns()) / 1e9
        dead: list[ChildRecord] = []
        for descriptor, events in self._epoll.poll(timeout_s):
            if descriptor == self._wake_read:
                self._on_signals()
            elif descriptor == self._parent:
                self._on_end_of_parent()
            elif (child := self._by_pidfd.get(descriptor)) is not None:
                dead.append(child)
            elif (child := self._by_socket.get(descriptor)) is not None:
                self._on_word(child, events)
        if dead:
            self._on_deaths(dead)
        self._timers.run_due(self._clock.monotonic_ns())

    def _on_signals(self) -> None:
        with suppress(BlockingIOError):
            for number in os.read(self._wake_read, 64):
                if number == signal.SIGHUP:
                    self._on_hang_up()
                elif number in SUPERVISOR_SIGNALS:
                    self._on_stop_order(signal.Signals(number).name)

    def _on_word(self, child: ChildRecord, events: int) -> None:
        if events & select.EPOLLOUT and child.flush():
            self._listen_to(child, for_room=False)
        if events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            self._hear(child)

    def _hear(self, child: ChildRecord) -> None:
        assert child.supervision is not None
        try:
            messages = child.supervision.receive()
        except msgspec.MsgspecError as error:
            # A process that writes nonsense here may write it elsewhere too; the others shall not suffer for it.
            _logger.error("%s sent an invalid message (%s) and was killed", child.role, error)
            child.kill()
            return
        if messages is None:
            # The child closed its end; its pidfd tells the rest.
            self._unregister(self._by_socket, child.supervision.fileno())
            return
        for message in messages:
            match message:
                case Ready() if child.state is State.SERVING:
                    _logger.error("%s reported Ready twice", child.role)
                case Ready():
                    self._on_child_ready(child)
                case Failed():
                    child.failure = message
                case Heartbeat():
                    child.silence.answered()
                case MemoryWanted() if child.role.kind is RoleKind.METRICS:
                    self._shares.begin(child)
                case LogLevels() if child.role == CONTROLLER:
                    journal.set_levels(message.levels)  # the next lives begin with them as well
                    self._tell_others(child, message)
                case _:
                    _logger.error("unexpected message from %s: %r", child.role, message)

    # Lives begin

    def _start(self, children: Iterable[ChildRecord]) -> None:
        """Gives each of `children` its next life. All are prepared before any is forked, so all know each
        other."""
        prepared = [child for child in children if self._prepare(child)]
        for child in prepared:
            self._fork(child)

    def _prepare(self, child: ChildRecord) -> bool:
        child.generation += 1
        child.forked_ns = self._clock.monotonic_ns()
        child.meet(Event.START)
        try:
            self._wiring.create_for(child.role, child.generation, self._peers_of(child))
        except HostFault as fault:
            child.failure = Failed(str(fault))
            self._wiring.remove_for(child.role, child.generation)
            self._after_death(child, "could not be given shared memory")
            return False
        child.has_regions = True
        return True

    def _fork(self, child: ChildRecord) -> None:
        ours, theirs = socket_pair()
        value = Child(
            role=child.role,
            generation=child.generation,
            peers=self._peers_of(child),
            held=frozenset(other.role for other in self._children.values() if other.held),
            wiring=self._wiring,
            supervision=SupervisionSocket(theirs),
            listeners=self._listeners if child.role.kind is RoleKind.ACCEPTOR else {},
        )
        main = self._mains[child.role.kind]
        try:
            child.pid = fork_child(value, main, let_go=lambda: self._let_go_in(child, ours))
            child.pidfd = os.pidfd_open(child.pid)
        except OSError as error:
            ours.close()
            child.failure = Failed(f"cannot fork: {error}")
            self._bury(child)
            self._after_death(child, "could not be forked")
            return
        finally:
            theirs.close()
        child.supervision = SupervisionSocket(ours)
        child.silence = Silence()
        self._by_pidfd[child.pidfd] = child
        self._by_socket[ours.fileno()] = child
        self._epoll.register(child.pidfd, select.EPOLLIN)
        self._epoll.register(ours.fileno(), select.EPOLLIN)

    def _let_go_in(self, forked: ChildRecord, ours: socket.socket) -> None:
        """In the child: closes what belongs to the supervisor, to its siblings and to other roles."""
        ours.close()
        for other in self._children.values():
            other.close()
        self._epoll.close()
        self._close_parent()
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._notifier.close()
        if forked.role.kind is not RoleKind.ACCEPTOR:
            close_all(self._listeners.values())
        self._wiring.close_bells_of_strangers(forked.role)

    def _peers_of(self, child: ChildRecord) -> dict[Role, int]:
        # Whoever is held is there to the controller alone, which must know what may be open in it.
        return {
            other.role: other.generation
            for other in self._children.values()
            if other is not child and other.has_regions and (not other.held or child.role == CONTROLLER)
        }

    def _on_child_ready(self, child: ChildRecord) -> None:
        child.meet(Event.READY)
        if child.state is not State.SERVING:
            return
        child.ever_served = True
        role = child.role
        if role.kind is RoleKind.CONSOLE and self._own_lines is not None:
            self._own_lines.send_to(child, tell=self._tell, after_ms=self._timers.after_ms)
        up = PeerUp(role.kind, role.index, role.slot, child.generation)
        self._tell_others(child, up)
        if child.generation > 1:
            took_ms = (self._clock.monotonic_ns() - child.forked_ns) // NS_PER_MS
            _logger.info("%s is running again as generation %d after %d ms", role, child.generation, took_ms)
        if all(other.state is State.SERVING for other in self._children.values()):
            if self._was_ready:
                self._notifier.status("serving")
            else:
                self._was_ready = True
                self._on_ready()
                self._notifier.ready("serving")

    # Lives end

    def _on_deaths(self, dead: list[ChildRecord]) -> None:
        """Buries all of them before any is started again: the next lives must not meet a dead one."""
        ends: list[tuple[ChildRecord, str]] = []
        for child in dead:
            if child.supervision is not None and child.supervision.fileno() in self._by_socket:
                self._hear(child)
            self._unregister(self._by_pidfd, child.pidfd)
            if child.supervision is not None:
                self._unregister(self._by_socket, child.supervision.fileno())
            ends.append((child, child.reap()))
            self._bury(child)
        restarts = [child for child, end in ends if self._after_death(child, end)]
        self._start(restarts)
        if self._stopping is not None:
            self._next_stage()

    def _bury(self, child: ChildRecord) -> None:
        """Tells the others and removes what the dead generation shared with them."""
        role = child.role
        if child.has_regions:
            child.has_regions = False
            if child.state is not State.STOPPING:
                self._tell_others(child, PeerDown(role.kind, role.index, role.slot, child.generation))
            self._wiring.remove_for(role, child.generation)

    def _after_death(self, child: ChildRecord, end: str) -> bool:
        """Says why and decides what follows. Whether the next life begins at once."""
        failure, child.failure = child.failure, None
        was_told_to_stop = child.state is State.STOPPING
        child.meet(Event.DIED)
        if was_told_to_stop:
            if end != "exited":
                _logger.warning("%s %s while it stopped", child.role, end)
                self._exit_code = self._exit_code or EXIT_KILLED
            return False
        lived_ms = (self._clock.monotonic_ns() - child.forked_ns) // NS_PER_MS
        delay_ms = child.back_off.after_death(lived_ms)
        why = f": {failure.why}" if failure is not None else ""
        if self._stopping is not None:
            _logger.warning("%s %s before the stop signal%s", child.role, end, why)
            if failure is None:
                self._exit_code = self._exit_code or EXIT_KILLED
            child.meet(Event.STOP)
            return False
        if failure is not None and failure.fatal:
            self._give_up(f"{child.role} cannot start{why}")
            return False
        if not child.ever_served and child.back_off.deaths >= STILLBIRTHS_MAX:
            times = child.back_off.deaths
            self._give_up(f"{child.role} {end}{why}; it failed {times} times without serving")
            return False
        when = f"in {delay_ms} ms" if delay_ms else "at once"
        _logger.warning("%s (pid %d) %s%s; restarted %s", child.role, child.pid, end, why, when)
        if self._was_ready:
            self._notifier.status(f"{child.role} restarts")
        if not delay_ms:
            return True
        self._timers.after_ms(delay_ms, lambda: self._start_when_due(child))
        return False

    def _start_when_due(self, child: ChildRecord) -> None:
        if child.state is State.WAITING:
            self._start([child])

    def _give_up(self, why: str) -> None:
        _logger.critical("%s; the appliance stops", why)
        self._exit_code = EXIT_FAILED
        self._begin_stop(self._wiring.settings.broker.shutdown_timeout_ms)

    # The stop

    def _on_stop_order(self, name: str) -> None:
        if self._stopping is None:
            _logger.info("%s: stopping", name)
            self._begin_stop(self._wiring.settings.broker.shutdown_timeout_ms)
        elif not self._stopping.hurried:
            _logger.warning("%s received again: stopping within %d ms", name, stop_order.HURRY_MS)
            self._stopping.hurried = True
            self._stopping.started_ns = self._clock.monotonic_ns()
            self._stopping.total_ms = stop_order.HURRY_MS
            self._order_stage()
        else:
            _logger.warning("%s received again: killing processes that still run", name)
            for child in self._children.values():
                child.kill()

    def _on_end_of_parent(self) -> None:
        """Stop soon: nobody will ask for the data again."""
        self._epoll.unregister(self._parent)
        self._close_parent()
        _logger.info("the process that started this broker has ended: stopping")
        self._begin_stop(stop_order.HURRY_MS)

    def _close_parent(self) -> None:
        if self._parent >= 0:
            os.close(self._parent)
            self._parent = -1

    def _on_hang_up(self) -> None:
        """Stop if the terminal of the start was closed; otherwise read the configuration again."""
        if self._had_terminal and not has_terminal():
            self._on_stop_order("the terminal was closed (SIGHUP)")
        elif self._stopping is None:
            # The wiring is for lives to come; those that are there get the controller's image.
            notifier = self._notifier if self._was_ready else Notifier()
            self._wiring, message = read_again(self._wiring, self._settings_now, notifier)
            if message is not None:
                self._tell(self._children[CONTROLLER], message)

    def _begin_stop(self, total_ms: int) -> None:
        if self._stopping is not None:
            return
        self._notifier.stopping()
        self._stopping = Stopping(self._clock.monotonic_ns(), total_ms)
        for child in self._children.values():
            if not child.is_alive:
                child.meet(Event.STOP)
        self._next_stage()

    def _next_stage(self) -> None:
        """Moves on to the first stage that has a living child."""
        stopping = self._stopping
        assert stopping is not None
        if stopping.stage >= 0 and self._of_stage(stopping.stage):
            return
        while stopping.stage + 1 < len(stop_order.STAGES):
            stopping.stage += 1
            if stopping.stage == 1:
                # The acceptor is gone: who connects from here on is refused, not kept waiting.
                close_all(self._listeners.values())
                self._listeners.clear()
            if self._of_stage(stopping.stage):
                self._order_stage()
                return

    def _of_stage(self, index: int) -> list[ChildRecord]:
        kinds = stop_order.STAGES[index].kinds
        return [child for child in self._children.values() if child.role.kind in kinds and child.is_alive]

    def _order_stage(self) -> None:
        stopping = self._stopping
        assert stopping is not None
        stage = stop_order.STAGES[stopping.stage]
        deadline_ns = stop_order.deadline_ns(stage, stopping.started_ns, stopping.total_ms)
        within_ms = stop_order.told_ms(deadline_ns, self._clock.monotonic_ns())
        for child in self._of_stage(stopping.stage):
            child.meet(Event.STOP)
            self._tell(child, Stop(within_ms))
        if stopping.timer is not None:
            stopping.timer.cancel()
        stopping.timer = self._timers.add(deadline_ns, self._kill_stage)

    def _kill_stage(self) -> None:
        assert self._stopping is not None
        for child in self._of_stage(self._stopping.stage):
            _logger.warning("%s did not stop in time and was killed", child.role)
            self._kill(child)

    # A process that hangs, or that the kernel holds

    def _kill(self, child: ChildRecord) -> None:
        child.kill()
        generation = child.generation
        self._timers.after_ms(HELD_LOOK_MS, lambda: self._look_whether_held(child, generation))
        self._timers.after_ms(UNKILLABLE_MS, lambda: self._look_after_kill(child, generation))

    def _look_whether_held(self, child: ChildRecord, generation: int) -> None:
        """Whoever runs no more writes no word of shared memory: others may lead what it led (decision 0036). Its next
        life, and the slot's other process, wait for its end."""
        if child.generation != generation or not child.is_alive or child.held:
            return
        if not runs_no_more(child.pid):
            self._timers.after_ms(HELD_LOOK_MS, lambda: self._look_whether_held(child, generation))
            return
        child.held = True
        _logger.error(
            "%s (pid %d) was killed, and the kernel holds it, perhaps because a disk does not answer. The process"
            " executes no more instructions. Its files stay open until the kernel lets it end",
            child.role,
            child.pid,
        )
        place = (child.role.kind, child.role.index, child.role.slot, generation)
        down, held = PeerDown(*place), PeerHeld(*place)
        for other in self._children.values():
            if other is not child and other.is_alive:
                self._tell(other, held if other.role == CONTROLLER else down)

    def _look_after_kill(self, child: ChildRecord, generation: int) -> None:
        """Whoever is there still after a kill, the kernel holds. A stop goes on without it; else its end is waited for,
        since until then it may write."""
        if child.generation != generation or not child.is_alive:
            return
        if child.state is not State.STOPPING:
            if not child.held:
                _logger.error("%s (pid %d) was killed but still exists", child.role, child.pid)
            return
        _logger.error("%s (pid %d) was killed but still exists; stopping without it", child.role, child.pid)
        self._unregister(self._by_pidfd, child.pidfd)
        if child.supervision is not None:
            self._unregister(self._by_socket, child.supervision.fileno())
        child.close()
        self._bury(child)
        child.meet(Event.DIED)
        self._exit_code = self._exit_code or EXIT_KILLED
        self._next_stage()

    # Small parts

    def _tell_others(self, child: ChildRecord, message: Message) -> None:
        for other in self._children.values():
            if other is not child and other.is_alive:
                self._tell(other, message)

    def _tell(self, child: ChildRecord, message: Message) -> None:
        if not child.send(message):
            self._listen_to(child, for_room=True)

    def _listen_to(self, child: ChildRecord, *, for_room: bool) -> None:
        assert child.supervision is not None
        events = select.EPOLLIN | (select.EPOLLOUT if for_room else 0)
        if child.supervision.fileno() in self._by_socket:
            self._epoll.modify(child.supervision.fileno(), events)

    def _unregister(self, table: dict[int, ChildRecord], descriptor: int) -> None:
        if table.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
