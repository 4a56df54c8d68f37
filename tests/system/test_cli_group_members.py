"""`appliance consume --group` as several processes, which join, leave, die and lose a broker. No record is left out."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
from confluent_kafka import Producer

from tests.cli.command import Outcome, appliance, environment
from tests.support.broker import Appliance

WAIT_S = 60.0
SESSION_MS = 4000
PROTOCOLS = {
    "classic": ("-X", f"session.timeout.ms={SESSION_MS}", "-X", "heartbeat.interval.ms=300"),
    "consumer": ("-X", "group.protocol=consumer"),
}
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.max.size": 3,
    "group.consumer.min.heartbeat.interval.ms": 300,
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.session.timeout.ms": SESSION_MS,
    "group.consumer.session.timeout.ms": SESSION_MS,
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Appliance]:
    started = Appliance(tmp_path_factory.mktemp("members") / "data", slots=3, settings=SETTINGS)
    started.start()
    yield started
    started.stop()


def until(done: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < deadline_s, f"waited in vain until {what}"
        time.sleep(0.05)


class Member:
    """A `consume --group` in a process of its own, whose output goes to files."""

    def __init__(self, path: Path, *arguments: object) -> None:
        self._path = path
        self._errors = path.with_suffix(".err")
        with path.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "appliance", "consume", *map(str, arguments)],
                stdout=output,
                stderr=errors,
                env=environment(),
            )

    def values(self) -> list[str]:
        return self._path.read_text().split()

    def errors(self) -> str:
        return self._errors.read_text()

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        return self.process.wait(WAIT_S)


class Group:
    """A topic of four partitions, and the members of a group that read it."""

    def __init__(self, broker: Appliance, directory: Path, protocol: str) -> None:
        """The topic has a replica in each slot."""
        self.topic, self.name = f"t-{uuid4().hex[:8]}", f"g-{uuid4().hex[:8]}"
        self._broker = broker
        self._directory = directory
        self._protocol = PROTOCOLS[protocol]
        self.sent = 0
        self.members: list[Member] = []
        self.run("topics", "create", self.topic, "-p", 4, "-r", broker.slots).succeeded()

    def run(self, *arguments: object, given: bytes = b"") -> Outcome:
        return appliance(*arguments, given=given, more={"APPLIANCE_BOOTSTRAP": self._broker.address})

    def send(self, count: int) -> None:
        lines = b"".join(b"%d\n" % number for number in range(self.sent, self.sent + count))
        self.run("produce", self.topic, given=lines).succeeded()
        self.sent += count

    def member(self, *arguments: object) -> Member:
        path = self._directory / f"member-{len(self.members)}"
        place = (self.topic, "-g", self.name, "-b", self._broker.address)
        self.members.append(Member(path, *place, *self._protocol, *arguments))
        return self.members[-1]

    def seen(self) -> Counter[str]:
        return Counter(value for member in self.members for value in member.values())

    def missing(self) -> set[str]:
        return set(map(str, range(self.sent))) - self.seen().keys()

    def twice(self) -> set[str]:
        return {value for value, count in self.seen().items() if count > 1}


@pytest.fixture(params=list(PROTOCOLS))
def group(broker: Appliance, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Group]:
    made = Group(broker, tmp_path, request.param)
    yield made
    for member in made.members:
        if member.process.poll() is None:
            member.process.kill()
            member.process.wait()


def test_members_that_join_and_leave_print_each_record_once(group: Group) -> None:
    group.send(3000)
    first = group.member("--follow")
    until(lambda: len(first.values()) > 500, "the first member reads")
    second = group.member("--follow")
    group.send(3000)
    third = group.member("--count", 100)
    until(lambda: not group.missing(), "two members have read everything")
    group.send(1000)
    assert third.wait() == 0
    assert len(third.values()) <= 100
    assert second.end(signal.SIGTERM) == 143
    assert first.end(signal.SIGINT) == 130
    group.send(200)
    for last in (group.member(), group.member()):
        assert last.wait() == 0, last.errors()
    assert group.missing() == set()
    assert group.twice() == set()
    assert [each.errors().strip() for each in group.members[:3]] == ["", "", ""]


def test_what_a_dead_member_held_is_read_by_those_who_come_after(group: Group) -> None:
    group.send(40)
    dead = group.member("--follow")
    until(lambda: not group.missing(), "everything is read")
    dead.end(signal.SIGKILL)
    group.send(400)
    for last in (group.member(), group.member()):
        assert last.wait() == 0, last.errors()
    assert group.missing() == set()


@pytest.mark.slow  # 20 s
def test_members_go_on_while_a_slot_stops_and_starts(group: Group, broker: Appliance) -> None:
    group.send(500)
    members = [group.member("--follow"), group.member("--follow")]
    until(lambda: not group.missing(), "everything is read")
    for slot in (1, 2):  # where the coordinator is, and where it goes to
        group.run("slots", "stop", slot).succeeded()
        group.send(500)
        until(lambda: not group.missing(), f"records are read without slot {slot}")
        group.run("slots", "start", slot).succeeded()
    assert [each.process.poll() for each in members] == [None, None], [each.errors() for each in members]
    assert [each.end(signal.SIGTERM) for each in members] == [143, 143]
    assert group.member().wait() == 0
    assert group.missing() == set()


def test_member_that_the_group_refuses_says_why(broker: Appliance, tmp_path: Path) -> None:
    group = Group(broker, tmp_path, "classic")
    group.send(10)
    members = [group.member("--follow") for _ in range(3)]
    until(lambda: not group.missing(), "everything is read")
    try:

        def is_full() -> bool:
            # While members join again, the broker counts those that have: a fourth one would take somebody's place.
            told = json.loads(group.run("groups", "describe", group.name, "--json").text or "[]")
            return any(len(each["members"]) == 3 and each["state"].lower() == "stable" for each in told)

        until(is_full, "all three are members")
        refused = group.member("--follow")
        assert refused.wait() == 1
        assert "GROUP_MAX_SIZE_REACHED" in refused.errors()
    finally:
        assert [each.end(signal.SIGTERM) for each in members] == [143] * 3


def test_end_of_a_transaction_is_committed_too(group: Group, broker: Appliance) -> None:
    client = Producer({"bootstrap.servers": broker.address, "transactional.id": group.name})
    client.init_transactions(WAIT_S)
    client.begin_transaction()
    for number in range(20):
        client.produce(group.topic, b"%d" % number, partition=number % 4)
    client.commit_transaction(WAIT_S)
    group.sent = 20
    for last in (group.member(), group.member()):
        assert last.wait() == 0, last.errors()
    assert group.missing() == set()
    assert '"lag": 0, "stable_lag": 0' in group.run("groups", "lag", group.name, "--json").succeeded().text


@pytest.mark.slow  # 40 s, of which the member waits 25 s for the broker
def test_member_that_cannot_commit_says_so_and_its_records_are_printed_again(tmp_path: Path) -> None:
    broker = Appliance(tmp_path / "data", settings=SETTINGS)
    broker.start()
    family = [psutil.Process(broker.pid), *psutil.Process(broker.pid).children(recursive=True)]
    try:
        group = Group(broker, tmp_path, "classic")
        group.send(20)
        member = group.member("--follow", "-X", "auto.commit.interval.ms=600000")
        until(lambda: not group.missing(), "everything is read")
        for process in family:
            process.suspend()
        assert member.end(signal.SIGTERM) == 1
        assert "the offsets of printed records were not committed" in member.errors()
        for process in family:
            process.resume()
        after = group.member()
        assert after.wait() == 0, after.errors()
        assert len(after.values()) == 20
    finally:
        for process in family:
            process.resume()
        broker.stop()
