"""The agent of the coordinator: requests of groups in, appends and reads out to the workers, answers back.

Does: consumer groups and their committed offsets, which lie in `__consumer_offsets`. Of several coordinators each
writes the markers of the others' transactions to its own partitions of that topic (`marker_link`).
Never: opens a log for writing (it asks the owner), talks to a client's socket, keeps state that is not in that topic
but members' timers, polls. Asleep it wakes for a request, an answer, a deadline of a group, and once in a while for
offsets that have had their time, where there are any. Dies: network processes answer what was under way with a
retriable error; the next life replays the topic.

One turn, in this order: answers of workers; requests of network processes go into the queue; some cheap ones are
served, then long work for a slice of time (decision 0079); what is due; everything that was written in the turn goes to
the logs together, one batch each; what was asked and answered becomes visible, and who is answered is woken first. Of
many answers some are visible before (decision 0069).
"""

from __future__ import annotations

from collections.abc import Mapping

from appliance.channels.controller_link import ControllerLink
from appliance.channels.roles import Role, RoleKind
from appliance.clock import NS_PER_MS
from appliance.control.coordinator.coordinator import Coordinator
from appliance.control.coordinator.marker_link import MarkerLink
from appliance.control.coordinator.request_lines import RequestLines
from appliance.control.coordinator.runtime.runtime import Share
from appliance.control.coordinator.topics import ImageTopics
from appliance.ipc.brief_wait import BriefWait
from appliance.ipc.buffer_pool import BufferPool
from appliance.ipc.process_table import BYTES_IN, REQUESTS
from appliance.ipc.ring import RingReader
from appliance.partition_access.access import PartitionAccess
from appliance.partition_access.producer_ids import ProducerIdBlocks
from appliance.process.agent import AgentProcess

CONGESTED_LOOK_MS = 1
NEXT_REQUEST_NS = 200_000
"""From an answer to the client's next request: two socket calls, two wake-ups and the network process twice. With a
quarter less, p50 of a lone member's commits is a twelfth longer (decision 0071)."""


class CoordinatorAgent:
    """The loop and its state; `run` returns when the supervisor sends Stop, or is gone."""

    def __init__(self, process: AgentProcess) -> None:
        attachment, clock, settings = process.attachment, process.clock, process.settings
        assert attachment.pool is not None
        self._process = process
        self._attachment = attachment
        self._clock = clock
        pool = BufferPool(attachment.pool.view, discard=attachment.pool.discard)
        self._lines = RequestLines(attachment, pool)
        self._logs = PartitionAccess(
            attachment,
            pool,
            directories={slot: settings.log_directories(slot) for slot in range(settings.slots)},
            is_lone=lambda: self._lines.under_way == 1,
        )
        self._controller: ControllerLink | None = None
        self._producer_ids = ProducerIdBlocks(self._connect, clock)
        self._link = MarkerLink(attachment, processes=settings.broker.coordinator_processes)
        self._coordinator = Coordinator(
            settings,
            ImageTopics(attachment.image, workers=attachment.wiring.settings.io.workers),
            self._lines,
            self._logs,
            attachment.partitions,
            timers=process.cycle.timers,
            clock=clock,
            share=Share(attachment.role.index, settings.broker.coordinator_processes),
            producer_ids=self._producer_ids,
            elsewhere=self._link.ask,
            wake_services=self._wake_services,
        )
        self._services = attachment.services_bells()
        self._link.serve = self._coordinator.write_marker
        self._log_wait = BriefWait(clock.monotonic_ns)
        self._request_wait = BriefWait(clock.monotonic_ns, limit_ns=NEXT_REQUEST_NS)
        self._expects_request = False
        self._no_room = False
        self._running = True

    def run(self) -> None:
        """Work until Stop."""
        process = self._process
        cycle = process.cycle
        process.publish_counters(self.counters)
        process.ready()
        self._end_turn()
        while self._running:
            for descriptor, _ in cycle.wait(self._timeout_ms()):
                if descriptor == process.supervision_fd:
                    process.hear(self)
                elif self._controller is not None:
                    self._controller.wants_look = True
            if self._controller is not None and self._controller.wants_look:
                self._producer_ids.hear()
            was_lone = self._lines.under_way == 1
            self._hear()
            self._end_turn()
            self._look_out(was_lone=was_lone)
        process.stopping()
        process.close()
        if self._controller is not None:
            self._controller.close()

    def _wake_services(self) -> None:
        """Delayed records of a transaction have got their outcome."""
        for bell in self._services:
            bell.wake()

    def _connect(self) -> ControllerLink:
        """Make the line to the controller, from which producer ids come."""
        self._controller = self._process.controller_link()
        return self._controller

    def _timeout_ms(self) -> int | None:
        """How long nothing is to be done; None: until somebody says something."""
        if self._coordinator.has_work:
            return 0
        due_ns = self._coordinator.next_due_ns()
        due_ms = None if due_ns is None else max(0, -(-(due_ns - self._clock.monotonic_ns()) // NS_PER_MS))
        if self._no_room or self._lines.congested or self._link.congested:
            return CONGESTED_LOOK_MS if due_ms is None else min(due_ms, CONGESTED_LOOK_MS)
        return due_ms

    def _look_out(self, *, was_lone: bool) -> None:
        """Before sleep: for the log's answer to the only request under way, and after that for the next request.

        A transaction's end is answered before its markers are written. So while the next request is waited for, the
        workers' answers are looked for too: until the last of them that request would be held.
        With more under way there is other work, and cores are better left to whoever does it.
        """
        under_way = self._lines.under_way
        is_asked = self._logs.is_asked
        if under_way == 1 and is_asked:
            self._log_wait.look_out(self._inboxes(RoleKind.IOPROC))
        elif not under_way and (was_lone or self._expects_request):
            kinds = (RoleKind.NETPROC, RoleKind.IOPROC) if is_asked else (RoleKind.NETPROC,)
            found = self._request_wait.look_out(self._inboxes(*kinds))
            # Once more where nothing came but what the last answer had lent: a larger one, small ones lend nothing.
            self._expects_request = found and (was_lone or is_asked)
            return
        self._expects_request = False

    def _inboxes(self, *kinds: RoleKind) -> list[RingReader]:
        return [reader for role, reader in self._attachment.inbound.items() if role.kind in kinds]

    def _hear(self) -> None:
        self._coordinator.follow_image()
        cells, lines, coordinator = self._attachment.row.cells, self._lines, self._coordinator
        for peer, reader in list(self._attachment.inbound.items()):
            if peer.kind is RoleKind.IOPROC:
                self._logs.take(reader.drain())
                continue
            if peer.kind is RoleKind.COORDINATOR:
                self._link.take(peer, reader.drain())
                continue
            requests, requests_bytes = lines.receive(peer, reader.drain())
            cells[REQUESTS] += requests
            cells[BYTES_IN] += requests_bytes
        coordinator.serve()

    def _end_turn(self) -> None:
        """Clients that have an answer go on before the workers are woken for what follows, such as markers.

        A marker is in its worker's ring before its client is answered, so no later batch of that client overtakes it.
        """
        self._no_room = not self._coordinator.turn()
        self._logs.show()
        self._lines.publish()
        self._logs.wake()
        self._link.publish()

    def counters(self) -> Mapping[str, int]:
        """What was done since the start, and the groups that there are."""
        groups, transactions = self._coordinator.groups, self._coordinator.transactional.transactions
        return {
            "commits": self._coordinator.offsets.commits,
            "appends": self._coordinator.appends,
            "dropped_requests": self._lines.dropped,
            "groups": len(groups),
            "refused_groups": groups.limits.refused_groups,
            "refused_members": groups.limits.refused_members,
            "forgotten_member_ids": groups.limits.forgotten_members,
            "member_bytes": groups.limits.held.bytes,
            "transactional_ids": len(transactions),
            "refused_transactional_ids": transactions.refused_ids,
            "owed_transactions": self._coordinator.markers.owed,
            "markers": self._coordinator.markers.markers,
            "open_transactions": transactions.open,
            "timed_out_transactions": transactions.timed_out,
        }

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End after this turn: whoever waits for an answer gets a retriable error from its network process."""
        self._running = False

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """A worker serves: partitions that were unavailable may be loaded."""
        if peer.kind is RoleKind.IOPROC:
            self._coordinator.follow_image()
            self._coordinator.worker_up(peer)
        elif peer.kind is RoleKind.CONTROLLER:
            self._producer_ids.controller_changed()

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """Forget what a network process asked, or what was asked of a worker."""
        if not had_rings:
            return
        # First the rings, then the requests that wait: what they ask next must not go into a dead worker's ring.
        self._process.release(peer)
        if peer.kind is RoleKind.IOPROC:
            self._coordinator.worker_down(peer)
        elif peer.kind is RoleKind.COORDINATOR:
            self._link.peer_down(peer)
        else:
            self._lines.peer_down(peer)
