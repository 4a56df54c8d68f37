"""Produce of transactional producers: what the coordinator is asked, and that the order of a session stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.channels.request_channel import FLAGS, ProduceFlag
from appliance.cluster import TRANSACTION_STATE
from appliance.protocol.errors import ErrorCode
from appliance.requests.log_handlers.session_transaction import ADDED_MAX, PROVED_MAX, SessionTransaction
from appliance.requests.log_handlers.transactional_produce import ROUNDS_MAX
from appliance.requests.transaction_questions import DEADLINE_MS, RETRIES_MS, RETRY_MS
from tests.requests.serving import TOPIC
from tests.requests.transacting import (
    EPOCH,
    ID,
    INVALID_TXN_STATE,
    PRODUCER,
    Transacting,
    batch,
    produce,
    transacting,
)

V1 = [3, 8, 9, 11]
V2 = [12, 13]
NOT_ENOUGH_REPLICAS = int(ErrorCode.NOT_ENOUGH_REPLICAS)
CONCURRENT = int(ErrorCode.CONCURRENT_TRANSACTIONS)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Transacting]:
    with transacting(tmp_path) as made:
        yield made


# ── which batches are asked for ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", V1)
def test_batch_of_the_older_protocol_is_placed_without_a_question(house: Transacting, version: int) -> None:
    pending = house.produce(house.session(), produce(version, {0: batch(b"a"), 1: batch(b"b")}))
    placed = house.worker_got()
    assert [(each.partition, each.value) for each in placed] == [(0, b"a"), (1, b"b")]
    assert house.questions() == []
    for each in placed:
        house.worker_answers(each)
    assert house.errors(pending) == [0, 0]
    assert house.holds_nothing


@pytest.mark.parametrize("version", V2)
def test_batch_of_the_newer_protocol_is_placed_when_its_partition_was_added(
    house: Transacting, version: int
) -> None:
    pending = house.produce(house.session(), produce(version, {0: batch(b"a"), 2: batch(b"b")}))
    assert house.worker_got() == []
    (question,) = house.questions()
    assert question.producer == (ID, PRODUCER, EPOCH)
    assert question.partitions == [(TOPIC, 0), (TOPIC, 2)]
    assert not question.verifies
    house.coordinator_says(question)
    placed = house.worker_got()
    assert [(each.partition, each.value) for each in placed] == [(0, b"a"), (2, b"b")]
    for each in placed:
        house.worker_answers(each)
    assert house.errors(pending) == [0, 0]
    assert house.holds_nothing


@pytest.mark.parametrize("version", V2)
def test_partition_is_added_once_for_a_producer_and_epoch(house: Transacting, version: int) -> None:
    session = house.session()
    house.produce(session, produce(version, {0: batch(b"a")}))
    (question,) = house.questions()
    house.coordinator_says(question)
    house.produce(session, produce(version, {0: batch(b"b", sequence=1)}))
    assert [each.value for each in house.worker_got()] == [b"a", b"b"]
    house.produce(session, produce(version, {0: batch(b"c", epoch=EPOCH + 1)}))
    (question,) = house.questions()
    assert question.producer == (ID, PRODUCER, EPOCH + 1)
    house.coordinator_says(question)
    house.produce(
        session, produce(version, {0: batch(b"d", epoch=EPOCH + 1), 1: batch(b"e", epoch=EPOCH + 1)})
    )
    (question,) = house.questions()
    assert question.partitions == [(TOPIC, 1)]


@pytest.mark.parametrize("version", [*V1, *V2])
def test_batch_that_is_not_transactional_is_placed_at_once(house: Transacting, version: int) -> None:
    house.produce(house.session(), produce(version, {0: batch(b"a", is_transactional=False)}))
    assert [each.value for each in house.worker_got()] == [b"a"]
    assert house.questions() == []


@pytest.mark.parametrize("version", [*V1, *V2])
@pytest.mark.parametrize("other", [(PRODUCER + 1, EPOCH), (PRODUCER, EPOCH + 1)])
def test_two_producers_in_one_request_are_refused_and_nothing_is_written(
    house: Transacting, version: int, other: tuple[int, int]
) -> None:
    producer, epoch = other
    batches = {
        0: batch(b"a"),
        1: batch(b"b", producer=producer, epoch=epoch),
        2: batch(b"c", is_transactional=False),
    }
    pending = house.produce(house.session(), produce(version, batches))
    assert house.errors(pending) == [int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)] * 3
    assert house.worker_got() == []
    assert house.questions() == []
    assert house.holds_nothing


def test_partition_that_cannot_be_placed_is_not_added(house: Transacting) -> None:
    pending = house.produce(house.session(), produce(12, {9: batch(b"a")}))
    assert house.errors(pending) == [int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert house.questions() == []


@pytest.mark.parametrize("version", [*V1, *V2])
def test_transactional_batch_without_a_transactional_id_is_not_authorized(
    house: Transacting, version: int
) -> None:
    session = house.session()
    house.produce(session, produce(version, {0: batch(b"a")}, transactional_id=None))
    # Also not behind one that does name an id.
    house.produce(session, produce(8, {0: batch(b"b")}))
    house.produce(session, produce(version, {0: batch(b"c")}, transactional_id=None))
    named = {each.value: each.operation[FLAGS] & ProduceFlag.NAMED for each in house.worker_got()}
    assert named == {b"a": 0, b"b": ProduceFlag.NAMED, b"c": 0}, "the leader refuses what is not named"
    unrouted = house.produce(session, produce(version, {9: batch(b"d")}, transactional_id=None))
    assert house.errors(unrouted) == [int(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)]
    assert house.questions() == []


@pytest.mark.parametrize("version", V1)
def test_no_permit_counts_until_a_coordinator_has_said_whose_the_producer_id_is(
    house: Transacting, version: int
) -> None:
    session = house.session()

    def is_unproved() -> bool:
        (placed,) = house.worker_got()
        flags = placed.operation[FLAGS]
        assert flags & ProduceFlag.NAMED
        house.worker_answers(placed)
        return bool(flags & ProduceFlag.UNPROVED)

    house.produce(session, produce(version, {0: batch(b"a")}))
    (placed,) = house.worker_got()
    assert placed.operation[FLAGS] & ProduceFlag.UNPROVED
    house.worker_refuses(placed)
    (question,) = house.questions()
    house.coordinator_says(question)
    assert not is_unproved()
    house.produce(session, produce(version, {1: batch(b"b", epoch=EPOCH + 1)}))
    assert not is_unproved()
    house.produce(session, produce(version, {1: batch(b"c", producer=PRODUCER + 1)}))
    assert is_unproved()
    house.produce(session, produce(version, {1: batch(b"d")}, transactional_id="another's"))
    assert is_unproved()
    house.produce(house.session(), produce(version, {1: batch(b"e")}))
    assert is_unproved(), "another session has its own proof"


def test_what_the_coordinator_refuses_proves_nothing(house: Transacting) -> None:
    session = house.session()
    pending = house.produce(session, produce(8, {0: batch(b"a")}, transactional_id="another's"))
    house.worker_refuses(house.worker_got()[0])
    (question,) = house.questions()
    assert question.producer == ("another's", PRODUCER, EPOCH)
    house.coordinator_says(question, int(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    assert house.errors(pending) == [int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)]
    house.produce(session, produce(8, {0: batch(b"b")}, transactional_id="another's"))
    (placed,) = house.worker_got()
    assert placed.operation[FLAGS] & ProduceFlag.UNPROVED


def test_number_of_proved_producer_ids_is_bounded() -> None:
    transaction = SessionTransaction()
    for producer_id in range(3 * PROVED_MAX):
        transaction.prove(ID, producer_id)
        assert transaction.is_proved(ID, producer_id)
    assert sum(transaction.is_proved(ID, number) for number in range(3 * PROVED_MAX)) <= PROVED_MAX


@pytest.mark.parametrize(("version", "is_asked"), [(3, True), (11, True), (12, False)])
@pytest.mark.parametrize("answer", [0, int(ErrorCode.TRANSACTION_ABORTABLE)])
def test_transactional_batch_for_an_internal_topic_is_verified_before_it_is_refused(
    house: Transacting, version: int, answer: int, *, is_asked: bool
) -> None:
    session = house.session()
    pending = house.produce(session, produce(version, {0: batch(b"a")}, topic=TRANSACTION_STATE))
    if is_asked:
        (question,) = house.questions()
        assert question.verifies
        assert question.partitions == [(TRANSACTION_STATE, 0)]
        house.coordinator_says(question, answer)
    assert house.questions() == []
    assert house.worker_got() == []
    told = {3: int(ErrorCode.INVALID_TXN_STATE), 11: answer}[version] if is_asked and answer else 17
    assert house.errors(pending) == [told]
    assert house.holds_nothing


# ── a leader that knows nothing of the transaction ───────────────────────────────────────────────────────


@pytest.mark.parametrize(("version", "verifies"), [(3, True), (11, True), (12, False)])
def test_batch_without_a_permit_is_placed_again_when_the_coordinator_knows_its_transaction(
    house: Transacting, version: int, *, verifies: bool
) -> None:
    session = house.session()
    pending = house.produce(session, produce(version, {0: batch(b"a"), 1: batch(b"b")}))
    if not verifies:
        house.coordinator_says(house.questions()[0])
    first, second = house.worker_got()
    house.worker_answers(second)
    house.worker_refuses(first)
    (question,) = house.questions()
    assert question.verifies is verifies
    assert question.partitions == [(TOPIC, 0)]
    assert house.errors(pending) is None
    house.coordinator_says(question)
    (again,) = house.worker_got()
    assert (again.partition, again.value) == (0, b"a")
    house.worker_answers(again)
    assert house.errors(pending) == [0, 0]
    assert house.holds_nothing


def test_five_requests_in_flight_without_a_permit_are_placed_again_in_their_order(house: Transacting) -> None:
    session = house.session()
    pending = [
        house.produce(session, produce(9, {0: batch(bytes([n]), sequence=n)}, correlation_id=n))
        for n in range(5)
    ]
    placed = house.worker_got()
    # Their answers come in any order.
    for number in (1, 0, 4, 3):
        house.worker_refuses(placed[number])
    assert house.questions() == []  # one is still with the worker, and could meet a new permit
    house.worker_refuses(placed[2])
    late = house.produce(session, produce(9, {0: batch(b"late", sequence=5)}))
    (question,) = house.questions()
    assert question.partitions == [(TOPIC, 0)]
    assert house.worker_got() == []
    house.coordinator_says(question)
    again = house.worker_got()
    assert [each.value for each in again] == [bytes([n]) for n in range(5)] + [b"late"]
    for each in again:
        house.worker_answers(each)
    assert [house.errors(each) for each in (*pending, late)] == [[0]] * 6
    assert house.holds_nothing


def test_batch_that_is_refused_again_and_again_is_left_to_the_client(house: Transacting) -> None:
    pending = house.produce(house.session(), produce(9, {0: batch(b"a")}))
    for _ in range(ROUNDS_MAX):
        (placed,) = house.worker_got()
        house.worker_refuses(placed)
        (question,) = house.questions()
        house.coordinator_says(question)
    (placed,) = house.worker_got()
    house.worker_refuses(placed)
    assert house.questions() == []
    assert house.errors(pending) == [NOT_ENOUGH_REPLICAS]
    assert house.holds_nothing


# ── order ────────────────────────────────────────────────────────────────────────────────────────────────


def test_later_requests_of_the_session_wait_behind_an_addition_and_keep_their_order(
    house: Transacting,
) -> None:
    session = house.session()
    house.produce(session, produce(12, {0: batch(b"a")}))
    house.produce(session, produce(12, {0: batch(b"b", sequence=1)}))
    house.produce(session, produce(12, {1: batch(b"c")}))
    house.produce(session, produce(12, {0: batch(b"d", is_transactional=False)}, transactional_id=None))
    (question,) = house.questions()
    assert question.partitions == [(TOPIC, 0)]
    assert house.worker_got() == []
    house.coordinator_says(question)
    assert [each.value for each in house.worker_got()] == [b"a", b"b"]
    (question,) = house.questions()
    assert question.partitions == [(TOPIC, 1)]
    house.coordinator_says(question)
    assert [each.value for each in house.worker_got()] == [b"c", b"d"]


def test_another_session_does_not_wait(house: Transacting) -> None:
    house.produce(house.session(0), produce(12, {0: batch(b"a")}))
    house.produce(house.session(1), produce(9, {0: batch(b"b")}))
    assert [each.value for each in house.worker_got()] == [b"b"]


def test_refused_batch_goes_before_a_request_that_waits_for_its_addition(house: Transacting) -> None:
    session = house.session()
    house.produce(session, produce(12, {0: batch(b"a")}))
    house.coordinator_says(house.questions()[0])
    (placed,) = house.worker_got()
    house.produce(session, produce(12, {0: batch(b"b", sequence=1), 1: batch(b"c")}))
    (question,) = house.questions()
    assert question.partitions == [(TOPIC, 1)]
    house.worker_refuses(placed)
    house.coordinator_says(question)
    assert house.worker_got() == []
    (question,) = house.questions()
    assert question.partitions == [(TOPIC, 0)]
    house.coordinator_says(question)
    assert [each.value for each in house.worker_got()] == [b"a", b"b", b"c"]


def test_batch_behind_one_that_the_coordinator_could_not_prove_is_refused_like_it(house: Transacting) -> None:
    """Else the leader, which takes any first sequence number in versions below 12, would take the second alone."""
    session = house.session()
    first = house.produce(session, produce(9, {0: batch(b"a")}))
    second = house.produce(session, produce(9, {0: batch(b"b", sequence=1)}))
    for each in house.worker_got():
        house.worker_refuses(each)
    house.coordinator_says(house.questions()[0], int(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
    third = house.produce(session, produce(9, {0: batch(b"c", sequence=2)}))
    assert house.worker_got() == []
    assert [house.errors(each) for each in (first, second, third)] == [[NOT_ENOUGH_REPLICAS]] * 3
    house.produce(session, produce(9, {0: batch(b"a")}))
    assert [each.value for each in house.worker_got()] == [b"a"]


# ── what the coordinator says ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("said", "version", "told"),
    [
        (ErrorCode.INVALID_TXN_STATE, 9, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 10, ErrorCode.INVALID_TXN_STATE),
        (ErrorCode.TRANSACTION_ABORTABLE, 11, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.TRANSACTION_ABORTABLE, 12, ErrorCode.TRANSACTION_ABORTABLE),
        (ErrorCode.PRODUCER_FENCED, 9, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.PRODUCER_FENCED, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_EPOCH, 12, ErrorCode.INVALID_PRODUCER_EPOCH),
        (ErrorCode.INVALID_PRODUCER_ID_MAPPING, 9, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, 12, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NOT_COORDINATOR, 11, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.NETWORK_EXCEPTION, 13, ErrorCode.NOT_ENOUGH_REPLICAS),
        (ErrorCode.CONCURRENT_TRANSACTIONS, 9, ErrorCode.NOT_ENOUGH_REPLICAS),
        (
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            12,
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ),
    ],
)
def test_producer_hears_of_the_coordinators_word_as_kafka_tells_it(
    house: Transacting, said: ErrorCode, version: int, told: ErrorCode
) -> None:
    pending = house.produce(house.session(), produce(version, {0: batch(b"a"), 1: batch(b"b")}))
    if version < 12:
        first, second = house.worker_got()
        house.worker_answers(second)
        house.worker_refuses(first)
    (question,) = house.questions()
    house.coordinator_says(question, {0: int(said)})
    for each in house.worker_got():
        if each.value == b"b":
            house.worker_answers(each)
        else:
            assert each.operation[FLAGS] & ProduceFlag.UNPROVED
            house.worker_refuses(each)
    assert house.errors(pending) == [int(told), 0]
    assert house.questions() == []
    assert house.holds_nothing


def no_transaction_is_open(house: Transacting) -> None:
    """What the coordinator has refused is placed nevertheless, and its leader refuses it."""
    for each in house.worker_got():
        assert each.operation[FLAGS] & ProduceFlag.UNPROVED
        house.worker_refuses(each)


def test_batch_that_cannot_be_added_is_appended_where_the_transaction_is_open(house: Transacting) -> None:
    session = house.session()
    pending = house.produce(session, produce(12, {0: batch(b"a"), 1: batch(b"b")}))
    house.coordinator_says(house.questions()[0], int(ErrorCode.INVALID_PRODUCER_ID_MAPPING))
    first, second = house.worker_got()
    for each in (first, second):
        assert each.operation[FLAGS] & ProduceFlag.UNPROVED, "a permit does not count"
    house.worker_answers(first)
    house.worker_refuses(second)
    assert house.errors(pending) == [0, int(ErrorCode.INVALID_PRODUCER_ID_MAPPING)]
    assert house.questions() == []
    assert house.holds_nothing


def test_addition_that_meets_a_transition_is_asked_again_and_then_told(house: Transacting) -> None:
    pending = house.produce(house.session(), produce(12, {0: batch(b"a")}))
    (question,) = house.questions()
    for _ in range(RETRIES_MS // RETRY_MS):
        house.coordinator_says(question, CONCURRENT)
        assert house.errors(pending) is None
        house.wait_ms(RETRY_MS - 1)
        assert house.questions() == []
        house.wait_ms(1)
        (question,) = house.questions()
    house.coordinator_says(question, CONCURRENT)
    no_transaction_is_open(house)
    assert house.errors(pending) == [CONCURRENT]
    assert house.worker_got() == []
    assert house.holds_nothing


def test_addition_that_met_a_transition_is_made_when_that_is_over(house: Transacting) -> None:
    house.produce(house.session(), produce(12, {0: batch(b"a")}))
    house.coordinator_says(house.questions()[0], CONCURRENT)
    house.wait_ms(RETRY_MS)
    house.coordinator_says(house.questions()[0])
    assert [each.value for each in house.worker_got()] == [b"a"]


def test_coordinator_that_never_answers_is_given_up(house: Transacting) -> None:
    pending = house.produce(house.session(), produce(12, {0: batch(b"a")}))
    (question,) = house.questions()
    for _ in range(DEADLINE_MS // 1000):
        assert house.errors(pending) is None
        house.wait_ms(1000)
    no_transaction_is_open(house)
    assert house.errors(pending) == [NOT_ENOUGH_REPLICAS]
    house.coordinator_says(question)  # late: nobody waits for it
    assert house.worker_got() == []
    assert house.holds_nothing


# ── deaths ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", [9, 12])
@pytest.mark.parametrize("when", ["before", "asked"])
def test_death_of_the_coordinator_is_told_as_an_error_that_every_client_retries(
    house: Transacting, version: int, when: str
) -> None:
    if when == "before":
        house.coordinator_dies()
    pending = house.produce(house.session(), produce(version, {0: batch(b"a")}))
    for each in house.worker_got():
        house.worker_refuses(each)
    if when == "asked":
        assert len(house.questions()) == 1
        house.coordinator_dies()
        no_transaction_is_open(house)
    assert house.errors(pending) == [NOT_ENOUGH_REPLICAS]
    assert house.worker_got() == []
    assert house.holds_nothing


def test_death_of_the_coordinator_between_two_attempts_is_told(house: Transacting) -> None:
    pending = house.produce(house.session(), produce(12, {0: batch(b"a")}))
    house.coordinator_says(house.questions()[0], CONCURRENT)
    house.coordinator_dies()
    house.wait_ms(RETRY_MS)
    no_transaction_is_open(house)
    assert house.errors(pending) == [NOT_ENOUGH_REPLICAS]


def test_death_of_the_worker_while_the_coordinator_is_asked_writes_nothing(house: Transacting) -> None:
    pending = house.produce(house.session(), produce(9, {0: batch(b"a")}))
    house.worker_refuses(house.worker_got()[0])
    (question,) = house.questions()
    house.worker_dies()
    house.coordinator_says(question)
    # Nobody leads: the answer waits for news as any other (`leader_wait`).
    house.wait_ms(200)
    assert house.errors(pending) == [int(ErrorCode.NOT_LEADER_OR_FOLLOWER)]
    assert house.holds_nothing


def test_death_of_the_worker_that_has_the_other_half_lets_the_refused_half_go_on(house: Transacting) -> None:
    pending = house.produce(house.session(), produce(9, {0: batch(b"a"), 1: batch(b"b")}))
    first, _ = house.worker_got()
    house.worker_refuses(first)
    house.worker_dies()
    (question,) = house.questions()
    assert question.partitions == [(TOPIC, 0)]
    house.coordinator_says(question)
    assert house.errors(pending) == [
        int(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        int(ErrorCode.REQUEST_TIMED_OUT),
    ]
    assert house.holds_nothing


@pytest.mark.parametrize("version", [9, 12])
def test_session_that_leaves_while_the_coordinator_is_asked_leaves_nothing_behind(
    house: Transacting, version: int
) -> None:
    session = house.session()
    house.produce(session, produce(version, {0: batch(b"a")}))
    house.produce(session, produce(version, {0: batch(b"b", sequence=1)}))
    for each in house.worker_got():
        house.worker_refuses(each)
    (question,) = house.questions()
    session.closed, session.queue = True, None
    house.coordinators.leave(session)
    house.coordinator_says(question)
    assert house.worker_got() == []
    assert house.holds_nothing


def test_session_that_leaves_before_the_coordinator_has_begun_leaves_nothing_behind(
    house: Transacting,
) -> None:
    session = house.session()
    house.produce(session, produce(12, {0: batch(b"a")}))
    session.closed, session.queue = True, None
    house.coordinators.leave(session)
    (question,) = house.questions()  # what changes a transaction is served although its client is gone
    house.coordinator_says(question)
    assert house.worker_got() == []
    assert house.holds_nothing


# ── acks, and other keys ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("acks", [0, 1, -1])
@pytest.mark.parametrize("version", [9, 12])
def test_proof_is_asked_whatever_the_acks(house: Transacting, version: int, acks: int) -> None:
    session = house.session()
    pending = house.produce(session, produce(version, {0: batch(b"a")}, acks=acks))
    for each in house.worker_got():
        house.worker_refuses(each)
    house.coordinator_says(house.questions()[0], INVALID_TXN_STATE)
    no_transaction_is_open(house)
    if acks:
        assert house.errors(pending) == [INVALID_TXN_STATE]
        assert house.faults == []
    else:
        assert house.answers[pending] == b""
        assert len(house.faults) == 1
    assert house.holds_nothing


def test_invalid_acks_are_refused_without_an_append(house: Transacting) -> None:
    pending = house.produce(house.session(), produce(12, {0: batch(b"a")}, acks=5))
    for question in house.questions():
        house.coordinator_says(question)
    assert house.errors(pending) == [int(ErrorCode.INVALID_REQUIRED_ACKS)]
    assert house.worker_got() == []


def test_request_of_another_api_waits_behind_a_held_produce(house: Transacting) -> None:
    session = house.session()
    house.produce(session, produce(12, {0: batch(b"a")}))
    assert session.must_wait(is_produce=False)
    assert not session.must_wait(is_produce=True)


# ── the memory of a session ──────────────────────────────────────────────────────────────────────────────


def test_memory_of_added_partitions_is_bounded_and_keeps_the_newest() -> None:
    memory = SessionTransaction()
    for number in range(3 * ADDED_MAX):
        memory.add(1, 1, [("t", number)])
        assert memory.has_added(1, 1, "t", number)
        assert len(memory) <= ADDED_MAX
    many = [("u", number) for number in range(2 * ADDED_MAX)]
    memory.add(1, 1, list(many))
    assert all(memory.has_added(1, 1, *each) for each in many)
    memory.add(1, 2, [("t", 0)])
    assert (len(memory), memory.has_added(1, 1, "t", 0)) == (1, False)


def test_session_remembers_from_its_first_transactional_id_on(house: Transacting) -> None:
    session = house.session()
    assert session.transaction is None
    house.produce(session, produce(12, {0: batch(b"a", is_transactional=False)}))
    assert session.transaction is not None


def test_session_without_a_transactional_id_remembers_nothing(house: Transacting) -> None:
    session = house.session()
    house.produce(session, produce(12, {0: batch(b"a", is_transactional=False)}, transactional_id=None))
    assert session.transaction is None
