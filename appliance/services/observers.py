"""What the first services process does beside delivering: it audits and traces. Drives their errands for the agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from appliance.channels.controller_link import ControllerLink
from appliance.journal import RateLimited
from appliance.partition_access.access import PartitionAccess
from appliance.process.agent import AgentProcess
from appliance.services.audit_reader import AuditReader
from appliance.services.audit_topics import AuditTopics
from appliance.services.errand import Errand
from appliance.services.giving_way import GivingWay
from appliance.services.trace_reader import TraceReader
from appliance.services.trace_topics import TraceTopics

if TYPE_CHECKING:
    from appliance.services.trace_export import TraceExport

CREATING_MS: Final = 200
COMPLAINT_INTERVAL_MS: Final = 60_000


class Observers:
    """Args:
    logs: those of the process.
    """

    __slots__ = ("_audit", "_errands", "_export", "_is_creating", "_trace")

    def __init__(self, process: AgentProcess, logs: PartitionAccess) -> None:
        clock, settings, image = process.clock, process.settings, process.attachment.image
        endpoint = settings.services.trace_otlp_endpoint
        self._export: TraceExport | None = None
        if endpoint:
            # Loaded where it is used: it brings HTTP and TLS along.
            from appliance.services.trace_export import TraceExport

            complain = RateLimited(process.warn, clock, interval_ms=COMPLAINT_INTERVAL_MS)
            self._export = TraceExport(endpoint, complain)
        audited, traced = AuditTopics(settings, image, clock), TraceTopics(settings, image, clock)
        self._audit = AuditReader(audited, logs, clock, way=GivingWay(clock.monotonic_ns))
        self._trace = TraceReader(
            traced,
            logs,
            clock,
            export=None if self._export is None else self._export.offer,
            way=GivingWay(clock.monotonic_ns),
        )
        self._errands = (
            (audited, Errand(self._audit.work, logs, clock, name="the message audit")),
            (traced, Errand(self._trace.work, logs, clock, name="the message trace")),
        )
        self._is_creating = False

    def turn(self, controller: ControllerLink) -> None:
        """Do what can be done now."""
        self._is_creating = False
        for topics, errand in self._errands:
            if topics.follow_image():
                errand.wake()
            if topics.create_missing(controller):
                self._is_creating = True
            errand.turn()

    def next_look_ms(self) -> int | None:
        """Return in how many milliseconds `turn` has something to do by itself; None: not before somebody says so."""
        looks = [CREATING_MS] if self._is_creating else []
        looks += [look_ms for _, errand in self._errands if (look_ms := errand.next_look_ms()) is not None]
        return min(looks, default=None)

    def stop(self) -> None:
        """Begin nothing more. A round that is not written is made again by the next life."""
        for _, errand in self._errands:
            errand.stop()
        if self._export is not None:
            self._export.close()

    def counters(self) -> Mapping[str, int]:
        """What this life has done."""
        audit, trace, export = self._audit, self._trace, self._export
        return {
            "audited_records": audit.records,
            "lost_observations": max(audit.lost_observations, trace.lost_observations),
            "unaudited_commits": audit.refused_groups,
            "traced_records": trace.traced_records,
            "untraced_records": trace.untraced_records,
            "dropped_steps": 0 if export is None else export.dropped,
        }
