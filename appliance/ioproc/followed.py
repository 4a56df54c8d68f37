"""What a worker does for partitions that are followed: wakes followers, hears them, answers acks=all, keeps the ISR.

    append → published → MOVED to each follower … FOLLOWED → high watermark → answers, pokes → ISR

A partition without followers never comes here.
"""

from __future__ import annotations

from collections.abc import Iterable

from appliance.channels.control_channel import AlteredPartitions
from appliance.channels.controller_link import ControllerLink
from appliance.channels.request_channel import (
    ACKS,
    APPENDED_BYTES,
    DELETE_TIMEOUT_MS,
    END_OFFSET,
    FLAGS,
    PRODUCE_TIMEOUT_MS,
)
from appliance.channels.roles import Role, replica_of
from appliance.channels.wiring import Attachment
from appliance.clock import Clock
from appliance.delayed.held_answers import Deadlines
from appliance.ioproc.answer_rings import AnswerRings
from appliance.ioproc.follower_bells import FollowerBells
from appliance.ioproc.group_commit import GroupCommit
from appliance.ioproc.handlers.produce import ACKS_ALL, Answer
from appliance.ioproc.held_deletions import HeldDeletions
from appliance.ioproc.held_produces import HeldProduces
from appliance.ioproc.isr_changes import IsrChanges
from appliance.ioproc.partition import Partition
from appliance.ioproc.partitions import Partitions
from appliance.ioproc.pokes import Pokes
from appliance.ipc.agent import DutyCycle
from appliance.ipc.ring import RingReader
from appliance.partition_host.listener import PartitionListener


class Followed:
    """One worker's followed partitions; none before `open`.

    Args:
        answers: Takes the answers that were held back.
        listener: Learns of logs that a follower has found damaged.
    """

    __slots__ = (
        "_bells",
        "_commits",
        "_deletions",
        "_isr_changes",
        "_partitions",
        "_pokes",
        "_produces",
    )

    def __init__(
        self,
        attachment: Attachment,
        controller: ControllerLink,
        cycle: DutyCycle,
        *,
        clock: Clock,
        pokes: Pokes,
        commits: GroupCommit,
        deadlines: Deadlines,
        answers: AnswerRings,
        listener: PartitionListener[Partition],
    ) -> None:
        self._pokes = pokes
        self._commits = commits
        self._partitions: Partitions | None = None
        self._bells = FollowerBells(attachment, cycle)
        self._produces = HeldProduces(deadlines, clock, reply=answers.reply)
        self._deletions = HeldDeletions(
            deadlines, clock, low_watermark=self._low_watermark, reply=answers.reply
        )
        self._isr_changes = IsrChanges(
            controller,
            cycle.timers,
            clock,
            slot=attachment.role.slot,
            lag_ms=attachment.wiring.settings.broker.replica_lag_time_max_ms,
            listener=listener,
        )

    def open(self, partitions: Partitions) -> None:
        """These, at any time, are the led partitions from now on."""
        self._partitions = partitions
        self._isr_changes.open(partitions.by_name)

    # Requests

    def hold(self, partition: Partition, peer: Role, message: tuple[int, ...], answer: Answer) -> bool:
        """After an append: whether the answer is kept. Log end and watermarks are published."""
        fresh = not answer[FLAGS]
        if fresh:
            self._publish(partition, answer[APPENDED_BYTES])
            self._bells.moved(partition)
            self._isr_changes.watch()
        if message[ACKS] == ACKS_ALL:
            if fresh and partition.durable is not None:
                self._commits.cover(partition)
            return self._produces.hold(
                partition, peer, answer, end_offset=answer[END_OFFSET], timeout_ms=message[PRODUCE_TIMEOUT_MS]
            )
        return partition.durable is not None and self._commits.hold(partition, peer, answer)

    def hold_deletion(
        self, partition: Partition, peer: Role, message: tuple[int, ...], answer: Answer
    ) -> bool:
        """After the log start was moved and followers were told: whether the answer is kept until they have theirs."""
        if partition.replication is None:
            return False
        return self._deletions.hold(partition, peer, answer, timeout_ms=message[DELETE_TIMEOUT_MS])

    def _low_watermark(self, partition: Partition) -> int:
        least, replication = partition.log.log_start_offset, partition.replication
        if replication is not None:
            for slot in replication.followers:
                if replica_of(slot) in self._bells.readers:
                    least = min(least, replication.log_start_of(slot))
        return least

    def _publish(self, partition: Partition, appended_bytes: int = 0) -> None:
        """Publishes, and tells the purgatory when what readers may see is more."""
        replication = partition.replication
        assert replication is not None
        replication.unseen_bytes += appended_bytes
        before = partition.high_watermark
        partition.publish()
        if partition.high_watermark != before:
            self._pokes.moved(partition.row, replication.unseen_bytes)
            replication.unseen_bytes = 0

    def published_later(self, partition: Partition) -> None:
        """A flush, a follower or an ISR has changed what is replicated."""
        if partition.replication is not None:
            self._publish(partition)
            self._produces.moved(partition)

    # Followers

    def turn(self) -> bool:
        """Hears the followers, in every round of the duty cycle; whether there was anything."""
        said = self._bells.heard()
        by_row = [] if self._partitions is None else self._partitions.by_row
        for row, incarnation in said:
            partition = by_row[row] if row < len(by_row) else None
            if partition is not None and partition.incarnation == incarnation:
                self.published_later(partition)
                self._isr_changes.follower_moved(partition)
                self._deletions.moved(partition)
        if said:
            self._isr_changes.send()
        return bool(said)

    def tell(self) -> None:
        """At the end of a round: wakes the followers of what was appended."""
        if self._bells.owed:
            self._bells.tell()

    @property
    def owed(self) -> bool:
        """Whether a full ring kept something back."""
        return self._bells.owed

    @property
    def readers(self) -> list[RingReader]:
        """The followers' rings, for who looks out."""
        return list(self._bells.readers.values())

    def starts_moved(self) -> None:
        """Some log start was moved: followers have files to remove."""
        self._wake_all_followers()

    def _wake_all_followers(self) -> None:
        if self._partitions is not None:
            for partition in self._partitions.by_name.values():
                if partition.replication is not None:
                    self._bells.moved(partition)

    def repaired(self, partition: Partition) -> None:
        """Its followers can go on copying."""
        if partition.replication is not None:
            self._bells.moved(partition)

    # Words of others

    def assigned(self, partitions: Iterable[Partition]) -> None:
        """These are led, perhaps under another epoch or with another ISR."""
        for partition in partitions:
            if partition.replication is not None:
                self.published_later(partition)
                self._bells.moved(partition)
                self._isr_changes.follower_moved(partition)
                self._isr_changes.watch()
                self._deletions.moved(partition)
        self._isr_changes.send()

    def withdrawn(self, partition: Partition, error: int) -> None:
        """It is led no more."""
        self._produces.forget(partition.row, error)
        self._deletions.forget(partition, error)
        self._isr_changes.forget(partition)

    def altered(self, number: int, answer: AlteredPartitions) -> None:
        """The controller's answer to a proposal, question `number`."""
        self._isr_changes.answered(number, answer)
        self._isr_changes.send()

    def new_controller(self) -> None:
        self._isr_changes.ask_again()

    def peer_up(self, role: Role) -> None:
        """Wake a replica that is there again: it has missed what was sent to the one before."""
        if self._bells.peer_up(role):
            self._wake_all_followers()

    def peer_down(self, role: Role) -> None:
        """Before the attachment lets go of what is shared with it."""
        self._bells.peer_down(role)
        self._produces.drop_requester(role)
        self._deletions.drop_requester(role)
        for partition in self._deletions.partitions:
            self._deletions.moved(partition)

    def statistics(self) -> dict[str, int]:
        """Answers that wait for followers."""
        return self._produces.statistics() | self._deletions.statistics()
