"""Proposes other in-sync replicas to the controller, one change of a partition at a time, many partitions a message.

Grown when a follower has come as far as the high watermark, at once; shrunk when one has not had everything for
`replica.lag.time.max.ms`, at a look every half of that. Between looks nothing is set while all are in step.

What is asked is asked again of a new controller. An answer that says that another state has been decided is taken, and
what still seems right is asked anew; `Replication` waits for both states meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from appliance.channels.control_channel import AlteredPartitions, AlterPartitions, WantedIsr
from appliance.channels.controller_link import ControllerLink
from appliance.clock import NS_PER_MS, Clock
from appliance.cluster import TopicPartition
from appliance.ioproc.partition import Partition
from appliance.ipc.agent import Timers
from appliance.partition_host.listener import PartitionListener
from appliance.protocol.errors import ErrorCode

AGAIN_MS: Final = 500
_ASK_ANEW: Final = frozenset({0, int(ErrorCode.INVALID_UPDATE_VERSION)})


class IsrChanges:
    """One worker's proposals; none before `open`.

    Args:
        listener: Learns of partitions whose ISR has changed, and of logs that a follower has found damaged.
    """

    __slots__ = (
        "_again_soon",
        "_asked",
        "_clock",
        "_controller",
        "_ends",
        "_interval_ns",
        "_lag_ms",
        "_led",
        "_listener",
        "_looked_ms",
        "_looks",
        "_slot",
        "_timers",
        "_unsent",
    )

    def __init__(
        self,
        controller: ControllerLink,
        timers: Timers,
        clock: Clock,
        *,
        slot: int,
        lag_ms: int,
        listener: PartitionListener[Partition],
    ) -> None:
        self._controller = controller
        self._timers = timers
        self._clock = clock
        self._slot = slot
        self._lag_ms = lag_ms
        self._interval_ns = max(lag_ms // 2, 1) * NS_PER_MS
        self._listener = listener
        self._led: Mapping[TopicPartition, Partition] = {}
        self._asked: dict[tuple[str, int], tuple[int, Partition]] = {}
        self._unsent: dict[tuple[str, int], Partition] = {}
        self._ends: dict[int, int] = {}
        self._looked_ms = self._now_ms()
        self._looks = False
        self._again_soon = False

    def open(self, led: Mapping[TopicPartition, Partition]) -> None:
        """These, at any time, are the led partitions from now on."""
        self._led = led

    def follower_moved(self, partition: Partition) -> None:
        """A follower has come further, or serves again: it may be in sync now."""
        replication = partition.replication
        if replication is None or replication.wanted is not None:
            return
        if len(replication.isr) < len(replication.replicas):
            wanted = replication.caught_up(partition.high_watermark)
            if wanted is not None:
                self._want(partition, wanted)
            found = replication.damage_found()
            if found is not None:
                replication.forget_damage()
                self._listener.log_damaged(partition, found)

    def watch(self) -> None:
        """Something was appended, or a follower is out of step: looks are taken until all are in step again."""
        if not self._looks:
            self._looks = True
            self._looked_ms = self._now_ms()
            self._timers.add(self._clock.monotonic_ns() + self._interval_ns, self._look)

    def _look(self) -> None:
        now_ms, before_ms = self._now_ms(), self._looked_ms
        before, self._ends = self._ends, {}
        self._looks = False
        settled = True
        for partition in list(self._led.values()):  # a damaged one may leave
            replication = partition.replication
            if replication is None:
                continue
            log_end = self._ends[partition.row] = partition.log.log_end_offset
            # Before the first look nothing is known, and nobody was late.
            end_before = before.get(partition.row, 0)
            wanted = replication.fallen_behind(
                end_before, before_ms, now_ms, lag_ms=self._lag_ms, log_end=log_end
            )
            settled = settled and replication.is_settled(log_end)
            if replication.wanted is None:
                if wanted is not None:
                    self._want(partition, wanted)
                else:
                    self.follower_moved(partition)
        if not settled:
            self.watch()
        self.send()

    def _now_ms(self) -> int:
        """Not the time of day: that may jump."""
        return self._clock.monotonic_ns() // NS_PER_MS

    def _want(self, partition: Partition, isr: tuple[int, ...]) -> None:
        assert partition.replication is not None
        partition.replication.want(isr)
        name = partition.topic_partition
        self._unsent[name.topic, name.partition] = partition

    def send(self) -> None:
        """Sends what has come together."""
        if not self._unsent:
            return
        wanted = [change for partition in self._unsent.values() if (change := _change(partition)) is not None]
        if not wanted:
            self._unsent = {}
            return
        number = self._controller.ask(AlterPartitions(self._slot, tuple(wanted)))
        if number is None:
            self._again()  # the controller does not read
            return
        self._asked |= {name: (number, partition) for name, partition in self._unsent.items()}
        self._unsent = {}

    def answered(self, number: int, answer: AlteredPartitions) -> None:
        """What the controller says to question `number`; to an older one of a partition it says nothing any more."""
        for outcome in answer.partitions:
            name = (outcome.topic, outcome.partition)
            asked, partition = self._asked.get(name, (0, None))
            if partition is None or asked != number:
                continue
            del self._asked[name]
            if partition.replication is None or partition.incarnation != outcome.incarnation:
                continue
            if partition.replication.answered(outcome):
                partition.isr = partition.replication.isr
            self._listener.high_watermark_may_move(partition)
            if outcome.error in _ASK_ANEW:
                self.follower_moved(partition)
            else:
                self._again()
        self.watch()

    def _again(self) -> None:
        """Looks at everything again soon: nobody may say anything more on a host at rest."""
        if not self._again_soon:
            self._again_soon = True
            self._timers.after_ms(AGAIN_MS, self._try_again)

    def _try_again(self) -> None:
        self._again_soon = False
        for partition in list(self._led.values()):  # a damaged one may leave
            self.follower_moved(partition)
        self.send()

    def ask_again(self) -> None:
        """Of a new controller: the one before may never have heard it."""
        self._unsent = {name: partition for name, (_, partition) in self._asked.items()} | self._unsent
        self._asked = {}
        self.send()

    def forget(self, partition: Partition) -> None:
        """It is led no more."""
        name = partition.topic_partition
        self._asked.pop((name.topic, name.partition), None)
        self._unsent.pop((name.topic, name.partition), None)


def _change(partition: Partition) -> WantedIsr | None:
    replication, name = partition.replication, partition.topic_partition
    if replication is None or replication.wanted is None:
        return None
    return WantedIsr(
        topic=name.topic,
        topic_id=partition.log.topic_id or UUID(int=0),
        partition=name.partition,
        incarnation=partition.incarnation,
        leader_epoch=replication.leader_epoch,
        partition_epoch=replication.partition_epoch,
        isr=replication.wanted,
    )
