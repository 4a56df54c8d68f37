"""Members of one consumer group by confluent-kafka, many in one process: how long a rebalance takes."""

import threading
import time
from dataclasses import dataclass, field

from confluent_kafka import Consumer, TopicPartition

from benchmarks.void import Void

PATIENCE_SECONDS = 120.0
POLL_SECONDS = 0.1
HEARTBEAT_MS = 500
"""A member learns of a rebalance by its next heartbeat; the default of three seconds would be all that one sees."""


@dataclass(slots=True)
class Member:
    """One consumer with a thread that polls it."""

    consumer: Consumer
    owned: frozenset[int] = frozenset()
    thread: threading.Thread | None = None
    leaves: threading.Event = field(default_factory=threading.Event)


class Group:
    """A group on one topic. `settle` waits until every partition has exactly one owner among the members."""

    def __init__(self, address: str, group: str, topic: str, *, partitions: int, protocol: str) -> None:
        self._settings: dict[str, str | int | bool] = {
            "bootstrap.servers": address,
            "group.id": group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
        if protocol == "classic":
            self._settings |= {
                "partition.assignment.strategy": "cooperative-sticky",
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "session.timeout.ms": 30_000,
            }
        self._topic = topic
        self._partitions = partitions
        self._changed = threading.Condition()
        self.members: list[Member] = []

    def join(self, count: int) -> None:
        """So many more members, all at once."""
        for _ in range(count):
            member = Member(Consumer(self._settings))
            member.thread = threading.Thread(target=self._poll, args=(member,), daemon=True)
            self.members.append(member)
            member.thread.start()

    def leave(self) -> None:
        """The first member leaves, as one does that closes its consumer."""
        member = self.members.pop(0)
        member.leaves.set()

    def settle(self) -> float:
        """Seconds until each partition has one owner, and each member something. Raises Void."""
        began = time.monotonic()
        with self._changed:
            if not self._changed.wait_for(self._is_settled, PATIENCE_SECONDS):
                owned = sum(len(member.owned) for member in self.members)
                raise Void(
                    f"{owned} of {self._partitions} partitions are owned after {PATIENCE_SECONDS:.0f} s"
                )
        return time.monotonic() - began

    def close(self) -> None:
        """All leave."""
        leaving, self.members = self.members, []
        for member in leaving:
            member.leaves.set()
        for member in leaving:
            if member.thread is not None:
                member.thread.join(PATIENCE_SECONDS)

    def _is_settled(self) -> bool:
        owned = [partition for member in self.members for partition in member.owned]
        return len(owned) == self._partitions == len(set(owned)) and all(m.owned for m in self.members)

    def _poll(self, member: Member) -> None:
        def assigned(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._owns(member, member.owned | {each.partition for each in partitions})

        def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
            self._owns(member, member.owned - {each.partition for each in partitions})

        member.consumer.subscribe([self._topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        while not member.leaves.is_set():
            member.consumer.poll(POLL_SECONDS)
        member.consumer.close()

    def _owns(self, member: Member, owned: frozenset[int]) -> None:
        with self._changed:
            member.owned = owned
            self._changed.notify_all()
