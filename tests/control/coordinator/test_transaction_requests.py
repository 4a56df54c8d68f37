"""Requests of transactions, from a decoded request to the answer, over real rings and a real log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.cluster import CONSUMER_OFFSETS, DELAYED_TRANSACTIONS, TRANSACTION_STATE, TopicPartition
from appliance.control.coordinator.transaction.transaction import Transaction, ended, with_partitions
from appliance.control.coordinator.transaction.transaction_state import TransactionState
from appliance.log.producer_state import AppendOrigin
from appliance.protocol.api_versions import ApiKey
from appliance.protocol.apis.add_offsets_to_txn import AddOffsetsToTxnRequest
from appliance.protocol.apis.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from appliance.protocol.apis.describe_transactions import DescribeTransactionsRequest
from appliance.protocol.apis.end_txn import EndTxnRequest
from appliance.protocol.apis.init_producer_id import InitProducerIdRequest
from appliance.protocol.apis.list_transactions import ListTransactionsRequest
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import TRANSACTIONAL
from appliance.protocol.records.record import Record, encode_batch
from tests.control.coordinator.transaction_host import DATA, TICK_MS, TransactionHost

INIT, ADD, END = ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN
E = ErrorCode


@pytest.fixture
def host(tmp_path: Path) -> Iterator[TransactionHost]:
    made = TransactionHost(tmp_path)
    made.settle()
    yield made
    made.close()


def producer(host: TransactionHost, name: str = "t") -> tuple[int, int]:
    response = host.answer_to(INIT, 5, InitProducerIdRequest(name, 60_000))
    assert response.error_code == 0
    return response.producer_id, response.producer_epoch


def batched(
    of: tuple[int, int], *partitions: int, name: str = "t", topic: str = DATA, verify: bool = False
) -> AddPartitionsToTxnRequest:
    topics = (AddPartitionsToTxnTopic(topic, partitions),)
    return AddPartitionsToTxnRequest((AddPartitionsToTxnTransaction(name, *of, verify, topics),))


def single(
    of: tuple[int, int], *partitions: int, name: str = "t", topic: str = DATA
) -> AddPartitionsToTxnRequest:
    return AddPartitionsToTxnRequest((), name, *of, (AddPartitionsToTxnTopic(topic, partitions),))


def errors(response: Any) -> list[int]:
    topics = list(response.results_by_topic)
    for result in response.results_by_transaction:
        topics += result.topic_results
    return [each.partition_error_code for topic in topics for each in topic.results_by_partition]


def add(host: TransactionHost, of: tuple[int, int], *partitions: int, version: int = 5) -> list[int]:
    request = batched(of, *partitions) if version >= 4 else single(of, *partitions)
    return errors(host.answer_to(ADD, version, request))


def write(host: TransactionHost, of: tuple[int, int], partition: int) -> int:
    """The outcome of a batch of the producer's transaction."""
    batch = encode_batch(
        [Record(b"v")],
        attributes=TRANSACTIONAL,
        producer_id=of[0],
        producer_epoch=of[1],
        base_sequence=0,
    )
    outcomes: list[int] = []
    place = host.data_place(partition)
    assert host.access.append(place, batch, outcomes.append, origin=AppendOrigin.CLIENT)
    host.round()
    (outcome,) = outcomes
    return outcome


def test_offsets_may_be_added_before_anybody_has_committed_one(host: TransactionHost) -> None:
    """A client of version 1 asks for the group's coordinator, which creates the topic, only afterwards."""
    request = AddOffsetsToTxnRequest("t", *producer(host), "g")
    assert host.answer_to(ApiKey.ADD_OFFSETS_TO_TXN, 3, request).error_code == E.NONE


# ── what versions say ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", range(6))
def test_fenced_producer_is_told_in_the_words_of_its_version(host: TransactionHost, version: int) -> None:
    old = producer(host)
    producer(host)
    fenced = E.PRODUCER_FENCED if version >= 2 else E.INVALID_PRODUCER_EPOCH
    assert add(host, old, 0, version=version) == [fenced]
    assert host.answer_to(END, version, EndTxnRequest("t", *old, True)).error_code == fenced
    if version <= 4:
        request = AddOffsetsToTxnRequest("t", *old, "g")
        assert host.answer_to(ApiKey.ADD_OFFSETS_TO_TXN, version, request).error_code == fenced
    if version >= 3:
        stale = InitProducerIdRequest("t", 60_000, old[0] + 1, 0)
        told = host.answer_to(INIT, version, stale).error_code
        assert told == (E.PRODUCER_FENCED if version >= 4 else E.INVALID_PRODUCER_EPOCH)


@pytest.mark.parametrize(("version", "told"), [(4, E.INVALID_TXN_STATE), (5, E.TRANSACTION_ABORTABLE)])
def test_partition_outside_of_the_transaction_is_not_verified(
    host: TransactionHost, version: int, told: ErrorCode
) -> None:
    of = producer(host)
    assert add(host, of, 0) == [0]
    assert errors(host.answer_to(ADD, version, batched(of, 0, 1, verify=True))) == [0, told]


@pytest.mark.parametrize("version", range(6))
def test_a_partition_that_is_not_there_leaves_the_others_alone(host: TransactionHost, version: int) -> None:
    of = producer(host)
    assert add(host, of, 0, 7, version=version) == [E.OPERATION_NOT_ATTEMPTED, E.UNKNOWN_TOPIC_OR_PARTITION]
    current = host.machines.transactions.get("t")
    assert current is not None
    assert current.state is TransactionState.EMPTY


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (InitProducerIdRequest("", 60_000), E.INVALID_REQUEST),
        (InitProducerIdRequest("t", 0), E.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("t", 900_001), E.INVALID_TRANSACTION_TIMEOUT),
        (InitProducerIdRequest("t", 60_000, 7, -1), E.INVALID_REQUEST),
        (InitProducerIdRequest("t", 60_000, -1, 7), E.INVALID_REQUEST),
    ],
)
def test_a_request_that_is_wrong_by_itself_is_refused_wherever_its_id_belongs(
    host: TransactionHost, request_: InitProducerIdRequest, error: ErrorCode
) -> None:
    host.kill_worker()
    number = host.ask(INIT, 4, request_)
    assert host.answered.answers[number].error_code == error


def test_requests_while_the_log_is_away_are_worth_another_try(host: TransactionHost) -> None:
    of = producer(host)
    host.kill_worker()
    told = [
        host.answered.answers[host.ask(INIT, 4, InitProducerIdRequest("t", 60_000))].error_code,
        host.answered.answers[host.ask(END, 5, EndTxnRequest("t", *of, True))].error_code,
        *errors(host.answered.answers[host.ask(ADD, 5, batched(of, 0))]),
    ]
    assert told == [E.COORDINATOR_NOT_AVAILABLE] * 3


def test_a_coordinator_that_knows_no_topic_yet_says_nothing_of_partitions(host: TransactionHost) -> None:
    """Its client would take UNKNOWN_TOPIC_OR_PARTITION for the truth."""
    of = producer(host)
    host.kill_coordinator()
    number = host.ask(ADD, 5, batched(of, 0))
    assert errors(host.answered.answers[number]) == [E.COORDINATOR_NOT_AVAILABLE]


@pytest.mark.parametrize("version", [0, 3, 5])
def test_nobody_coordinates_an_id_before_its_topic_exists(host: TransactionHost, version: int) -> None:
    """FindCoordinator makes the topic; a client that hears NOT_COORDINATOR asks it."""
    host.has_log = False
    host.kill_coordinator()
    host.publish_image()
    host.turn()

    def told(api: ApiKey, request: Any) -> Any:
        return host.answered.answers.pop(host.ask(api, version, request))

    assert told(INIT, InitProducerIdRequest("", 60_000)).error_code == E.INVALID_REQUEST
    assert told(INIT, InitProducerIdRequest("t", 0)).error_code == E.INVALID_TRANSACTION_TIMEOUT
    assert told(INIT, InitProducerIdRequest("t", 60_000)).error_code == E.NOT_COORDINATOR
    assert told(END, EndTxnRequest("t", 5, 1, True)).error_code == E.NOT_COORDINATOR
    make = single if version < 4 else batched
    assert errors(told(ADD, make((5, 1), 0))) == [E.NOT_COORDINATOR]
    assert errors(told(ADD, make((5, 1), 0, topic="none"))) == [E.UNKNOWN_TOPIC_OR_PARTITION]


# ── permits ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_added_partitions_are_answered_when_their_owners_have_the_permits(host: TransactionHost) -> None:
    of = producer(host)
    number = host.ask(ADD, 5, batched(of, 0, 1))
    host.turn()
    host.worker_works()  # the record
    host.turn()
    assert number not in host.answered.answers
    host.fetch_requests()
    assert len(host.asked) == 2
    host.append_next()
    host.answer()
    host.turn()
    assert number not in host.answered.answers
    host.append_next()
    host.answer()
    host.turn()
    assert errors(host.answered.answers[number]) == [0, 0]


@pytest.mark.parametrize("verify", [False, True])
def test_a_permit_that_died_with_its_owner_comes_again_when_it_is_asked_for(
    host: TransactionHost, verify: bool
) -> None:
    of = producer(host)
    assert add(host, of, 0) == [0]
    host.kill_worker()
    host.settle()
    assert write(host, of, 0) == E.INVALID_TXN_STATE, "the permit died with the owner"
    before = host.log_ends()
    assert errors(host.answer_to(ADD, 5, batched(of, 0, verify=verify))) == [0]
    assert host.log_ends() == before, "nothing is written for it"
    assert write(host, of, 0) == 0


# ── delayed records ───────────────────────────────────────────────────────────────────────────────────────────


def delayed(of: tuple[int, int], partition: int) -> AddPartitionsToTxnRequest:
    """What a network process asks for delayed records that were produced to the partition."""
    topics = (
        AddPartitionsToTxnTopic(DATA, (partition,)),
        AddPartitionsToTxnTopic(DELAYED_TRANSACTIONS, (0,)),
    )
    return AddPartitionsToTxnRequest((AddPartitionsToTxnTransaction("t", *of, True, topics),))


@pytest.mark.parametrize("version", [3, 5])
def test_the_place_of_delayed_records_is_added_to_the_transaction_that_has_their_partition(
    host: TransactionHost, version: int
) -> None:
    of = producer(host)
    assert add(host, of, 0, version=version) == [0]
    began = host.machines.transactions.get("t")
    assert began is not None
    assert errors(host.answer_to(ADD, 5, delayed(of, 0))) == [0, 0]
    current = host.machines.transactions.get("t")
    assert current is not None
    assert TopicPartition(DELAYED_TRANSACTIONS, 0) in current.partitions
    assert current.client_version == began.client_version, "the client still speaks its version"
    ends = host.log_ends()
    assert errors(host.answer_to(ADD, 5, delayed(of, 0))) == [0, 0]
    assert host.log_ends() == ends, "nothing is written for it"


def test_late_delayed_records_join_no_later_transaction(host: TransactionHost) -> None:
    of = producer(host)
    assert errors(host.answer_to(ADD, 5, delayed(of, 0))) == [E.TRANSACTION_ABORTABLE] * 2
    current = host.machines.transactions.get("t")
    assert current is not None
    assert current.state is TransactionState.EMPTY, "a late request begins no transaction"
    assert add(host, of, 0, version=3) == [0]
    assert host.answer_to(END, 3, EndTxnRequest("t", *of, False)).error_code == 0
    host.settle()
    assert add(host, of, 1, version=3) == [0]
    assert errors(host.answer_to(ADD, 5, delayed(of, 0))) == [E.TRANSACTION_ABORTABLE] * 2
    assert errors(host.answer_to(ADD, 5, batched(of, 0, topic=DELAYED_TRANSACTIONS))) == [
        E.TOPIC_AUTHORIZATION_FAILED
    ]


# ── holding ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_next_transaction_is_held_until_the_one_before_is_complete(host: TransactionHost) -> None:
    of = producer(host)
    assert add(host, of, 0) == [0]
    response = host.answer_to(END, 5, EndTxnRequest("t", *of, True))
    following = (response.producer_id, response.producer_epoch)
    current = host.machines.transactions.get("t")
    assert current is not None
    assert current.state is TransactionState.PREPARE_COMMIT, "markers are on their way"
    number = host.ask(ADD, 5, batched(following, 1))
    assert number not in host.answered.answers
    for _ in range(4):
        host.round()
    assert errors(host.answered.answers[number]) == [0]


@pytest.mark.parametrize("api", [INIT, ADD, END])
def test_a_request_is_held_for_20_ms_and_then_told_what_kafka_says(
    host: TransactionHost, api: ApiKey
) -> None:
    of = producer(host)
    assert add(host, of, 0) == [0]
    response = host.answer_to(END, 5, EndTxnRequest("t", *of, True))
    following = (response.producer_id, response.producer_epoch)
    request, version = {
        INIT: (InitProducerIdRequest("t", 60_000), 5),
        ADD: (batched(following, 1), 5),
        END: (EndTxnRequest("t", *of, True), 5),
    }[api]
    number = host.ask(api, version, request)
    for _ in range(4):
        assert number not in host.answered.answers
        host.clock.advance(TICK_MS)
        host.turn()
    host.turn()
    told = host.answered.answers[number]
    assert (errors(told) if api is ADD else [told.error_code]) == [E.CONCURRENT_TRANSACTIONS]
    assert host.requests.statistics()["held"] == 0


def test_a_successor_gets_its_epoch_as_soon_as_the_open_transaction_is_aborted(host: TransactionHost) -> None:
    of = producer(host)
    assert add(host, of, 0) == [0]
    assert producer(host) == (of[0], of[1] + 2), "one epoch fences, the next one is the successor's"


def test_a_late_end_of_version_1_does_not_end_the_next_transaction(host: TransactionHost) -> None:
    """It came while the transaction that it names was being completed, so it must not be served behind the next one's
    first request. Only version 1 keeps the epoch."""
    of = producer(host)
    assert add(host, of, 0, version=3) == [0]
    assert host.answer_to(END, 4, EndTxnRequest("t", *of, True)).error_code == 0
    transactions = host.machines.transactions
    assert _state(host) is TransactionState.PREPARE_COMMIT
    following = host.ask(ADD, 3, single(of, 1))
    late = host.ask(END, 4, EndTxnRequest("t", *of, True))
    for _ in range(8):
        host.round()
    assert errors(host.answered.answers[following]) == [0]
    assert host.answered.answers[late].error_code == E.CONCURRENT_TRANSACTIONS
    assert _state(host) is TransactionState.ONGOING
    current = transactions.get("t")
    assert current is not None
    assert current.partitions == {TopicPartition(DATA, 1)}


def test_a_late_end_of_version_2_is_held_and_refused_by_its_epoch(host: TransactionHost) -> None:
    of = producer(host)
    assert add(host, of, 0) == [0]
    response = host.answer_to(END, 5, EndTxnRequest("t", *of, True))
    following = host.ask(ADD, 5, batched((response.producer_id, response.producer_epoch), 1))
    late = host.ask(END, 5, EndTxnRequest("t", *of, True))
    for _ in range(8):
        host.round()
    assert errors(host.answered.answers[following]) == [0]
    assert host.answered.answers[late].error_code == E.PRODUCER_FENCED
    assert _state(host) is TransactionState.ONGOING


def _state(host: TransactionHost) -> TransactionState:
    current = host.machines.transactions.get("t")
    assert current is not None
    return current.state


# ── which partitions ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("version", range(6))
def test_the_coordinators_own_log_takes_part_in_no_transaction(host: TransactionHost, version: int) -> None:
    """Its shard is the only writer of it: a marker of somebody else would stand there without its knowledge."""
    of = producer(host)
    request = (batched if version >= 4 else single)(of, 0, topic=TRANSACTION_STATE)
    assert errors(host.answer_to(ADD, version, request)) == [E.TOPIC_AUTHORIZATION_FAILED]
    assert _state(host) is TransactionState.EMPTY


@pytest.mark.parametrize("version", range(4))
def test_clients_do_not_add_the_log_of_offsets_themselves(host: TransactionHost, version: int) -> None:
    """As in Kafka: they ask for it with AddOffsetsToTxn, or a network process does for them (version 5)."""
    of = producer(host)
    request = single(of, 0, topic=CONSUMER_OFFSETS)
    assert errors(host.answer_to(ADD, version, request)) == [E.TOPIC_AUTHORIZATION_FAILED]


# ── time ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_open_transaction_that_times_out_is_aborted_and_its_producer_fenced(host: TransactionHost) -> None:
    of = producer(host)
    assert add(host, of, 0) == [0]
    host.clock.advance(60_001)
    host.settle()
    current = host.machines.transactions.get("t")
    assert current is not None
    assert (current.state, current.producer_epoch) == (TransactionState.COMPLETE_ABORT, of[1] + 1)
    assert add(host, of, 0) == [E.PRODUCER_FENCED]


def test_an_id_that_nobody_uses_is_forgotten(host: TransactionHost) -> None:
    of = producer(host)
    host.clock.advance(604_800_000 + 3_600_000)
    host.settle()
    host.settle()
    assert len(host.machines.transactions) == 0
    assert add(host, of, 0) == [E.INVALID_PRODUCER_ID_MAPPING]


def test_markers_of_a_decided_transaction_are_sent_again_and_a_deleted_topic_is_dropped(
    host: TransactionHost,
) -> None:
    of = producer(host)
    assert add(host, of, 0, 1) == [0, 0]
    host.ask(END, 5, EndTxnRequest("t", *of, True))
    host.turn()
    host.worker_works()  # the decision
    host.has_data = False
    host.publish_image()
    host.kill_coordinator()
    host.settle()
    current = host.machines.transactions.get("t")
    assert current is not None
    assert current.state is TransactionState.COMPLETE_COMMIT


@pytest.mark.parametrize("is_open", [False, True])
def test_an_epoch_that_could_not_be_raised_fences_nobody_and_is_raised_once(
    host: TransactionHost, is_open: bool
) -> None:
    """Kafka's testFailureToFenceEpoch: the log of the coordinator is below its minimum of replicas while the second
    producer starts. Kafka fences the first one all the same, because it raises the epoch in memory before it writes."""
    first = producer(host)
    assert add(host, first, 0) == [0]
    if not is_open:
        response = host.answer_to(END, 5, EndTxnRequest("t", *first, True))
        first = response.producer_id, response.producer_epoch
        host.settle()
    for _ in range(5):
        number = host.ask(INIT, 4, InitProducerIdRequest("t", 60_000))
        host.turn()
        host.fetch_requests()
        while host.asked:
            host.append_next(error=E.NOT_ENOUGH_REPLICAS)
        host.answer()
        host.turn()
        assert host.answered.answers[number].error_code == E.COORDINATOR_NOT_AVAILABLE
    assert add(host, first, 1) == [0]
    response = host.answer_to(END, 5, EndTxnRequest("t", *first, True))
    assert response.error_code == 0
    host.settle()
    third = producer(host)
    assert third == (first[0], response.producer_epoch + 1)
    assert add(host, first, 0) == [E.PRODUCER_FENCED]
    assert add(host, third, 0) == [0]


# ── what administrators ask ───────────────────────────────────────────────────────────────────────────────────


def test_transactions_are_described_and_listed_by_filter(host: TransactionHost) -> None:
    of = producer(host, "t")
    producer(host, "u")
    assert add(host, of, 1, 0) == [0, 0]
    described = host.answer_to(
        ApiKey.DESCRIBE_TRANSACTIONS, 0, DescribeTransactionsRequest(("t", "u", "v", ""))
    ).transaction_states
    assert [(each.error_code, each.transaction_state) for each in described] == [
        (0, "Ongoing"),
        (0, "Empty"),
        (E.TRANSACTIONAL_ID_NOT_FOUND, ""),
        (E.INVALID_REQUEST, ""),
    ]
    assert [(topic.topic, topic.partitions) for topic in described[0].topics] == [(DATA, (0, 1))]
    host.clock.advance(1_000)

    def listed(request: ListTransactionsRequest) -> tuple[list[str], tuple[str, ...]]:
        response = host.answer_to(ApiKey.LIST_TRANSACTIONS, 2, request)
        names = [each.transactional_id for each in response.transaction_states]
        return sorted(names), response.unknown_state_filters

    assert listed(ListTransactionsRequest()) == (["t", "u"], ())
    assert listed(ListTransactionsRequest(("Ongoing", "Sleeping", "Dead"))) == (["t"], ("Sleeping",))
    assert listed(ListTransactionsRequest(("Sleeping",))) == ([], ("Sleeping",))
    assert listed(ListTransactionsRequest((), (of[0],))) == (["t"], ())
    assert listed(ListTransactionsRequest(transactional_id_pattern="[a-t]")) == (["t"], ())
    bad = host.answer_to(ApiKey.LIST_TRANSACTIONS, 2, ListTransactionsRequest(transactional_id_pattern="(["))
    assert bad.error_code == E.INVALID_REGULAR_EXPRESSION


def test_fixture_transaction_of_a_log_that_kafka_wrote_can_be_ended(host: TransactionHost) -> None:
    """An open transaction that was adopted: nobody here has added its partitions."""
    opened = with_partitions(
        Transaction(900, 4, 60_000),
        frozenset({TopicPartition(DATA, 0)}),
        client_version=0,
        now_ms=host.clock.now_ms(),
    )
    host.machines.transactions.replay(0, "adopted", opened)
    response = host.answer_to(END, 4, EndTxnRequest("adopted", 900, 4, False))
    assert response.error_code == 0
    host.settle()
    decided = ended(opened, commit=False, client_version=0, next_producer_id=-1, now_ms=0)
    assert decided.producer_epoch == 4, "the older protocol keeps the epoch"
    current = host.machines.transactions.get("adopted")
    assert current is not None
    assert current.state is TransactionState.COMPLETE_ABORT
