"""What the first services process does beside delivering: it audits. Drives the errands of audit for the agent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.channels.controller_link import ControllerLink
from appliance.partition_access.access import PartitionAccess
from appliance.process.agent import AgentProcess
from appliance.services.audit_reader import AuditReader
from appliance.services.audit_topics import AuditTopics
from appliance.services.errand import Errand

CREATING_MS: Final = 200


class Observers:
    """Args:
    logs: those of the process.
    """

    __slots__ = ("_audit", "_audit_errand", "_is_creating", "_topics")

    def __init__(self, process: AgentProcess, logs: PartitionAccess) -> None:
        clock = process.clock
        self._topics = AuditTopics(process.settings, process.attachment.image, clock)
        self._audit = AuditReader(self._topics, logs, clock)
        self._audit_errand = Errand(self._audit.work, logs, clock, name="the message audit")
        self._is_creating = False

    def turn(self, controller: ControllerLink) -> None:
        """Do what can be done now."""
        if self._topics.follow_image():
            self._audit_errand.wake()
        self._is_creating = self._topics.create_missing(controller)
        self._audit_errand.turn()

    def next_look_ms(self) -> int | None:
        """Return in how many milliseconds `turn` has something to do by itself; None: not before somebody says so."""
        looks = [CREATING_MS] if self._is_creating else []
        look_ms = self._audit_errand.next_look_ms()
        if look_ms is not None:
            looks.append(look_ms)
        return min(looks, default=None)

    def stop(self) -> None:
        """Begin nothing more. A round that is not in `__audit` is counted by the next life."""
        self._audit_errand.stop()

    def counters(self) -> Mapping[str, int]:
        """What this life has done."""
        audit = self._audit
        return {
            "audited_records": audit.records,
            "audit_findings": audit.findings,
            "lost_observations": audit.lost_observations,
            "unaudited_commits": audit.refused_groups,
        }
