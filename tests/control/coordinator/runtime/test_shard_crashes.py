"""A coordinator or an owner dies between two steps of an append: what was acknowledged is there, nothing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.control.coordinator.runtime.effects import Append, Effects, Producer
from appliance.control.coordinator.runtime.shard import State
from appliance.partition_access.access import UNKNOWN_OUTCOME
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.control import EndTransactionMarker
from tests.control.coordinator.runtime.host import DISK, TICK_MS, Host
from tests.control.coordinator.runtime.subjects import SUBJECTS, Subject, ends, logged, written

KEY, OLD, NEW = 0, 1, 2

Step = Callable[[Host], None]


def nothing(_host: Host) -> None:
    """It is not sent yet."""


def sent(host: Host) -> None:
    host.turn()


def taken(host: Host) -> None:
    sent(host)
    host.fetch_requests()


def appended(host: Host) -> None:
    taken(host)
    host.append_next()


def answered(host: Host) -> None:
    appended(host)
    host.answer()


def applied(host: Host) -> None:
    answered(host)
    host.turn()


STEPS: list[Step] = [nothing, sent, taken, appended, answered, applied]


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return SUBJECTS[request.param]


@pytest.fixture
def host(tmp_path: Path, subject: Subject) -> Iterator[Host]:
    made = Host(tmp_path, subject.topic, subject.service)
    made.settle()
    yield made
    made.close()


def write(host: Host, subject: Subject, value: int, *, key: int = KEY) -> list[int]:
    """Writes; the list gets the outcome."""
    outcomes: list[int] = []

    def ended(error: int) -> Effects:
        outcomes.append(error)
        return []

    host.shards.carry_out([Append(subject.partition(key), (subject.record(key, value),), ended)])
    return outcomes


def state(host: Host, subject: Subject) -> dict[int, int]:
    return subject.state(host, subject.partition(KEY))


@pytest.mark.parametrize("step", STEPS)
def test_next_life_of_the_coordinator_has_what_the_log_has(host: Host, subject: Subject, step: Step) -> None:
    old = write(host, subject, OLD)
    host.settle()
    assert old == [0]
    new = write(host, subject, NEW)
    step(host)
    in_log = logged(subject, host, subject.partition(KEY))
    host.kill_coordinator()
    host.settle()
    assert state(host, subject) == in_log
    assert in_log[KEY] == (NEW if step in STEPS[3:] else OLD)
    if step is applied:
        assert new == [0]


@pytest.mark.parametrize("step", STEPS)
def test_death_of_the_owner_leaves_the_outcome_open_and_the_state_as_the_log_has_it(
    host: Host, subject: Subject, step: Step
) -> None:
    write(host, subject, OLD)
    host.settle()
    new = write(host, subject, NEW)
    step(host)
    host.kill_worker()
    assert new == ([0] if step is applied else [UNKNOWN_OUTCOME])
    assert state(host, subject) == {}, "nothing is known while nobody leads"
    host.settle()
    partition = subject.partition(KEY)
    assert state(host, subject) == logged(subject, host, partition)
    values = [value for _, value in written(subject, host, partition)]
    assert values == ([OLD, NEW] if step in STEPS[3:] else [OLD])


def test_refused_append_is_told_and_nothing_is_forgotten_or_read_again(host: Host, subject: Subject) -> None:
    write(host, subject, OLD)
    host.settle()
    new = write(host, subject, NEW)
    taken(host)
    host.append_next(error=DISK)
    host.answer()
    host.turn()
    assert new == [DISK]
    assert state(host, subject) == {KEY: OLD}
    assert host.is_active(subject.partition(KEY))


def test_append_whose_outcome_is_not_known_has_the_log_replayed(host: Host, subject: Subject) -> None:
    """The owner has appended it, and says that it has not."""
    new = write(host, subject, NEW)
    appended(host)
    host.held.clear()
    host.kill_worker()
    assert new == [UNKNOWN_OUTCOME]
    host.settle()
    assert state(host, subject) == {KEY: NEW}


def test_what_is_written_while_a_batch_is_in_flight_is_the_next_batch(host: Host, subject: Subject) -> None:
    same = [key for key in range(20) if subject.partition(key) == subject.partition(KEY)]
    first = write(host, subject, 1)
    sent(host)
    others = [write(host, subject, 10 + key, key=key) for key in same[1:]]
    sent(host)
    host.fetch_requests()
    assert len(host.asked) == 1
    host.append_next()
    host.answer()
    host.turn()
    assert first == [0]
    host.fetch_requests()
    assert len(host.asked) == 1, "all of them in one batch"
    host.settle()
    assert others == [[0]] * len(others)


def test_partition_that_changes_its_leader_answers_waiting_writes_and_loads_again(
    host: Host, subject: Subject
) -> None:
    write(host, subject, OLD)
    host.settle()
    new = write(host, subject, NEW)
    sent(host)
    host.new_epoch()
    host.turn()
    assert new == [UNKNOWN_OUTCOME]
    host.settle()
    assert state(host, subject) == logged(subject, host, subject.partition(KEY))


def test_load_finds_what_was_still_on_its_way_to_an_empty_log(host: Host, subject: Subject) -> None:
    write(host, subject, NEW)
    sent(host)
    host.new_epoch()
    host.turn()
    host.settle()
    assert state(host, subject) == {KEY: NEW}


def test_requests_are_gated_by_slot_and_by_state(host: Host, subject: Subject) -> None:
    shard = host.shards.shards[0]
    assert shard.gate(0) == 0
    assert shard.gate(1) == ErrorCode.NOT_COORDINATOR
    host.kill_worker()
    assert shard.gate(0) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    host.lead_again()
    assert shard.state is State.ACTIVE or shard.gate(0) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    host.settle()
    assert shard.gate(0) == 0


def test_load_waits_where_the_log_cannot_be_read_now(host: Host, subject: Subject) -> None:
    write(host, subject, OLD)
    host.settle()
    host.kill_coordinator()
    host.turn()
    host.fetch_requests()
    host.kill_worker()
    host.lead_again()
    host.clock.advance(TICK_MS)
    host.settle()
    assert state(host, subject) == {KEY: OLD}


# Transactions

PRODUCER = Producer(7, 0)
WITH_TRANSACTIONS = pytest.mark.parametrize("subject", ["toy", "offsets"], indirect=True)
"""Nobody writes to `__transaction_state` in a transaction, so its machine looks at no marker."""


def write_in_transaction(host: Host, subject: Subject, value: int, *, key: int = KEY) -> list[int]:
    outcomes: list[int] = []

    def ended(error: int) -> Effects:
        outcomes.append(error)
        return []

    partition = subject.partition(key)
    host.led[partition].log.permit_transaction(PRODUCER.producer_id, PRODUCER.epoch)
    host.shards.carry_out([Append(partition, (subject.record(key, value),), ended, PRODUCER)])
    return outcomes


def end(host: Host, subject: Subject, *, committed: bool = True) -> list[int]:
    outcomes: list[int] = []
    host.shards.shards[subject.partition(KEY)].write_marker(
        PRODUCER, EndTransactionMarker(committed, 0), outcomes.append, transaction_version=1
    )
    return outcomes


@WITH_TRANSACTIONS
@pytest.mark.parametrize("step", STEPS)
def test_what_is_written_in_a_transaction_counts_for_nothing_before_its_marker(
    host: Host, subject: Subject, step: Step
) -> None:
    write(host, subject, OLD)
    host.settle()
    new = write_in_transaction(host, subject, NEW)
    step(host)
    assert state(host, subject) == {KEY: OLD}
    if step is applied:
        assert new == [0]
    host.kill_coordinator()
    host.settle()
    assert state(host, subject) == {KEY: OLD}


@WITH_TRANSACTIONS
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("step", STEPS)
def test_next_life_of_the_coordinator_has_a_transaction_as_its_marker_in_the_log_says(
    host: Host, subject: Subject, step: Step, committed: bool
) -> None:
    write(host, subject, OLD)
    write_in_transaction(host, subject, NEW)
    host.settle()
    done = end(host, subject, committed=committed)
    step(host)
    host.kill_coordinator()
    host.settle()
    partition = subject.partition(KEY)
    is_there = step in STEPS[3:]
    assert list(ends(subject, host, partition)) == ([(PRODUCER.producer_id, committed)] if is_there else [])
    assert state(host, subject) == {KEY: NEW if is_there and committed else OLD}
    assert state(host, subject) == logged(subject, host, partition)
    if step is applied:
        assert done == [0]


@WITH_TRANSACTIONS
@pytest.mark.parametrize("step", STEPS)
def test_death_of_the_owner_leaves_a_markers_outcome_open_and_it_may_be_written_again(
    host: Host, subject: Subject, step: Step
) -> None:
    write_in_transaction(host, subject, NEW)
    host.settle()
    done = end(host, subject)
    step(host)
    host.kill_worker()
    assert done == ([0] if step is applied else [UNKNOWN_OUTCOME])
    assert end(host, subject) == [ErrorCode.NOT_COORDINATOR]
    host.settle()
    again = end(host, subject)
    host.settle()
    assert again == [0]
    assert state(host, subject) == {KEY: NEW}


@WITH_TRANSACTIONS
def test_a_marker_keeps_its_place_between_the_writes_around_it(host: Host, subject: Subject) -> None:
    """None of the later ones may go before it, and none of the earlier ones behind it."""
    first = write(host, subject, 1)
    sent(host)
    outcomes = [write_in_transaction(host, subject, 2), end(host, subject), write(host, subject, 3)]
    host.settle()
    assert [first, *outcomes] == [[0]] * 4
    partition = subject.partition(KEY)
    assert [value for _, value in written(subject, host, partition)] == [1, 2, 3]
    assert list(ends(subject, host, partition)) == [(PRODUCER.producer_id, True)]
    assert state(host, subject) == {KEY: 3}


@WITH_TRANSACTIONS
def test_refused_marker_is_told_and_nothing_is_forgotten_or_read_again(host: Host, subject: Subject) -> None:
    write(host, subject, OLD)
    write_in_transaction(host, subject, NEW)
    host.settle()
    done = end(host, subject)
    taken(host)
    host.append_next(error=DISK)
    host.answer()
    host.turn()
    assert done == [DISK]
    assert host.is_active(subject.partition(KEY))
    assert end(host, subject) == []
    host.settle()
    assert state(host, subject) == {KEY: NEW}


@WITH_TRANSACTIONS
def test_the_log_end_is_known_exactly_behind_transactions(host: Host, subject: Subject) -> None:
    """An append that fails tells nothing of the log but by its end: off by one, every failure would mean a load."""
    write_in_transaction(host, subject, OLD)
    end(host, subject)
    write_in_transaction(host, subject, NEW)
    end(host, subject, committed=False)
    host.settle()
    failed = write(host, subject, 9)
    taken(host)
    host.append_next(error=DISK)
    host.answer()
    host.turn()
    assert failed == [DISK]
    assert host.is_active(subject.partition(KEY))
    assert state(host, subject) == {KEY: OLD}


@WITH_TRANSACTIONS
def test_a_write_of_a_transaction_without_a_permit_is_refused_and_writes_nothing(
    host: Host, subject: Subject
) -> None:
    outcomes: list[int] = []

    def ended(error: int) -> Effects:
        outcomes.append(error)
        return []

    partition = subject.partition(KEY)
    host.shards.carry_out([Append(partition, (subject.record(KEY, NEW),), ended, PRODUCER)])
    host.settle()
    assert outcomes == [ErrorCode.INVALID_TXN_STATE]
    assert list(written(subject, host, partition)) == []
