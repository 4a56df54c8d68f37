"""Groups of real clients of every make on one topic: members join, leave, die and fall silent while records come."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from appliance.control.coordinator.group.subscription import read_assignment
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.consumer_group_describe import ConsumerGroupDescribeRequest
from appliance.protocol.apis.describe_groups import DescribeGroupsRequest
from appliance.protocol.errors import ErrorCode
from tests.clients.members.arguments import SESSION_MS
from tests.support.broker import Appliance, end_with_the_test_runner
from tests.support.judge import REPLICAS, SLOTS
from tests.support.wire import WireSocket
from tests.system.raw import ask, wait_until

PARTITIONS: Final = 8
HERE: Final = Path(__file__).parent
KAFKAJS: Final = HERE / "kafkajs" / "member.js"
SETTLE_S: Final = 60.0


@pytest.fixture(scope="module")
def appliance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    settings = {
        "group.initial.rebalance.delay.ms": 200,
        "group.min.session.timeout.ms": 1_000,
        "group.consumer.min.session.timeout.ms": SESSION_MS,
        "group.consumer.session.timeout.ms": SESSION_MS,
        "group.consumer.min.heartbeat.interval.ms": 300,
        "group.consumer.heartbeat.interval.ms": 300,
    }
    broker = Appliance(tmp_path_factory.mktemp("groups"), slots=SLOTS, settings=settings)
    broker.start()
    yield broker
    broker.stop()


class Feed:
    """Records into every partition of a topic until it is told to stop; remembers which were acknowledged."""

    def __init__(self, address: str, topic: str) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        admin.create_topics([NewTopic(topic, PARTITIONS, REPLICAS)])[topic].result(30)
        self.acknowledged: set[tuple[int, int]] = set()
        self._topic = topic
        self._producer = confluent_kafka.Producer(
            {"bootstrap.servers": address, "linger.ms": 20, "log_level": 0}
        )
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, b"x", partition=partition, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, error: object, message: confluent_kafka.Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self.acknowledged.add((partition, offset))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        assert self._producer.flush(30) == 0


class Member:
    """A member of a group in a process of its own, and what it has processed so far."""

    def __init__(self, command: list[str]) -> None:
        self.records: list[tuple[int, int]] = []
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=HERE.parent.parent,
            preexec_fn=end_with_the_test_runner,  # noqa: PLW1509 (one C call, takes no lock)
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            words = line.split()
            if len(words) == 2:  # not the half line of one that was killed
                self.records.append((int(words[0]), int(words[1])))

    def tell(self, what: signal.Signals) -> None:
        self._process.send_signal(what)

    def end(self, how: signal.Signals = signal.SIGKILL) -> None:
        if self._process.poll() is None:
            self._process.send_signal(how)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        self._reader.join(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


def python_member(
    make: str, protocol: str = "classic", *, session_ms: int = SESSION_MS
) -> Callable[[str, str, str], list[str]]:
    def command(address: str, group: str, topic: str) -> list[str]:
        program = f"tests.clients.members.{make}"
        return [sys.executable, "-m", program, address, group, topic, make, protocol, str(session_ms)]

    return command


def kafkajs(address: str, group: str, topic: str) -> list[str]:
    return ["node", str(KAFKAJS), address, group, topic, "kafkajs"]


def kcat(address: str, group: str, topic: str) -> list[str]:
    settings = {
        "session.timeout.ms": SESSION_MS,
        "heartbeat.interval.ms": 300,
        "partition.assignment.strategy": "range",
        "auto.offset.reset": "earliest",
        "auto.commit.interval.ms": 200,
    }
    options = [word for name, value in settings.items() for word in ("-X", f"{name}={value}")]
    return ["kcat", "-u", "-q", "-b", address, *options, "-f", "%p %o\\n", "-G", group, topic]


CLASSIC: Final = (
    python_member("confluent"),
    python_member("kafka_python"),
    python_member("aiokafka"),
    kafkajs,
    kcat,
)
CONSUMER: Final = (python_member("confluent", "consumer"),) * 4


def told_by_coordinator(port: int, api: ApiKey, request: Any) -> Any:
    """The group that is asked for, by the slot that coordinates it; `port` is the first slot's."""
    for slot in range(SLOTS):
        with WireSocket(port + slot) as connection:
            described = ask(connection, api, request).groups[0]
        if described.error_code != ErrorCode.NOT_COORDINATOR:
            break
    return described


def classic_owners(port: int, group: str) -> list[list[int]]:
    """The partitions of each member of a stable classic group; none while it is not."""
    described = told_by_coordinator(port, ApiKey.DESCRIBE_GROUPS, DescribeGroupsRequest((group,)))
    if described.group_state != "Stable":
        return []
    return [
        [partition for _, partitions in read_assignment(member.member_assignment) for partition in partitions]
        for member in described.members
    ]


def consumer_owners(port: int, group: str) -> list[list[int]]:
    """The same of a consumer group."""
    described = told_by_coordinator(
        port, ApiKey.CONSUMER_GROUP_DESCRIBE, ConsumerGroupDescribeRequest((group,))
    )
    if described.group_state != "Stable":
        return []
    return [
        [partition for topic in member.assignment.topic_partitions for partition in topic.partitions]
        for member in described.members
    ]


@pytest.mark.parametrize(
    ("makes", "owners"),
    [
        pytest.param(CLASSIC, classic_owners, id="classic"),
        pytest.param(CONSUMER, consumer_owners, id="consumer", marks=pytest.mark.slow),
    ],
)
def test_every_record_reaches_the_group_whatever_becomes_of_its_members(
    appliance: Appliance,
    makes: tuple[Callable[[str, str, str], list[str]], ...],
    owners: Callable[[int, str], list[list[int]]],
) -> None:
    topic = group = f"work-{len(makes)}"
    feed = Feed(appliance.address, topic)
    members: list[Member] = []

    def start(number: int) -> Member:
        members.append(Member(makes[number](appliance.address, group, topic)))
        return members[-1]

    def shared_by(count: int) -> Callable[[], bool]:
        def settled() -> bool:
            found = owners(appliance.port, group)
            partitions = sorted(partition for owned in found for partition in owned)
            return len(found) == count and partitions == list(range(PARTITIONS))

        return settled

    try:
        first = [start(number) for number in range(len(makes))]
        wait_until(shared_by(len(first)), "all members share", timeout_s=SETTLE_S)
        first[1].end(signal.SIGTERM)
        # Killed, not told to leave: kcat commits a record as it leaves that it has not written out.
        first[-1].end(signal.SIGKILL)
        appliance.kill_role("coordinator")
        wait_until(shared_by(len(first) - 2), "the others share", timeout_s=SETTLE_S)
        first[0].tell(signal.SIGSTOP)
        wait_until(shared_by(len(first) - 3), "all but the paused one share", timeout_s=SETTLE_S)
        first[0].tell(signal.SIGCONT)
        start(1)
        start(len(makes) - 1)
        wait_until(shared_by(len(first)), "all are back", timeout_s=SETTLE_S)
        feed.stop()

        def everything_came() -> bool:
            return feed.acknowledged <= {record for member in members for record in list(member.records)}

        wait_until(everything_came, "every record reached the group", timeout_s=SETTLE_S)
    finally:
        for member in members:
            member.end()
    assert len(feed.acknowledged) > 100
    counts = Counter(record for member in members for record in member.records)
    again = sum(count - 1 for count in counts.values())
    # One was killed, one was paused: what they had not committed came again, and no more than that.
    assert again <= len(counts) // 2, f"{again} of {len(counts)} records came more than once"


def test_a_group_changes_to_the_new_protocol_and_back_while_it_works(appliance: Appliance) -> None:
    topic = group = "changing"
    feed = Feed(appliance.address, topic)
    members: list[Member] = []

    def start(make: Callable[[str, str, str], list[str]]) -> Member:
        members.append(Member(make(appliance.address, group, topic)))
        return members[-1]

    def shared_by(count: int, owners: Callable[[int, str], list[list[int]]]) -> None:
        def settled() -> bool:
            found = owners(appliance.port, group)
            partitions = sorted(partition for owned in found for partition in owned)
            return len(found) == count and partitions == list(range(PARTITIONS))

        wait_until(settled, f"{count} members share", timeout_s=SETTLE_S)

    try:
        old = [start(python_member("confluent")), start(python_member("kafka_python"))]
        shared_by(2, classic_owners)
        new = [start(CONSUMER[0]), start(CONSUMER[0])]
        shared_by(4, consumer_owners)
        for member in old:
            member.end(signal.SIGTERM)
        shared_by(2, consumer_owners)
        start(python_member("kafka_python"))
        shared_by(3, consumer_owners)
        for member in new:
            member.end(signal.SIGTERM)
        shared_by(1, classic_owners)
        feed.stop()

        def everything_came() -> bool:
            return feed.acknowledged <= {record for member in members for record in list(member.records)}

        wait_until(everything_came, "every record reached the group", timeout_s=SETTLE_S)
    finally:
        for member in members:
            member.end()


def test_where_no_member_dies_each_record_is_processed_once(appliance: Appliance) -> None:
    """Members commit after each batch, before they ask for more: a rebalance never finds them in between."""
    topic = group = "once"
    feed = Feed(appliance.address, topic)
    members: list[Member] = []

    def start(make: str) -> Member:
        command = python_member(make, session_ms=60_000)
        members.append(Member(command(appliance.address, group, topic)))
        return members[-1]

    def share(count: int) -> None:
        wait_until(
            lambda: len(classic_owners(appliance.port, group)) == count,
            f"{count} members share",
            timeout_s=SETTLE_S,
        )

    try:
        first = start("confluent")
        share(1)
        second = start("aiokafka")
        share(2)
        start("kafka_python")
        share(3)
        first.end(signal.SIGTERM)
        share(2)
        second.end(signal.SIGTERM)
        share(1)
        feed.stop()

        def everything_came() -> bool:
            return feed.acknowledged <= {record for member in members for record in list(member.records)}

        wait_until(everything_came, "every record reached the group", timeout_s=SETTLE_S)
    finally:
        for member in members:
            member.end(signal.SIGTERM)
    counts = Counter(record for member in members for record in member.records)
    assert [record for record, count in counts.items() if count > 1] == []
