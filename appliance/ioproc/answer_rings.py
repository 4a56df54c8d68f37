"""The rings that a worker's answers leave on, one to each process that asks.

put         by who serves a burst, onto the ring itself; seen by the requester when the burst is published
kept back   what a full ring had no room for, in order; the requester's own bound on operations in flight bounds it
late        an answer that waited, for followers or for a disk: published with all others of its round
"""

from __future__ import annotations

from collections import deque

from appliance.channels.request_channel import ERROR, NOTICE_ID, Op, partition_request, refusal
from appliance.channels.roles import Role, RoleKind
from appliance.channels.wiring import Attachment
from appliance.ioproc.handlers.produce import Answer
from appliance.ioproc.stage_times import StageTimes
from appliance.ipc.process_table import ERRORS
from appliance.ipc.ring import RingWriter


class AnswerRings:
    """Those of one worker. `kept_back`: what waits for room, by who has asked; `late`: who has one unpublished."""

    __slots__ = ("_attachment", "kept_back", "late", "stages")

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self.kept_back: dict[Role, deque[Answer]] = {}
        self.late: set[Role] = set()
        self.stages: StageTimes | None = None

    def keep_back(self, peer: Role, answer: Answer) -> None:
        """The ring had no room for it."""
        self.kept_back.setdefault(peer, deque()).append(answer)

    def publish(self, peer: Role, writer: RingWriter) -> None:
        """What was put is seen from now on."""
        writer.publish()
        self._attachment.bells[peer].ring()

    def reply(self, peer: Role, answer: Answer) -> None:
        """An answer that comes later; `publish_late` makes it visible."""
        writer = self._attachment.outbound.get(peer)
        if writer is None:
            return
        if answer[ERROR]:
            self._attachment.row.cells[ERRORS] += 1
        if self.stages is not None and self.stages.waiting:
            self.stages.left(peer, answer)
        if peer in self.kept_back or not writer.put(*answer):
            self.keep_back(peer, answer)
        self.late.add(peer)

    def publish_late(self) -> None:
        """Publishes what `reply` has put."""
        for peer in self.late:
            writer = self._attachment.outbound.get(peer)
            if writer is not None:
                self.publish(peer, writer)
        self.late.clear()

    def send_kept_back(self) -> None:
        """Tries again what full rings have kept back."""
        for peer, answers in list(self.kept_back.items()):
            writer = self._attachment.outbound.get(peer)
            while answers and writer is not None and writer.put(*answers[0]):
                answers.popleft()
            if writer is not None:
                self.publish(peer, writer)
            if not answers or writer is None:
                del self.kept_back[peer]

    def tell_removed(self) -> None:
        """To the network processes: a file that was removed, and that one holds open, takes room still."""
        notice = refusal(partition_request(Op.FILES_REMOVED, request_id=NOTICE_ID, row=0, incarnation=0), 0)
        for peer, writer in self._attachment.outbound.items():
            if peer.kind is RoleKind.NETPROC:
                if not writer.put(*notice):
                    self.keep_back(peer, notice)
                self.publish(peer, writer)

    def peer_down(self, peer: Role) -> None:
        """Its ring goes with it."""
        self.kept_back.pop(peer, None)

    def statistics(self) -> dict[str, int]:
        """Answers kept back."""
        return {"kept_back": sum(map(len, self.kept_back.values()))}
