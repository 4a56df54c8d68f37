"""A led partition's followers: who is in sync, and how far all of them have come. Pure but for reading words.

    ISR as the controller knows it    {0, 1}
    asked for: 2 has caught up        {0, 1, 2}   until it is answered, the high watermark waits for 0, 1 and 2
    asked for: 1 has fallen behind    {0, 2}      until it is answered, the high watermark waits for 0, 1 and 2

So an ISR that the controller may have decided never holds one who lacks an acknowledged record (KIP-497, "maximal
ISR"). One change is under way at most.

A follower's log end counts only if it follows this incarnation under this leader epoch: what it had before it cut its
log says nothing. One that does not counts as having nothing, so the high watermark stands still until it has left.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from appliance.channels.control_channel import AlteredPartition, AssignedPartition
from appliance.channels.partition_table import (
    HIGH_WATERMARK,
    LOG_START,
    SLOT_DAMAGE_FOUND,
    SLOT_FOLLOWED_EPOCH,
    SLOT_FOLLOWED_INCARNATION,
    SLOT_LOG_END,
    SLOT_LOG_START,
    PartitionTable,
)

NOWHERE: Final = -1
"""The log end of who does not follow."""


class Replication:
    """Of one partition under one leader epoch after another. `isr` is as the controller last said."""

    __slots__ = (
        "_cells",
        "_incarnation",
        "_places",
        "_row_at",
        "_seen",
        "_slot",
        "_table",
        "_waited",
        "epoch_start",
        "followers",
        "isr",
        "leader_epoch",
        "partition_epoch",
        "replicas",
        "unseen_bytes",
        "wanted",
    )

    def __init__(
        self, assigned: AssignedPartition, *, table: PartitionTable, slot: int, log_end: int, now_ms: int
    ) -> None:
        self._table = table
        self._cells = table.cells
        self._row_at = table.at(assigned.row)
        self._slot = slot
        self._incarnation = assigned.incarnation
        self._places: dict[int, int] = {}
        self.leader_epoch = NOWHERE
        self.epoch_start = log_end
        self.partition_epoch = NOWHERE
        self.replicas: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.followers: tuple[int, ...] = ()
        self.wanted: tuple[int, ...] | None = None
        self.unseen_bytes = 0
        self._waited: tuple[int, ...] = ()
        self._seen: dict[int, int] = {}
        self.take(assigned, log_end=log_end, now_ms=now_ms)

    def take(self, assigned: AssignedPartition, *, log_end: int, now_ms: int) -> None:
        """The controller's word; an older one than is known changes nothing.

        The same state again, as with new settings, leaves a proposal under way as it is: it may yet be accepted. A
        later state has been decided either with it or against it.
        """
        said, known = (
            (assigned.leader_epoch, assigned.partition_epoch),
            (self.leader_epoch, self.partition_epoch),
        )
        if said < known or (said == known and assigned.replicas == self.replicas):
            return
        if assigned.leader_epoch != self.leader_epoch:
            self.epoch_start = log_end
            self.forget_damage()  # of the leader before
            # As in Kafka, followers have the whole time from the begin of an epoch on.
            self._seen = dict.fromkeys(assigned.replicas, now_ms)
        self.leader_epoch = assigned.leader_epoch
        if assigned.replicas != self.replicas:
            self.replicas = assigned.replicas
            self.followers = tuple(slot for slot in assigned.replicas if slot != self._slot)
            self._places = {
                slot: self._table.slot_at(assigned.row, slot)
                for slot in assigned.replicas
                if slot != self._slot
            }
            self._seen = {slot: self._seen.get(slot, now_ms) for slot in assigned.replicas}
        self._decided(assigned.isr, assigned.partition_epoch)

    def answered(self, outcome: AlteredPartition) -> bool:
        """What became of the change that was wanted; whether the state is known now. See `AlteredPartition`."""
        self.wanted = None
        if outcome.leader_epoch == self.leader_epoch and outcome.partition_epoch >= self.partition_epoch:
            self._decided(outcome.isr, outcome.partition_epoch)
            return True
        self._wait_for(self.isr)
        return False

    def want(self, isr: tuple[int, ...]) -> None:
        """Asked for; it may be so from now on."""
        self.wanted = isr
        self._wait_for((*self.isr, *isr))

    def _decided(self, isr: tuple[int, ...], partition_epoch: int) -> None:
        self.isr = isr
        self.partition_epoch = partition_epoch
        self.wanted = None
        self._wait_for(isr)

    def _wait_for(self, isr: tuple[int, ...]) -> None:
        self._waited = tuple(self._places[slot] for slot in dict.fromkeys(isr) if slot in self._places)

    # Positions

    def _end_at(self, place: int) -> int:
        cells = self._cells
        if (
            cells[place + SLOT_FOLLOWED_EPOCH] != self.leader_epoch
            or cells[place + SLOT_FOLLOWED_INCARNATION] != self._incarnation
        ):
            return NOWHERE
        return cells[place + SLOT_LOG_END]

    def end_of(self, slot: int) -> int:
        """How far a follower has come; NOWHERE while it does not follow."""
        return self._end_at(self._places[slot])

    def log_start_of(self, slot: int) -> int:
        """Where a follower begins; NOWHERE while it does not follow."""
        place = self._places[slot]
        return NOWHERE if self._end_at(place) == NOWHERE else self._cells[place + SLOT_LOG_START]

    def high_watermark(self, leader_end: int) -> int:
        """Below it all that may be in sync have the records, and `leader_end` bounds it. It never falls."""
        least = leader_end
        for place in self._waited:
            end = self._end_at(place)
            least = min(least, end)
        published = self._cells[self._row_at + HIGH_WATERMARK]
        return published if published > least else least

    def damage_found(self) -> int | None:
        """Return the offset at which a follower says that the leader's log is damaged; None where none does."""
        for place in self._places.values():
            if self._cells[place + SLOT_DAMAGE_FOUND]:
                return self._cells[place + SLOT_DAMAGE_FOUND] - 1
        return None

    def forget_damage(self) -> None:
        """Take back what followers have said of it: it was looked at."""
        for place in self._places.values():
            self._cells[place + SLOT_DAMAGE_FOUND] = 0

    # Who is in sync

    def caught_up(self, high_watermark: int) -> tuple[int, ...] | None:
        """The ISR with those who have caught up, None where there are none; as `Partition.needsExpandIsr`.

        A copy that begins later than the log has not caught up, wherever it ends.
        """
        least, start = max(high_watermark, self.epoch_start), self._cells[self._row_at + LOG_START]
        more = tuple(
            slot
            for slot in self.followers
            if slot not in self.isr and self.end_of(slot) >= least and self.log_start_of(slot) <= start
        )
        return tuple(slot for slot in self.replicas if slot in self.isr or slot in more) if more else None

    def fallen_behind(
        self, log_end_before: int, before_ms: int, now_ms: int, *, lag_ms: int, log_end: int
    ) -> tuple[int, ...] | None:
        """The ISR without those who have not had all of the log for `lag_ms`; None where all have.

        `log_end_before` is the log end of a look at `before_ms`: who has come as far was in step then.
        """
        behind = []
        for slot in self.followers:
            end = self.end_of(slot)
            if end >= log_end:
                self._seen[slot] = now_ms
            elif end >= log_end_before:
                self._seen[slot] = max(before_ms, self._seen[slot])
            if slot in self.isr and end < log_end and now_ms - self._seen[slot] > lag_ms:
                behind.append(slot)
        return tuple(slot for slot in self.isr if slot not in behind) if behind else None

    def is_settled(self, log_end: int) -> bool:
        """Whether all replicas are in sync and have everything: nothing has to be looked at."""
        return len(self.isr) == len(self.replicas) and all(
            self._end_at(place) >= log_end for place in self._places.values()
        )

    def statistics(self) -> Mapping[str, int]:
        """How many replicas there are, and in sync."""
        return {"replicas": len(self.replicas), "isr": len(self.isr)}
