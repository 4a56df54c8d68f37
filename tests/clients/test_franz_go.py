"""franz-go's GroupTransactSession: a group's member that consumes, transforms and produces in transactions.

Each member is a process of its own, so that it can be killed and paused. Every test compares what a reader of committed
records gets with the source, record for record.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import pytest

from tests.clients.adapters.confluent import ConfluentClient
from tests.clients.adapters.driver_process import DriverProcess, end_idle_drivers
from tests.clients.client import RefusedError
from tests.clients.play import refused_with, within
from tests.clients.transactional.confluent import ConfluentTransactions
from tests.clients.transactional.drivers import FranzGoTransactions
from tests.clients.transactional.library import FENCED
from tests.support.judge import ENDS_AT_ONCE, running_broker
from tests.support.raw_fetch import is_served

PARTITIONS: Final = 3
RECORDS: Final = 400
"""In each partition."""
SESSION_MS: Final = 6_000
END: Final = b"end"

Polled = list[tuple[int, int, bytes]]
_numbers: Iterator[int] = itertools.count(1)


class Member:
    """A GroupTransactSession in a process of its own."""

    def __init__(self, work: Work, transactional_id: str) -> None:
        self.driver = DriverProcess("sessions of franz-go", FranzGoTransactions.command)
        self._work = work
        self._number = next(_numbers)
        self.driver.ask("connect", address=work.address)
        self._ask(
            "session",
            id=f"{work.source}-{transactional_id}",
            group=work.source,
            topic=work.source,
            timeoutMs=60_000,
            sessionMs=SESSION_MS,
            server=work.server_side,
        )

    def _ask(self, operation: str, **request: object) -> object:
        return self.driver.ask(operation, session=self._number, **request)

    def init(self) -> None:
        self._ask("initSession")

    def poll(self, most: int = 60, timeout_s: float = 0.5) -> Polled:
        told = self._ask("poll", most=most, timeoutMs=int(timeout_s * 1000))
        assert isinstance(told, list)
        return [(each["partition"], each["offset"], b64decode(each["value"])) for each in told]

    def polled(self) -> Polled:
        """Records, once the group has given this member a partition with some."""
        deadline = time.monotonic() + 60
        while not (came := self.poll()):
            assert time.monotonic() < deadline, "nothing came"
        return came

    def begin(self) -> None:
        self._ask("beginSession")

    def copy(self, polled: Polled) -> None:
        """Writes what was polled to the same partitions of the target."""
        for partition in {each[0] for each in polled}:
            values = [b64encode(value).decode() for place, _, value in polled if place == partition]
            self._ask("sendOfSession", topic=self._work.target, partition=partition, values=values)

    def end(self, *, commit: bool) -> bool:
        """Whether it was committed."""
        committed = self._ask("endSession", commit=commit)
        assert isinstance(committed, bool)
        return committed

    def close(self) -> None:
        self._ask("closeSession")
        self.driver.release()

    def work_until(self, finished: threading.Event) -> int:
        """Copies what its group gives it; how many of its transactions were not committed."""
        failed = 0
        while not finished.is_set():
            if polled := self.poll():
                self.begin()
                self.copy(polled)
                failed += not self.end(commit=True)
        return failed


class Work:
    """A source with records, its empty target, and a group that shall copy one to the other."""

    def __init__(self, witness: ConfluentTransactions, *, server_side: bool = False) -> None:
        self.address = witness.address
        self.server_side = server_side
        self._witness = witness
        admin = ConfluentClient(witness.address)
        number = next(_numbers)
        self.source, self.target = f"session-{number}", f"session-{number}-copy"
        for topic in (self.source, self.target):
            admin.create_topic(topic, PARTITIONS)
            assert within(20, partial(is_served, witness.address, topic, PARTITIONS))
        self.values = [[b"%d/%d" % (place, each) for each in range(RECORDS)] for place in range(PARTITIONS)]
        for place, values in enumerate(self.values):
            witness.send(self.source, values, place)

    def committed(self) -> int:
        """Records that the group has done with."""
        return sum(
            max(0, self._witness.committed(self.source, self.source, place)) for place in range(PARTITIONS)
        )

    @property
    def is_done(self) -> bool:
        return self.committed() == PARTITIONS * RECORDS

    def check(self) -> None:
        """The target holds each record once, in its order, and the group's offsets say so."""
        assert self.is_done
        for place, values in enumerate(self.values):
            self._witness.send(self.target, [END], place)
            assert self._witness.read(self.target, place, until=END) == [*values, END]


@pytest.fixture(scope="module")
def witness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConfluentTransactions]:
    with running_broker(tmp_path_factory.mktemp("sessions") / "data", ENDS_AT_ONCE) as broker:
        yield ConfluentTransactions(broker.address)
        end_idle_drivers()


both_protocols = pytest.mark.parametrize("server_side", [False, True], ids=["classic", "consumer"])


@both_protocols
def test_a_session_copies_each_record_once_though_each_third_transaction_is_aborted(
    witness: ConfluentTransactions, *, server_side: bool
) -> None:
    work = Work(witness, server_side=server_side)
    member = Member(work, "one")
    done = 0
    for attempt in itertools.count(1):
        polled = member.polled()
        member.begin()
        member.copy(polled)
        committed = member.end(commit=attempt % 3 != 0)
        assert committed == (attempt % 3 != 0)
        done += len(polled) if committed else 0
        assert work.committed() == done
        if work.is_done:
            break
    member.close()
    work.check()


@both_protocols
def test_sessions_that_join_and_leave_while_all_work_copy_each_record_once(
    witness: ConfluentTransactions, *, server_side: bool
) -> None:
    work = Work(witness, server_side=server_side)
    finished, leaves = threading.Event(), threading.Event()
    members = [Member(work, "first")]
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(members[0].work_until, leaves)]
        try:
            for name in ("second", "third"):
                assert within(60, lambda: work.committed() > 0)
                members.append(Member(work, name))
                runs.append(pool.submit(members[-1].work_until, finished))
            leaves.set()
            runs[0].result(60)
            members[0].close()
            within(90, lambda: any(run.done() for run in runs[1:]) or work.is_done)
        finally:
            leaves.set()
            finished.set()
        for run in runs:
            run.result(60)
    for member in members[1:]:
        member.close()
    work.check()


def test_what_a_killed_session_has_not_committed_is_copied_by_its_successor(
    witness: ConfluentTransactions,
) -> None:
    work = Work(witness)
    killed = Member(work, "same")
    for commits in (True, True, False):
        polled = killed.polled()
        killed.begin()
        killed.copy(polled)
        if commits:
            assert killed.end(commit=True)
    killed.driver.kill()
    assert 0 < work.committed() < PARTITIONS * RECORDS
    successor = Member(work, "same")
    _copy_the_rest(work, successor)
    work.check()


def test_a_session_whose_id_has_gone_to_another_one_commits_neither_records_nor_offsets(
    witness: ConfluentTransactions,
) -> None:
    work = Work(witness)
    zombie = Member(work, "same")
    zombie.begin()
    zombie.copy(zombie.polled())
    successor = Member(work, "same")
    successor.init()
    with refused_with(*FENCED):
        zombie.end(commit=True)
    assert work.committed() == 0
    zombie.driver.kill()
    _copy_the_rest(work, successor)
    work.check()


def test_a_session_that_was_paused_commits_nothing_that_its_group_has_given_away(
    witness: ConfluentTransactions,
) -> None:
    work = Work(witness)
    paused, other = Member(work, "paused"), Member(work, "other")
    paused.begin()
    paused.copy(paused.polled())
    os.kill(paused.driver.pid, signal.SIGSTOP)
    try:
        _copy_the_rest(work, other)
    finally:
        os.kill(paused.driver.pid, signal.SIGCONT)
    try:
        assert not paused.end(commit=True)
    except RefusedError as refused:
        assert refused.code in FENCED, refused  # noqa: PT017 (either is right)
    paused.driver.kill()
    work.check()


def _copy_the_rest(work: Work, member: Member) -> None:
    finished = threading.Event()
    with ThreadPoolExecutor() as pool:
        run = pool.submit(member.work_until, finished)
        try:
            within(90, lambda: run.done() or work.is_done)
        finally:
            finished.set()
        run.result(60)
    member.close()
