"""The duty cycle of the cleaner: drive the rounds step by step, hear everybody in between, sleep when nothing is dirty.

Does: reads closed segments of compacted logs, writes `.cleaned` files and `cleaner-offset-checkpoint`.
Never: renames, cuts or deletes a segment (it asks the owner), maps a file, reads the active segment or beyond the last
stable offset; polls, but where an open transaction or a lagging replica holds closed segments back. Asleep it wakes for
a LOOK, for the supervisor, for the one time at which a log that nobody writes to comes due (min.compaction.lag.ms,
max.compaction.lag.ms), and every `log.cleaner.backoff.ms` for logs that are held back.
Dies: the next life looks everywhere, removes what this one left half written, and cleans the round again; the owner of
a log needs nothing from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.channels.cleaner_channel import OP, ROW, CleanerOp
from appliance.channels.roles import Role, RoleKind
from appliance.clock import NS_PER_MS
from appliance.config import BrokerConfigs
from appliance.config.dynamic import CLEANER_BACKOFF_MS, CLEANER_BUFFER_BYTES, CLEANER_RATE, shared_value
from appliance.control.cleaner.compacted_logs import CompactedLogs
from appliance.control.cleaner.rounds import Answer, Ask, Moved, OwnerLost, Rounds, Steps
from appliance.control.cleaner.throttle import Throttle
from appliance.ipc.process_table import BYTES_IN, ERRORS, REQUESTS
from appliance.process.agent import AgentProcess

_LOOK = int(CleanerOp.LOOK)
LOOKS = 2
"""Looks after a LOOK: a worker may send it a moment before the metadata image has the reason."""


class CleanerAgent:
    """The loop and its state; `run` returns when the supervisor sends Stop, or is gone."""

    def __init__(self, process: AgentProcess) -> None:
        attachment, clock, settings = process.attachment, process.clock, process.settings
        self._process = process
        self._attachment = attachment
        self._clock = clock
        broker = settings.broker
        self._logs = CompactedLogs(
            {slot: settings.log_directories(slot) for slot in range(settings.slots)},
            lambda image, slot: BrokerConfigs.of(image.broker_configs, slot).log_defaults(settings),
            workers=settings.io.workers,
        )
        self._rounds = Rounds(
            self._logs,
            attachment.image.current,
            clock,
            map_bytes_max=broker.log_cleaner_dedupe_buffer_bytes,
            retry_ms=max(1, broker.log_cleaner_backoff_ms),
        )
        self._throttle = Throttle(broker.log_cleaner_io_max_bytes_per_second)
        self._backoff_ns = broker.log_cleaner_backoff_ms * NS_PER_MS
        self._steps: Steps | None = None
        self._asked: Role | None = None
        self._answer: Answer | None = None
        self._lost: OwnerLost | None = None
        self._go_on_ns = 0
        self._looks = LOOKS
        self._may_look_ns = 0
        self._settings_version = 0
        self._compacted_logs = self._uncleanable_partitions = 0
        self._running = True

    def run(self) -> None:
        """Work until Stop."""
        process = self._process
        process.publish_counters(self.counters)
        process.ready()
        while self._running:
            process.wait(self, self._timeout_ms())
            self._hear()
            if self._running:
                self._work()
        process.stopping()
        if self._steps is not None:
            self._steps.close()
        process.close()

    def counters(self) -> Mapping[str, int]:
        """Logs that are compacted, as of the last round, and what all rounds have done."""
        return {
            "compacted_logs": self._compacted_logs,
            "uncleanable_partitions": self._uncleanable_partitions,
            "rounds": self._rounds.rounds,
            "freed_bytes": self._rounds.freed_bytes,
        }

    def _timeout_ms(self) -> int | None:
        """How long nothing is to be done; None: until somebody says something."""
        now_ns = self._clock.monotonic_ns()
        if self._steps is not None:
            if self._lost is not None:
                return 0
            if self._asked is not None:
                return None
            return _until_ms(self._go_on_ns, now_ns)
        if self._looks:
            return _until_ms(self._may_look_ns, now_ns)
        look_ms = self._logs.next_look_ms()
        if look_ms is None:
            return None
        wait_ms = max(0, look_ms - self._clock.now_ms())
        # A day at a time: the wall clock may be set meanwhile.
        return min(max(wait_ms, _until_ms(self._may_look_ns, now_ns)), 86_400_000)

    def _hear(self) -> None:
        for peer, reader in self._attachment.inbound.items():
            messages = reader.drain()
            if not messages:
                continue
            self._attachment.row.cells[REQUESTS] += len(messages)
            looks = [message[ROW] for message in messages if message[OP] == _LOOK]
            if looks:
                self._looks = LOOKS
                self._logs.look(peer.slot, looks)
            for message in messages:
                if message[OP] != _LOOK:
                    self._answer = message

    def _work(self) -> None:
        """One step, if one can be taken now."""
        now_ns = self._clock.monotonic_ns()
        if self._attachment.image.version != self._settings_version:
            self._go_by_settings()
        if self._steps is None:
            if not self._is_due(now_ns):
                return
            self._looks = max(0, self._looks - 1)
            self._steps = self._rounds.steps()
            self._asked = self._answer = None
            self._take(None)
        elif self._lost is not None:
            lost, self._lost = self._lost, None
            self._take(None, lost)
        elif self._asked is not None:
            if self._answer is not None:
                self._asked = None
                self._take(self._answer)
        elif now_ns >= self._go_on_ns:
            self._take(None)

    def _go_by_settings(self) -> None:
        """Takes over what was set on brokers while running; at the next wake-up after it was set."""
        image = self._attachment.image.current()
        self._settings_version = self._attachment.image.version if image is None else image.version
        stored = {} if image is None else image.broker_configs
        settings = self._attachment.wiring.settings
        backoff_ms = shared_value(settings, stored, CLEANER_BACKOFF_MS)
        self._may_look_ns += backoff_ms * NS_PER_MS - self._backoff_ns
        self._backoff_ns = backoff_ms * NS_PER_MS
        self._rounds.set_limits(
            map_bytes_max=shared_value(settings, stored, CLEANER_BUFFER_BYTES), retry_ms=max(1, backoff_ms)
        )
        self._throttle.set_rate(shared_value(settings, stored, CLEANER_RATE))

    def _is_due(self, now_ns: int) -> bool:
        if now_ns < self._may_look_ns:
            return False
        look_ms = self._logs.next_look_ms()
        return bool(self._looks) or (look_ms is not None and look_ms <= self._clock.now_ms())

    def _take(self, answer: Answer | None, fault: OwnerLost | None = None) -> None:
        """Lets the rounds go on, with an answer or without what they waited for."""
        steps = self._steps
        assert steps is not None
        try:
            if fault is not None:
                step = steps.throw(fault)
            elif answer is not None:
                step = steps.send(answer)
            else:
                step = next(steps)
        except StopIteration:
            self._done()
            return
        match step:
            case Moved(length_bytes):
                self._attachment.row.cells[BYTES_IN] += length_bytes
                self._go_on_ns = self._throttle.moved(length_bytes, self._clock.monotonic_ns())
            case Ask(owner, message):
                self._ask(owner, message)

    def _ask(self, owner: Role, message: tuple[int, ...]) -> None:
        writer = self._attachment.outbound.get(owner)
        if writer is None or not writer.put(*message):
            # Thrown from the loop: a thousand logs of one absent owner are not a thousand calls deep.
            self._lost = OwnerLost(f"{owner} is not there")
            return
        self._asked, self._answer = owner, None
        writer.publish()
        self._attachment.bells[owner].ring()

    def _done(self) -> None:
        self._steps = None
        self._may_look_ns = self._clock.monotonic_ns() + self._backoff_ns
        self._attachment.row.cells[ERRORS] = self._rounds.failures
        counted = self._logs.statistics()
        self._compacted_logs = counted["compacted"]
        self._uncleanable_partitions = counted["uncleanable"]

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End after this step: what is half cleaned is removed by the next life."""
        self._running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """Look at what the next life of a worker or a replica process has opened."""
        if new_rings and peer.kind in (RoleKind.IOPROC, RoleKind.REPLICA):
            self._logs.look_at_owner(peer)
            self._looks = LOOKS

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Give up the log whose owner has died."""
        if had_rings and self._steps is not None and self._rounds.working_for is peer:
            self._asked = None
            self._lost = OwnerLost(f"{peer} is gone")


def _until_ms(due_ns: int, now_ns: int) -> int:
    return max(0, -(-(due_ns - now_ns) // NS_PER_MS))
