"""The agent of the auditor: it writes the lines of the audit journal that network processes send.

    network processes ─ZeroMQ: whole lines─→ auditor ─→ audit.log, audit.log.1, …
                                                └─→ __audit_log, where `audit.log.topic` is set (`audit_topic`)

Does: appends lines to the journal's file, begins another file, appends the same lines to the internal topic. Never:
serves a client; opens a log; makes another process wait. It runs only where `audit.log.events` is set. Dies: what lay
in its queue is lost; network processes keep what they can until the next life reads.

Only this process waits for the disk of the journal. Meanwhile its queue fills, and network
processes count what they cannot send.
"""

from __future__ import annotations

import select
from collections.abc import Mapping

from appliance.audit.journal_file import JournalFile
from appliance.channels.audit_channel import AuditInbox
from appliance.channels.roles import Role, RoleKind
from appliance.clock import NS_PER_MS
from appliance.control.auditor.audit_topic import AuditTopic
from appliance.ipc.process_table import REQUESTS
from appliance.journal import RateLimited
from appliance.process.agent import AgentProcess

COMPLAINT_INTERVAL_MS = 60_000
LAST_TURN_MS = 10


class AuditorAgent:
    """The loop and its state; `run` returns when the supervisor sends Stop, or is gone."""

    def __init__(self, process: AgentProcess) -> None:
        settings = process.settings.audit
        self._process = process
        self._inbox = AuditInbox(process.wiring, context=process.context)
        self._file = JournalFile(
            settings.path(process.settings.data_dir),
            file_bytes=settings.file_bytes,
            files_max=settings.files_max,
            clock=process.clock,
            complain=RateLimited(process.warn, process.clock, interval_ms=COMPLAINT_INTERVAL_MS),
        )
        self._topic: AuditTopic | None = None
        if settings.to_topic:
            self._topic = AuditTopic(
                process, complain=RateLimited(process.warn, process.clock, interval_ms=COMPLAINT_INTERVAL_MS)
            )
        self._running = True
        self._is_orphan = False
        self._until_ns = 0
        process.cycle.add_inbox(self._inbox)
        process.cycle.epoll.register(self._inbox.fileno(), select.EPOLLIN)

    def run(self) -> None:
        """Write until Stop."""
        process = self._process
        process.publish_counters(self.counters)
        process.ready()
        while self._running:
            self.turn()
        process.stopping()
        self.turn(timeout_ms=0)  # what network processes sent before they stopped
        clock, topic = process.clock, self._topic
        while topic is not None and topic.is_waiting and clock.monotonic_ns() < self._until_ns:
            self.turn(timeout_ms=LAST_TURN_MS)
        self._file.close()
        self._inbox.close()
        if self._topic is not None:
            self._topic.close()
        process.close()

    def turn(self, *, timeout_ms: int | None = None) -> None:
        """One turn; sleeps first when there is nothing to do, at most for `timeout_ms`."""
        process, topic = self._process, self._topic
        for descriptor, _ in process.cycle.wait(timeout_ms):
            if descriptor == process.supervision_fd and not self._is_orphan:
                process.hear(self)
        taken = self._inbox.take()
        process.attachment.row.cells[REQUESTS] += len(taken)
        if taken:
            lines = b"".join(taken)
            self._file.append(lines)
            if topic is not None:
                topic.add(lines)
        if topic is not None:
            topic.turn()

    def counters(self) -> Mapping[str, int]:
        """Entries in the file and in the topic since the start, and those that were lost."""
        topic = self._topic
        return {
            "written_entries": self._file.written,
            "lost_entries": self._file.lost,
            "appended_entries": 0 if topic is None else topic.appended,
            "lost_topic_entries": 0 if topic is None else topic.lost,
        }

    # The supervisor and the peers

    def stop(self, within_ms: int) -> None:
        """End after what has arrived is written."""
        self._running = False
        self._is_orphan = not within_ms
        self._until_ns = self._process.clock.monotonic_ns() + within_ms * NS_PER_MS // 2

    def peer_up(self, peer: Role, *, new_rings: bool) -> None:
        """A worker serves: the next turn looks whether the topic can be appended to."""

    def peer_down(self, peer: Role, generation: int, *, had_rings: bool) -> None:
        """What a dead worker was asked has failed."""
        if not had_rings:
            return
        self._process.release(peer)
        if self._topic is not None and peer.kind is RoleKind.IOPROC:
            self._topic.worker_down(peer)
