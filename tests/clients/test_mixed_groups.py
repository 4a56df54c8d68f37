"""Groups whose members come over TCP, ZeroMQ and shared memory at once: one is killed, one joins, nothing is missed."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.clients.members.arguments import SESSION_MS
from tests.clients.test_groups import (
    PARTITIONS,
    SETTLE_S,
    Feed,
    Member,
    classic_owners,
    consumer_owners,
    python_member,
)
from tests.native.transports import broker_on_all
from tests.support.broker import Appliance
from tests.support.judge import JUDGE
from tests.system.raw import wait_until

LANES: Final = ("tcp", "zmq+ipc", "shm")


class Served:
    """An appliance on all transports."""

    def __init__(self, broker: Appliance, places: dict[str, str]) -> None:
        self.broker = broker
        self.places = places


class Group:
    """Members of one group on one topic, which is fed meanwhile."""

    def __init__(self, served: Served, name: str, protocol: str) -> None:
        self.members: list[Member] = []
        self.feed = Feed(served.broker.address, name)
        self._served = served
        self._name = name
        self._protocol = protocol

    def start(self, lane: str) -> Member:
        command = python_member("native", self._protocol)
        self.members.append(Member(command(self._served.places[lane], self._name, self._name)))
        return self.members[-1]

    def start_librdkafkas(self) -> Member:
        """One that speaks TCP and is not the native client."""
        command = python_member("confluent", self._protocol)
        self.members.append(Member(command(self._served.broker.address, self._name, self._name)))
        return self.members[-1]

    def owned(self) -> list[list[int]]:
        owners = consumer_owners if self._protocol == "consumer" else classic_owners
        return owners(self._served.broker.port, self._name)

    def is_shared_by(self, count: int) -> Callable[[], bool]:
        def settled() -> bool:
            found = self.owned()
            return len(found) == count and sorted(each for owned in found for each in owned) == list(
                range(PARTITIONS)
            )

        return settled

    def all_have_read(self) -> bool:
        return all(member.records for member in self.members)

    def end(self) -> None:
        self.feed.stop()
        for member in self.members:
            member.end()


if JUDGE != "kafka":

    @pytest.fixture(scope="module")
    def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
        settings: dict[str, object] = {
            "group.initial.rebalance.delay.ms": 200,
            "group.min.session.timeout.ms": 1_000,
            "group.consumer.min.session.timeout.ms": SESSION_MS,
            "group.consumer.session.timeout.ms": SESSION_MS,
            "group.consumer.min.heartbeat.interval.ms": 300,
            "group.consumer.heartbeat.interval.ms": 300,
        }
        with broker_on_all(tmp_path_factory.mktemp("m"), settings) as (broker, places):
            assert isinstance(broker, Appliance)
            yield Served(broker, places)

    @pytest.mark.timeout(300)
    @pytest.mark.parametrize("protocol", ["classic", "consumer"])
    def test_each_record_reaches_a_group_over_all_transports(served: Served, protocol: str) -> None:
        group = Group(served, f"mixed-{protocol}", protocol)
        try:
            first = [group.start(lane) for lane in LANES]
            group.start_librdkafkas()
            wait_until(group.is_shared_by(4), "all members share", timeout_s=SETTLE_S)
            wait_until(group.all_have_read, "each reads its share", timeout_s=SETTLE_S)
            first[1].end(signal.SIGKILL)
            served.broker.kill_role("coordinator")
            wait_until(group.is_shared_by(3), "the others share", timeout_s=SETTLE_S)
            group.start("shm")
            wait_until(group.is_shared_by(4), "one has joined", timeout_s=SETTLE_S)
            wait_until(group.all_have_read, "the new one reads its share", timeout_s=SETTLE_S)
            first[0].end(signal.SIGTERM)
            wait_until(group.is_shared_by(3), "one has left", timeout_s=SETTLE_S)
            group.feed.stop()

            def everything_came() -> bool:
                came = {record for member in group.members for record in list(member.records)}
                return group.feed.acknowledged <= came

            wait_until(everything_came, "every record reached the group", timeout_s=SETTLE_S)
        finally:
            group.end()
        assert len(group.feed.acknowledged) > 100
        counts = Counter(record for member in group.members for record in member.records)
        again = sum(count - 1 for count in counts.values())
        # Two were killed or left: what they had not committed came again, and no more than that.
        assert again <= len(counts) // 2, f"{again} of {len(counts)} records came more than once"

    @pytest.mark.timeout(300)
    def test_each_member_of_a_broadcast_group_gets_each_record_once_on_every_transport(
        served: Served,
    ) -> None:
        group = Group(served, "mixed-broadcast", "broadcast")

        def all_have_all(count: int) -> Callable[[], bool]:
            return lambda: [sorted(each) for each in group.owned()] == [list(range(PARTITIONS))] * count

        try:
            staying = [group.start("tcp"), group.start("shm")]
            killed = group.start("zmq+ipc")
            wait_until(all_have_all(3), "all have everything", timeout_s=SETTLE_S)
            killed.end(signal.SIGKILL)
            staying.append(group.start("zmq+ipc"))
            served.broker.kill_role("coordinator")
            wait_until(all_have_all(3), "one is gone and one is here", timeout_s=SETTLE_S)
            group.feed.stop()
            for member in staying:
                wait_until(
                    lambda member=member: group.feed.acknowledged <= set(member.records),  # type: ignore[misc]
                    "every record reached every member",
                    timeout_s=SETTLE_S,
                )
        finally:
            group.end()
        assert len(group.feed.acknowledged) > 100
        for member in staying:
            assert len(member.records) == len(set(member.records)), "a rebalance made it begin again"
