"""One assigned partition of a consumer: its position, and what was fetched of it and not handed out yet.

`position` is the next record to hand out; `fetch_offset` the next to ask for. A seek raises `generation`, so that an
answer to an older fetch is dropped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from appliance_client.kernel import ConsumerRecord
from appliance_client.values import TopicPartition


class Chunk:
    """Whole batches of one answer, and the transactions among them that were aborted."""

    __slots__ = ("aborted", "aborting", "at", "before", "end", "is_checked", "records")

    def __init__(
        self, records: memoryview, end: int, aborted: Sequence[tuple[int, int]], *, is_checked: bool = False
    ) -> None:
        self.records = records
        self.is_checked = is_checked
        """Whether the checksums of its batches were compared."""
        self.at = 0
        self.before = 0
        """Where the batch begins whose records are being handed out."""
        self.end = end
        self.aborted = deque(sorted(aborted, key=lambda each: each[1]))
        self.aborting: set[int] = set()


class Reading:
    """One assigned partition."""

    __slots__ = (
        "asks_broker",
        "chunks",
        "failures",
        "fetch_epoch",
        "fetch_offset",
        "generation",
        "held",
        "high_watermark",
        "in_flight",
        "last_stable_offset",
        "leader_epoch",
        "log_start_offset",
        "look_s",
        "next_after_ready",
        "not_before_s",
        "paused",
        "place",
        "position",
        "position_epoch",
        "ready",
        "ready_at",
        "resolving",
        "retry_at_s",
        "wants",
    )

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.position: int | None = None
        self.position_epoch = -1
        self.fetch_offset: int | None = None
        self.fetch_epoch = -1
        """The leader epoch of the record before `fetch_offset`, -1 where it is not known."""
        self.leader_epoch = -1
        """Of the leader whose log has what was read before `fetch_offset`; -1: no leader was asked."""
        self.asks_broker = False
        """What its files say is to be confirmed by one fetch from the broker."""
        self.wants = "committed"
        """Where to begin, while there is no position: committed, earliest or latest."""
        self.resolving = False
        self.generation = 0
        self.paused = False
        self.held = False
        """It is being revoked: nothing more of it is handed out."""
        self.in_flight = False
        self.chunks: deque[Chunk] = deque()
        self.ready: list[ConsumerRecord] = []
        self.ready_at = 0
        self.next_after_ready = 0
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.look_s: float | None = None
        """When to look at its files again, which had nothing more, if nothing is heard of them."""
        self.retry_at_s = 0.0
        self.not_before_s = 0.0
        """Before this time nothing of it is handed out (`ordered`)."""
        self.failures = 0

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Go on at `offset`; what was fetched is dropped."""
        self.forget()
        self.position = self.fetch_offset = offset
        self.position_epoch = self.fetch_epoch = epoch

    def seek_to(self, wants: str) -> None:
        """Go on where the log begins or ends, or the group has come to; that must be asked for."""
        self.forget()
        self.position = self.fetch_offset = None
        self.fetch_epoch = -1
        self.wants = wants

    def forget(self) -> None:
        """Drop what was fetched, and what is on its way."""
        self.generation += 1
        self.chunks.clear()
        self.ready = []
        self.ready_at = 0
        self.in_flight = False
        self.resolving = False
        self.asks_broker = False
        self.leader_epoch = -1
        self.look_s = None
        self.retry_at_s = 0.0

    @property
    def has_records(self) -> bool:
        return self.ready_at < len(self.ready) or bool(self.chunks)
