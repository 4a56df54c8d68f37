"""Groups of native consumers: what a member hands out and commits while partitions move."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, Final

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_heartbeat import (
    LEAVE_GROUP_EPOCH,
    ConsumerGroupHeartbeatRequest,
)
from appliance.protocol.apis.leave_group import LeaveGroupRequest, MemberIdentity
from appliance_client import Admin, Consumer, Producer, RebalanceListener, TopicPartition, aio
from appliance_client.errors import CommitFailedError
from tests.native.transports import served_on_all
from tests.support.judge import QUICK_GROUPS
from tests.support.wire import WireSocket
from tests.system.raw import ask

PATIENCE_S: Final = 60.0
_numbers = count(1)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Where one broker is reached, by transport."""
    with served_on_all(tmp_path_factory.mktemp("g"), QUICK_GROUPS) as served:
        yield served


@pytest.fixture
def topic(places: dict[str, str]) -> str:
    """A topic of four partitions, with 1,000 records in each."""
    name = f"groups-{os.getpid()}-{next(_numbers)}"
    with Admin(bootstrap_servers=places["tcp"]) as admin:
        admin.create_topic(name, 4)
    fill(places["tcp"], name, range(4_000))
    return name


def fill(address: str, topic: str, numbers: Sequence[int]) -> None:
    with Producer(bootstrap_servers=address) as producer:
        futures = [producer.send(topic, b"%d" % number, partition=number % 4) for number in numbers]
        for future in futures:
            future.get(PATIENCE_S)


def options(address: str, group: str, protocol: str, **more: Any) -> dict[str, Any]:
    classic = {
        "partition_assignment_strategy": "range",
        "heartbeat_interval_ms": 100,
        "session_timeout_ms": 10_000,
    }
    return {
        "bootstrap_servers": address,
        "group_id": group,
        "group_protocol": protocol,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
        **(classic if protocol == "classic" else {}),
        **more,
    }


def until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


class Revoking(RebalanceListener):
    """Keeps what was revoked and not given again."""

    def __init__(self) -> None:
        self.gone: set[TopicPartition] = set()
        self.times = 0

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        self.gone -= set(assigned)

    def on_partitions_revoked(self, revoked: Sequence[TopicPartition]) -> None:
        self.gone |= set(revoked)
        self.times += bool(revoked)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_nothing_of_a_revoked_partition_is_handed_out(
    places: dict[str, str], topic: str, protocol: str
) -> None:
    # In asyncio nothing comes between the listener's end and the next record that poll takes.
    heard = Revoking()

    async def talk() -> None:
        given = options(places["tcp"], topic, protocol, max_poll_records=2)
        async with aio.Consumer(**given) as first, aio.Consumer(**given) as second:
            first.subscribe([topic], listener=heard)
            while len(first.assignment()) < 4 or not await first.poll(50):
                await asyncio.sleep(0.01)
            while not all(each.has_records for each in first._consumer.fetching.readings.values()):
                await asyncio.sleep(0.01)
            second.subscribe([topic])
            polls = 0
            while polls < 50:
                taken = await first.poll(50)
                assert not heard.gone & set(taken), "another member may read them already"
                await second.poll(0)
                polls += heard.times > 0

    asyncio.run(asyncio.wait_for(talk(), PATIENCE_S))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_member_that_was_removed_while_it_processed_cannot_commit_as_the_one_that_joined_again(
    places: dict[str, str], topic: str, protocol: str
) -> None:
    with Consumer(topic, **options(places["tcp"], topic, protocol)) as consumer:
        until(lambda: len(consumer.poll(50)) > 0 and len(consumer.assignment()) == 4)
        before = consumer.group_metadata()
        # The application processes what it got, and does not poll.
        remove(places["tcp"], topic, before.member_id, protocol)
        inner = consumer._consumer.coordinator
        assert inner is not None
        until(lambda: inner.identity() != before and inner.identity().generation_id > 0)
        assert consumer.group_metadata() == before, (
            "as whom its transaction must commit offsets, and be refused"
        )
        with pytest.raises(CommitFailedError):
            consumer.commit({TopicPartition(topic, 0): 7})
        told: list[BaseException | None] = []
        consumer.commit_async({TopicPartition(topic, 0): 7}, lambda _offsets, error: told.append(error))
        until(lambda: bool(told))
        assert isinstance(told[0], CommitFailedError)
        until(lambda: len(consumer.poll(50)) > 0)
        assert consumer.group_metadata() == inner.identity()
        consumer.commit({TopicPartition(topic, 0): 7})
        there = consumer.committed(TopicPartition(topic, 0))[TopicPartition(topic, 0)]
        assert there is not None
        assert there.offset == 7


class Waits(RebalanceListener):
    """Its first assignment takes longer than anybody waits for."""

    def __init__(self) -> None:
        self.entered, self.let_go = threading.Event(), threading.Event()

    def on_partitions_assigned(self, assigned: Sequence[TopicPartition]) -> None:
        if assigned and not self.entered.is_set():
            self.entered.set()
            self.let_go.wait(PATIENCE_S)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_listener_that_takes_longer_than_max_poll_interval_ms_holds_up_no_other_member(
    places: dict[str, str], topic: str, protocol: str
) -> None:
    given = options(places["tcp"], topic, protocol)
    waits = Waits()
    with (
        Consumer(**given, max_poll_interval_ms=1_000) as stuck,
        Consumer(topic, **given) as lively,
    ):
        stuck.subscribe([topic], listener=waits)

        def poll() -> None:
            while not waits.let_go.is_set():
                stuck.poll(100)

        polling = threading.Thread(target=poll)
        polling.start()
        try:
            until(lambda: lively.poll(10) is not None and waits.entered.is_set())
            until(lambda: lively.poll(50) is not None and len(lively.assignment()) == 4)
        finally:
            waits.let_go.set()
            polling.join()


def remove(address: str, group: str, member_id: str, protocol: str) -> None:
    """Have the coordinator forget a member."""
    host, port = address.rsplit(":", 1)
    assert host == "127.0.0.1"
    with WireSocket(int(port), timeout_s=30) as connection:
        if protocol == "classic":
            request = LeaveGroupRequest(group, members=(MemberIdentity(member_id, None, None),))
            answer = ask(connection, ApiKey.LEAVE_GROUP, request)
        else:
            goodbye = ConsumerGroupHeartbeatRequest(group, member_id, LEAVE_GROUP_EPOCH)
            answer = ask(connection, ApiKey.CONSUMER_GROUP_HEARTBEAT, goodbye)
    assert not answer.error_code


def test_a_member_of_a_broadcast_group_goes_on_where_it_was_whoever_comes_or_is_lost(
    places: dict[str, str], topic: str
) -> None:
    given = options(
        places["tcp"], topic, "classic", partition_assignment_strategy="broadcast", auto_offset_reset="latest"
    )
    values: list[bytes] = []

    def read(consumer: Consumer, records: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(values) < records and time.monotonic() < deadline:
            values.extend(record.value for found in consumer.poll(50).values() for record in found)

    with Consumer(topic, **given) as first:
        until(lambda: not first.poll(50) and len(first.assignment()) == 4 and has_positions(first))
        fill(places["tcp"], topic, range(4_000, 4_100))
        read(first, 50)
        with Consumer(topic, **given) as second:
            until(lambda: not second.poll(10) and len(second.assignment()) == 4)
            remove(places["tcp"], topic, first.group_metadata().member_id, "classic")
            # Removed, it reads on; what is written while nobody has it is not passed over.
            fill(places["tcp"], topic, range(4_100, 4_200))
            read(first, 200)
        read(first, 200)
    assert sorted(values) == sorted(b"%d" % number for number in range(4_000, 4_200))


def has_positions(consumer: Consumer) -> bool:
    return all(each.position is not None for each in consumer._consumer.fetching.readings.values())


def test_a_static_member_that_comes_back_for_another_topic_reads_that_one(
    places: dict[str, str], topic: str
) -> None:
    """The broker gives it the assignment of before, because the group is stable (KIP-345)."""
    other = f"{topic}-other"
    with Admin(bootstrap_servers=places["tcp"]) as admin:
        admin.create_topic(other, 4)
    fill(places["tcp"], other, [1])
    for name in (topic, other):
        settings = options(places["tcp"], f"static-{topic}", "classic", group_instance_id="one")
        with Consumer(name, **settings) as consumer:
            deadline_s = time.monotonic() + PATIENCE_S
            seen: set[str] = set()
            while not seen and time.monotonic() < deadline_s:
                seen |= {place.topic for place in consumer.poll(200)}
            assert seen == {name}
