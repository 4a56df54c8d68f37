"""What the sender makes of answers, silence and broken connections."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.protocol.api_versions import ApiKey
from appliance.protocol.errors import ErrorCode
from appliance.protocol.node_endpoint import CurrentLeader
from appliance_client.errors import (
    AbortableError,
    BrokerError,
    ClosedError,
    DeliveryTimeoutError,
    FatalTransactionError,
    ProducerFencedError,
    TransactionAbortedError,
)
from appliance_client.options import ProducerOptions, options_of
from appliance_client.transactions import State
from tests.native.scripted import ScriptedCluster, refused, silence


def cluster(**options: Any) -> ScriptedCluster:
    """A started cluster whose topic and producer id are known."""
    made = ScriptedCluster(options_of(ProducerOptions, None, {"linger_ms": 0, **options}))
    made.core.metadata.want("topic")
    made.pass_s(0.5)
    return made


def warm(**options: Any) -> ScriptedCluster:
    """The same, with one record acknowledged."""
    made = cluster(**options)
    first = made.send(b"first")
    made.run(made.sender.flush(), 1.0)
    assert first.done()
    made.produced.clear()
    made.asked.clear()
    return made


def move_leader(made: ScriptedCluster) -> None:
    """Let broker 2 lead, as another broker's answer would say: the first one owes an answer, and gives no other."""
    made.leader, made.leader_epoch = 2, 4
    made.core.metadata.hint("topic", 0, CurrentLeader(2, 4), ())


def sequences(made: ScriptedCluster) -> list[tuple[int, int]]:
    return [(each.header.producer_id, each.header.base_sequence) for each in made.produced]


def test_records_wait_for_linger_ms_and_leave_in_one_batch() -> None:
    made = warm(linger_ms=50)
    made.send(b"a")
    made.pass_s(0.02)
    made.send(b"b")
    assert not made.produced
    made.pass_s(0.04)
    assert [each.values for each in made.produced] == [[b"a", b"b"]]


def test_a_full_batch_leaves_at_once() -> None:
    made = warm(linger_ms=60_000, batch_size=200)
    for _ in range(3):
        made.send(b"x" * 90)
    made.pass_s(0)
    assert [len(each.values) for each in made.produced] == [1, 1]


def test_a_batch_that_was_lost_is_sent_again_with_its_sequence() -> None:
    made = warm()
    made.answers.append(silence)
    sent = made.send(b"once")
    made.pass_s(0.1)
    made.lose()
    made.pass_s(2.0)
    assert sent.done()
    assert sent.exception() is None
    assert len({*sequences(made)}) == 1
    assert [each.values for each in made.produced] == [[b"once"], [b"once"]]


def test_batches_behind_a_refused_one_follow_it_in_order() -> None:
    made = warm()
    made.answers += [
        refused(ErrorCode.NOT_ENOUGH_REPLICAS),
        refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ]
    first = made.send(b"1")
    made.core.run(made.now_s)  # leaves before the second is appended
    second = made.send(b"2")
    made.pass_s(3.0)
    assert first.exception() is None
    assert second.exception() is None
    assert sequences(made)[-2:] == sorted(sequences(made)[-2:])
    assert len({producer_id for producer_id, _ in sequences(made)}) == 1


def test_no_batch_goes_so_far_ahead_of_an_unanswered_one_that_the_broker_forgets_it() -> None:
    """The old leader has written a batch and does not answer; the new one remembers the last five batches only.

    Were a sixth one written, the first would be refused as out of order for ever.
    """
    made = warm()
    made.answers.append(silence)
    stalled = made.send(b"stalled")
    made.pass_s(0.1)
    move_leader(made)
    later = []
    for number in range(8):
        later.append(made.send(b"%d" % number))
        made.pass_s(0.05)
    assert [each.values for each in made.produced] == [[b"stalled"], [b"0"], [b"1"], [b"2"], [b"3"]]
    assert [each.done() for each in later[:4]] == [True] * 4
    made.lose()
    made.pass_s(2.0)
    assert made.produced[5].values == [b"stalled"]
    assert made.produced[5].header.base_sequence == made.produced[0].header.base_sequence
    assert stalled.exception() is None
    assert all(each.done() and each.exception() is None for each in later)
    assert [value for each in made.produced[6:] for value in each.values] == [b"4", b"5", b"6", b"7"]


def test_the_halves_of_a_batch_count_as_two_for_what_the_broker_remembers() -> None:
    made = warm(linger_ms=10)
    made.answers += [refused(ErrorCode.MESSAGE_TOO_LARGE), silence, silence]
    halves = [made.send(b"%d" % number) for number in range(2)]
    made.pass_s(0.1)
    move_leader(made)
    later = []
    for _ in range(6):
        later.append(made.send(b"later"))
        made.pass_s(0.1)
    assert [each.values for each in made.produced[1:]] == [[b"0"], [b"1"], [b"later"], [b"later"], [b"later"]]
    made.lose()
    made.pass_s(2.0)
    assert all(each.done() and each.exception() is None for each in (*halves, *later))


def test_a_lost_sequence_goes_on_with_a_new_id_from_zero() -> None:
    made = warm()
    made.answers.append(refused(ErrorCode.UNKNOWN_PRODUCER_ID))
    sent = made.send(b"x")
    made.pass_s(3.0)
    assert sent.exception() is None
    (old, _), (new, sequence) = sequences(made)
    assert new != old
    assert sequence == 0


def test_a_duplicate_is_an_acknowledgement() -> None:
    made = warm()
    made.answers.append(refused(ErrorCode.DUPLICATE_SEQUENCE_NUMBER, base_offset=42))
    sent = made.send(b"x")
    made.pass_s(0.5)
    assert sent.get(0).offset == 42
    assert len(made.produced) == 1


def test_a_batch_that_is_too_large_is_halved_and_keeps_its_sequences() -> None:
    made = warm(linger_ms=10)
    made.answers.append(refused(ErrorCode.MESSAGE_TOO_LARGE))
    futures = [made.send(b"%d" % number) for number in range(5)]
    made.pass_s(2.0)
    assert [each.values for each in made.produced[1:]] == [[b"0", b"1"], [b"2", b"3", b"4"]]
    base = made.produced[0].header.base_sequence
    assert [each.header.base_sequence for each in made.produced[1:]] == [base, base + 2]
    assert [each.get(0).offset for each in futures] == [100, 101, 100, 101, 102]


def test_one_record_that_is_too_large_fails_and_the_next_one_is_written() -> None:
    made = warm()
    made.answers.append(refused(ErrorCode.MESSAGE_TOO_LARGE))
    large = made.send(b"large")
    made.pass_s(0.5)
    after = made.send(b"after")
    made.pass_s(3.0)
    assert isinstance(large.exception(), BrokerError)
    assert large.exception().code == ErrorCode.MESSAGE_TOO_LARGE
    assert after.exception() is None
    assert after.done()
    assert made.produced[-1].header.base_sequence == 0, "the sequence that was lost is not waited for"


def test_what_is_in_flight_behind_a_record_that_is_too_large_is_written_under_a_new_id() -> None:
    """The broker waits for the sequence of the refused record, which will not come."""
    made = warm()
    out_of_order = refused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
    made.answers += [refused(ErrorCode.MESSAGE_TOO_LARGE), out_of_order, out_of_order]
    large = made.send(b"large")
    made.core.run(made.now_s)  # each leaves before the next one is appended
    behind = []
    for value in (b"1", b"2"):
        behind.append(made.send(value))
        made.core.run(made.now_s)
    made.pass_s(3.0)
    assert isinstance(large.exception(), BrokerError)
    assert [each.done() and each.exception() for each in behind] == [None, None]
    old = made.produced[0].header.producer_id
    assert [(each.values, each.header.producer_id == old) for each in made.produced[3:]] == [
        ([b"1"], False),
        ([b"2"], False),
    ]
    assert [sequence for _, sequence in sequences(made)[3:]] == [0, 1]


def test_a_hint_of_the_new_leader_is_followed_without_asking_for_metadata() -> None:
    made = warm()
    made.answers.append(refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=CurrentLeader(2, 9)))
    sent = made.send(b"x")
    made.pass_s(1.0)
    assert sent.exception() is None
    assert [each.node for each in made.produced] == [1, 2]
    assert ApiKey.METADATA not in [api for api, _, _ in made.asked]


def test_an_old_leader_epoch_is_no_hint() -> None:
    made = warm()
    made.answers.append(refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, current_leader=CurrentLeader(2, 1)))
    made.send(b"x")
    made.pass_s(1.0)
    assert [each.node for each in made.produced] == [1, 1]
    assert ApiKey.METADATA in [api for api, _, _ in made.asked]


def test_a_record_fails_after_delivery_timeout_ms_whatever_the_broker_does() -> None:
    made = warm(delivery_timeout_ms=5_000)
    made.is_down = True
    made.lose()
    sent = made.send(b"x")
    made.pass_s(4.9)
    assert not sent.done()
    made.pass_s(0.2)
    assert isinstance(sent.exception(), DeliveryTimeoutError)
    assert made.accumulator.used_bytes == 0


def test_an_answer_that_does_not_come_breaks_the_connection_after_request_timeout_ms() -> None:
    made = warm(request_timeout_ms=2_000)
    made.answers.append(silence)
    sent = made.send(b"x")
    made.pass_s(1.9)
    assert len(made.produced) == 1
    made.pass_s(3.0)
    assert sent.exception() is None
    assert len(made.produced) == 2


def test_retries_bound_the_attempts() -> None:
    made = warm(retries=2)
    made.answers += [refused(ErrorCode.NOT_ENOUGH_REPLICAS)] * 5
    sent = made.send(b"x")
    made.pass_s(10.0)
    assert sent.exception() is not None
    assert sent.exception().code == ErrorCode.NOT_ENOUGH_REPLICAS


def test_without_acks_a_record_is_done_when_it_is_written_to_the_socket() -> None:
    made = cluster(acks=0)
    sent = made.send(b"x")
    made.pass_s(0.1)
    assert sent.get(0).offset == -1


def test_reconnects_back_off() -> None:
    made = warm(reconnect_backoff_ms=100, reconnect_backoff_max_ms=1_000)
    made.is_down = True
    made.lose()
    made.opened_at_s.clear()
    made.send(b"x")
    made.pass_s(10.0)
    to_each = len(made.opened_at_s) / 4  # two bootstrap ids less: the brokers and one bootstrap server
    assert 2 <= to_each <= 20


def test_flush_waits_for_what_was_appended_before_it() -> None:
    made = warm(linger_ms=60_000)
    sent = made.send(b"x")
    made.pass_s(1.0)
    assert not sent.done()
    made.run(made.sender.flush(), 1.0)
    assert sent.exception() is None
    assert sent.done()


# ── transactions ─────────────────────────────────────────────────────────────────────────────────────────


def transactional(level: int, **options: Any) -> ScriptedCluster:
    made = ScriptedCluster(
        options_of(ProducerOptions, None, {"linger_ms": 0, "transactional_id": "id", **options})
    )
    made.features = {"transaction.version": level}
    made.core.metadata.want("topic")
    made.run(made.sender.transactions.init())
    made.asked.clear()
    return made


def asked(made: ScriptedCluster) -> list[tuple[str, int]]:
    talk = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.PRODUCE, ApiKey.END_TXN, ApiKey.INIT_PRODUCER_ID)
    return [(api.title, version) for api, version, _ in made.asked if api in talk]


def test_version_1_adds_partitions_before_it_writes() -> None:
    made = transactional(1)
    made.sender.transactions.begin()
    sent = made.send(b"x")
    made.run(made.sender.transactions.commit())
    assert sent.exception() is None
    assert asked(made) == [("AddPartitionsToTxn", 3), ("Produce", 11), ("EndTxn", 4)]


def test_version_2_writes_at_once_and_takes_the_next_epoch_from_the_end() -> None:
    made = transactional(2)
    before = made.sender.producer_epoch
    made.sender.transactions.begin()
    made.send(b"x")
    made.run(made.sender.transactions.commit())
    assert asked(made) == [("Produce", 13), ("EndTxn", 5)]
    assert made.sender.producer_epoch == before + 1


@pytest.mark.parametrize("level", [1, 2])
def test_an_empty_transaction_asks_no_broker(level: int) -> None:
    made = transactional(level)
    made.sender.transactions.begin()
    made.run(made.sender.transactions.commit())
    assert asked(made) == []
    assert made.sender.transactions.state is State.READY


@pytest.mark.parametrize("level", [1, 2])
def test_a_refused_record_can_only_be_aborted_and_then_the_producer_goes_on(level: int) -> None:
    made = transactional(level)
    transactions = made.sender.transactions
    transactions.begin()
    made.answers.append(refused(ErrorCode.MESSAGE_TOO_LARGE))
    made.send(b"large")
    with pytest.raises(AbortableError):
        made.run(transactions.commit())
    made.run(transactions.abort())
    transactions.begin()
    made.produced.clear()
    sent = made.send(b"small")
    made.run(transactions.commit())
    assert sent.exception() is None
    assert made.produced[-1].header.base_sequence == 0, (
        "the epoch was raised, and with it sequences begin anew"
    )


def test_a_fenced_producer_can_do_nothing_more() -> None:
    made = transactional(1)
    transactions = made.sender.transactions
    transactions.begin()
    made.answers.append(refused(ErrorCode.PRODUCER_FENCED))
    made.send(b"x")
    with pytest.raises(ProducerFencedError):
        made.run(transactions.commit())
    with pytest.raises(FatalTransactionError):
        made.run(transactions.abort())


def test_records_that_were_not_sent_are_dropped_by_an_abort() -> None:
    made = transactional(2, linger_ms=60_000)
    transactions = made.sender.transactions
    transactions.begin()
    sent = made.send(b"x")
    made.run(transactions.abort())
    assert isinstance(sent.exception(), TransactionAbortedError)
    assert not made.produced


def test_nothing_follows_the_first_batch_of_a_producer_before_it_is_acknowledged() -> None:
    made = cluster(batch_size=100)
    made.answers.append(refused(ErrorCode.NOT_LEADER_OR_FOLLOWER))
    for number in range(4):
        made.send(b"%d" % number * 60)
    made.run(made.sender.flush(), 5.0)
    assert [each.header.base_sequence for each in made.produced[:3]] == [0, 0, 1]
    assert [each.header.base_sequence for each in made.produced] == [0, 0, 1, 2, 3]


def test_a_record_that_is_sent_after_others_were_dropped_is_not_dropped_with_them() -> None:
    """An abort drops batches that were still being filled; the next record must not be added to one of them."""
    made = cluster(linger_ms=1_000)
    dropped = made.send(b"dropped")
    made.sender.fail_all(ClosedError("aborted"), unsent_only=True)
    kept = made.send(b"kept")
    made.pass_s(5)
    assert isinstance(dropped.exception(), ClosedError)
    assert kept.done()
    assert kept.exception() is None
    assert [value for produced in made.produced for value in produced.values] == [b"kept"]
