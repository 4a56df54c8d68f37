"""What producers are answered, in each state. Source of the answers: Apache Kafka 4.3's transaction coordinator."""

from __future__ import annotations

import itertools

import pytest

from appliance.control.coordinator.runtime.effects import Record
from appliance.control.coordinator.transaction.transaction import (
    EPOCH_MAX,
    LAST_CLIENT_EPOCH,
    Transaction,
    completed,
    ended,
    fenced,
    initialized,
    with_partitions,
)
from appliance.control.coordinator.transaction.transaction_record import transaction_record
from appliance.control.coordinator.transaction.transaction_state import END, STATES, EndKind, TransactionState
from appliance.control.coordinator.transaction.transactions import TransactionSettings
from appliance.protocol.errors import ErrorCode
from tests.control.coordinator.transaction.scene import A0, A1, B0, HOUR_MS, Scene

REFUSED = (-1, -1)
S = TransactionState


def _record(transaction: Transaction) -> Record:
    return transaction_record("t", transaction, server_version=2)


def at(scene: Scene, state: TransactionState, *, epoch: int = 3, version: int = 2) -> Transaction:
    """Put the id "t" into the state, as a replay would."""
    now_ms = scene.clock.now_ms()
    transaction = initialized(None, 7, epoch, -1, timeout_ms=60_000, now_ms=now_ms)
    if state is not S.EMPTY:
        transaction = with_partitions(transaction, frozenset({A0, A1}), client_version=version, now_ms=now_ms)
    if state in (S.PREPARE_COMMIT, S.COMPLETE_COMMIT, S.PREPARE_ABORT, S.COMPLETE_ABORT):
        commit = state in (S.PREPARE_COMMIT, S.COMPLETE_COMMIT)
        transaction = ended(
            transaction, commit=commit, client_version=version, next_producer_id=-1, now_ms=now_ms
        )
    if state in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT):
        transaction = completed(transaction, now_ms=now_ms)
    assert transaction.state is state
    scene.transactions.replay(0, "t", transaction)
    return transaction


def test_first_producer_gets_a_new_id_and_epoch_0() -> None:
    scene = Scene()
    assert scene.producer() == (1_000, 0)
    assert scene.producer("another") == (1_001, 0)


def test_successor_gets_the_next_epoch_and_the_predecessor_is_fenced() -> None:
    scene = Scene()
    old = scene.producer()
    assert scene.producer() == (old[0], 1)
    assert scene.add(old, A0) == [ErrorCode.PRODUCER_FENCED]


def test_nothing_is_answered_before_the_record_is_committed() -> None:
    scene = Scene()
    answers = scene.initialize()
    assert answers == []
    assert scene.initialize() == [(ErrorCode.CONCURRENT_TRANSACTIONS, *REFUSED)]
    scene.commit()
    assert answers == [(ErrorCode.NONE, 1_000, 0)]


def test_id_whose_first_record_failed_is_as_if_nobody_had_asked() -> None:
    scene = Scene()
    answers = scene.initialize()
    scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert answers == [(ErrorCode.COORDINATOR_NOT_AVAILABLE, *REFUSED)]
    assert len(scene.transactions) == 0
    assert scene.producer() == (1_001, 0)


@pytest.mark.parametrize(
    ("kafka", "answered"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.MESSAGE_TOO_LARGE),
    ],
)
def test_failed_append_of_a_commit_leaves_the_transaction_open(kafka: ErrorCode, answered: ErrorCode) -> None:
    scene = Scene()
    producer = scene.opened()
    answers = scene.end(producer, commit=True)
    scene.commit(kafka)
    assert answers == [(answered, *REFUSED)]
    assert scene.markers == []
    again = scene.end(producer, commit=True)
    scene.settle()
    assert again == [(ErrorCode.NONE, producer[0], producer[1] + 1)]


@pytest.mark.parametrize("timeout_ms", [0, -1, HOUR_MS + 1, 2**31 - 1])
def test_timeout_out_of_bounds_is_refused(timeout_ms: int) -> None:
    answers = Scene().initialize(timeout_ms=timeout_ms)
    assert answers == [(ErrorCode.INVALID_TRANSACTION_TIMEOUT, *REFUSED)]


def test_without_a_block_of_producer_ids_clients_come_again() -> None:
    scene = Scene()
    scene.ids.is_empty = True
    assert scene.initialize() == [(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, *REFUSED)]


def test_more_ids_than_the_bound_are_refused_and_known_ones_go_on() -> None:
    scene = Scene(TransactionSettings(timeout_max_ms=HOUR_MS, id_expiration_ms=HOUR_MS, ids_max=2))
    scene.producer("one")
    scene.producer("two")
    assert scene.initialize("three") == [(ErrorCode.POLICY_VIOLATION, *REFUSED)]
    assert scene.producer("two")[1] == 1


# ── raising the epoch (KIP-360) ───────────────────────────────────────────────────────────────────────────────


def test_repeated_raise_gives_the_same_answer_and_raises_once() -> None:
    scene = Scene()
    producer = scene.producer()
    for _ in range(2):
        answers = scene.initialize(expected=producer)
        scene.settle()
        assert answers == [(ErrorCode.NONE, producer[0], 1)]


def test_raise_with_an_epoch_that_is_older_than_the_last_one_is_fenced() -> None:
    scene = Scene()
    producer = scene.producer()
    for _ in range(2):
        scene.producer()
    assert scene.initialize(expected=producer) == [(ErrorCode.PRODUCER_FENCED, *REFUSED)]


def test_repeated_raise_is_fenced_after_the_coordinator_died() -> None:
    """The last epoch is not in the log, so the next coordinator cannot tell a repetition from a zombie."""
    scene = Scene()
    producer = scene.producer()
    scene.initialize(expected=producer)
    scene.settle()
    scene.crash()
    assert scene.initialize(expected=producer) == [(ErrorCode.PRODUCER_FENCED, *REFUSED)]


def test_foreign_producer_id_is_fenced() -> None:
    scene = Scene()
    producer = scene.producer()
    assert scene.initialize(expected=(producer[0] + 1, 0)) == [(ErrorCode.PRODUCER_FENCED, *REFUSED)]


# ── each state ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("state", TransactionState)
def test_partitions_are_added_where_the_table_says_so(state: TransactionState) -> None:
    scene = Scene()
    transaction = at(scene, state)
    answers = scene.add((transaction.producer_id, transaction.producer_epoch), B0)
    if STATES[state].add:
        assert answers == [STATES[state].add]
        return
    assert answers == []
    scene.commit()
    assert answers == [ErrorCode.NONE]
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is S.ONGOING
    assert B0 in now.partitions


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("kind", EndKind)
@pytest.mark.parametrize("state", TransactionState)
def test_end_answers_as_the_table_says(state: TransactionState, kind: EndKind, commit: bool) -> None:
    scene = Scene()
    transaction = at(scene, state)
    epoch = transaction.producer_epoch - (1 if kind is EndKind.V2_RETRY else 0)
    answers = scene.end(
        (transaction.producer_id, epoch), commit=commit, client_version=1 if kind is EndKind.V1 else 2
    )
    expected = STATES[state].end[kind][0 if commit else 1]
    if expected is not END:
        ((error, *ids),) = answers
        assert error is expected
        is_repeated = expected is ErrorCode.NONE and kind is EndKind.V2_RETRY
        assert ids == ([transaction.producer_id, transaction.producer_epoch] if is_repeated else [-1, -1])
        assert scene.appends == []
        return
    scene.commit()
    assert answers == [
        (ErrorCode.NONE, *REFUSED)
        if kind is EndKind.V1
        else (ErrorCode.NONE, transaction.producer_id, epoch + 1)
    ]
    marker = scene.mark()
    assert marker.marker.commit is commit
    assert marker.marker.producer_epoch == epoch + (0 if kind is EndKind.V1 else 1)
    assert marker.marker.coordinator_epoch == 5
    assert marker.partitions == transaction.partitions
    scene.commit()
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is (S.COMPLETE_COMMIT if commit else S.COMPLETE_ABORT)
    assert now.partitions == frozenset()


@pytest.mark.parametrize("client_version", [1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_other_end_is_told_to_wait_while_markers_are_owed_and_is_invalid_after_them(
    commit: bool, client_version: int
) -> None:
    """Kafka has its Complete state pending from the moment that the decision is committed (`prepareComplete`)."""
    scene = Scene()
    transaction = at(scene, S.ONGOING)
    producer = (transaction.producer_id, transaction.producer_epoch)
    scene.end(producer, commit=commit, client_version=client_version)
    scene.commit()
    waits = scene.end(producer, commit=not commit, client_version=client_version)
    assert waits == [(ErrorCode.CONCURRENT_TRANSACTIONS, *REFUSED)]
    scene.settle()
    late = scene.end(producer, commit=not commit, client_version=client_version)
    assert late == [(ErrorCode.INVALID_TXN_STATE, *REFUSED)]


def test_every_transition_is_one_that_the_table_allows() -> None:
    for state in TransactionState:
        for following in STATES[state].next:
            assert following in TransactionState
    assert all(STATES[state].next for state in TransactionState)


@pytest.mark.parametrize("client_version", [1, 2])
def test_end_by_a_foreign_or_an_unknown_producer_is_refused(client_version: int) -> None:
    scene = Scene()
    producer_id, epoch = scene.opened()
    mapping, fenced_code = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED

    def answer(producer: tuple[int, int], transactional_id: str = "t") -> ErrorCode:
        ((error, *_),) = scene.end(
            producer, commit=True, client_version=client_version, transactional_id=transactional_id
        )
        return error

    assert answer((producer_id + 1, epoch)) is mapping
    assert answer((producer_id, epoch + 1)) is fenced_code
    assert answer((producer_id, epoch), "nobody") is mapping
    assert answer((producer_id, epoch), "") is ErrorCode.INVALID_REQUEST


def test_late_end_of_a_transaction_cannot_end_the_next_one() -> None:
    """Jepsen's finding: with version 1 a delayed EndTxn ends a later transaction. Version 2 refuses it."""
    scene = Scene()
    first = scene.opened()
    answers = scene.end(first, commit=True)
    scene.settle()
    ((_, producer_id, epoch),) = answers
    scene.add((producer_id, epoch), A0)
    scene.settle()
    assert scene.end(first, commit=True) == [(ErrorCode.PRODUCER_FENCED, *REFUSED)]
    assert scene.end(first, commit=False) == [(ErrorCode.PRODUCER_FENCED, *REFUSED)]


# ── fencing and time ──────────────────────────────────────────────────────────────────────────────────────────


def test_successor_aborts_the_open_transaction_and_comes_again() -> None:
    scene = Scene()
    producer_id, epoch = scene.opened()
    answers = scene.initialize()
    scene.commit()
    assert answers == [(ErrorCode.CONCURRENT_TRANSACTIONS, *REFUSED)]
    marker = scene.mark().marker
    assert (marker.commit, marker.producer_epoch) == (False, epoch + 1)
    scene.settle()
    assert scene.producer() == (producer_id, epoch + 2)


def test_fence_that_could_not_be_written_raises_the_epoch_once() -> None:
    scene = Scene()
    producer_id, epoch = scene.opened()
    for _ in range(3):
        scene.initialize()
        scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    scene.initialize()
    scene.settle()
    assert scene.producer() == (producer_id, epoch + 2)


def test_open_transaction_is_aborted_after_its_timeout_and_its_producer_fenced() -> None:
    scene = Scene()
    producer = scene.opened(timeout_ms=10_000)
    scene.clock.advance(9_999)
    assert scene.transactions.abort_timed_out() == []
    scene.clock.advance(1)
    scene.carry_out(scene.transactions.abort_timed_out())
    scene.settle()
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is S.COMPLETE_ABORT
    assert scene.add(producer, A0) == [ErrorCode.PRODUCER_FENCED]
    assert scene.transactions.next_deadline_ns() is None


def test_timeout_counts_from_the_first_partition() -> None:
    scene = Scene()
    producer = scene.producer(timeout_ms=10_000)
    scene.clock.advance(9_000)
    scene.add(producer, A0)
    scene.settle()
    scene.clock.advance(5_000)
    scene.add(producer, B0)
    scene.settle()
    scene.clock.advance(4_999)
    assert scene.transactions.abort_timed_out() == []
    scene.clock.advance(1)
    assert len(scene.transactions.abort_timed_out()) == 1


@pytest.mark.parametrize("jump_ms", [50 * 60_000, -50 * 60_000])
def test_jump_of_the_wall_clock_aborts_nothing_and_delays_nothing(jump_ms: int) -> None:
    scene = Scene()
    scene.opened(timeout_ms=10_000)
    scene.clock.set_wall(scene.clock.now_ms() + jump_ms)
    assert scene.transactions.abort_timed_out() == []
    scene.clock.advance(10_000)
    assert len(scene.transactions.abort_timed_out()) == 1


def test_timeout_goes_on_after_the_coordinator_died() -> None:
    scene = Scene()
    scene.opened(timeout_ms=10_000)
    scene.clock.advance(6_000)
    scene.crash()
    scene.clock.advance(3_999)
    assert scene.transactions.abort_timed_out() == []
    scene.clock.advance(1)
    assert len(scene.transactions.abort_timed_out()) == 1


def test_end_that_is_under_way_when_the_timeout_comes_wins() -> None:
    scene = Scene()
    producer = scene.opened(timeout_ms=10_000)
    answers = scene.end(producer, commit=True)
    scene.clock.advance(10_001)
    assert scene.transactions.abort_timed_out() == []
    scene.settle()
    assert answers == [(ErrorCode.NONE, producer[0], producer[1] + 1)]
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is S.COMPLETE_COMMIT


def test_end_that_failed_after_the_timeout_leaves_an_abort_to_come() -> None:
    scene = Scene()
    producer = scene.opened(timeout_ms=10_000)
    scene.end(producer, commit=True)
    scene.clock.advance(10_001)
    assert scene.transactions.abort_timed_out() == []
    scene.commit(ErrorCode.REQUEST_TIMED_OUT)
    scene.clock.advance(20)
    scene.carry_out(scene.transactions.abort_timed_out())
    scene.settle()
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is S.COMPLETE_ABORT


def test_abort_that_could_not_be_written_is_tried_again() -> None:
    scene = Scene()
    scene.opened(timeout_ms=10_000)
    scene.clock.advance(10_001)
    scene.carry_out(scene.transactions.abort_timed_out())
    scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert scene.transactions.abort_timed_out() == []
    scene.clock.advance(20)
    assert len(scene.transactions.abort_timed_out()) == 1


def test_an_abort_that_cannot_be_written_is_tried_at_doubling_pauses_up_to_a_second() -> None:
    scene = Scene()
    scene.opened(timeout_ms=10_000)
    scene.clock.advance(10_001)
    tries: list[int] = []
    for ms in range(10_000):
        scene.carry_out(scene.transactions.abort_timed_out())
        if scene.appends:
            tries.append(ms)
            scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
        scene.clock.advance(1)
    pauses = [after - before for before, after in itertools.pairwise(tries)]
    assert pauses[:6] == [20, 40, 80, 160, 320, 640]
    assert set(pauses[6:]) == {1_000}
    scene.carry_out(scene.transactions.abort_timed_out())
    scene.clock.advance(1_000)
    scene.carry_out(scene.transactions.abort_timed_out())
    scene.settle()
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is S.COMPLETE_ABORT


def test_the_pauses_begin_anew_with_the_next_transaction() -> None:
    scene = Scene()
    producer = scene.opened(timeout_ms=10_000)
    scene.clock.advance(10_001)
    for _ in range(6):
        scene.carry_out(scene.transactions.abort_timed_out())
        scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
        scene.clock.advance(1_000)
    scene.carry_out(scene.transactions.abort_timed_out())
    scene.settle()
    assert scene.opened(timeout_ms=10_000)[1] > producer[1]
    scene.clock.advance(10_001)
    scene.carry_out(scene.transactions.abort_timed_out())
    scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    scene.clock.advance(20)
    assert len(scene.transactions.abort_timed_out()) == 1


def test_many_transactions_that_cannot_be_aborted_say_one_line_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    scene = Scene()
    for number in range(200):
        scene.opened(transactional_id=f"t{number}", timeout_ms=10_000)
    scene.clock.advance(10_001)
    for _ in range(500):
        scene.carry_out(scene.transactions.abort_timed_out())
        while scene.appends:
            scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
        scene.clock.advance(10)
    lines = [each for each in caplog.records if "cannot be aborted" in each.getMessage()]
    assert 4 <= len(lines) <= 6
    assert "more like it" in lines[-1].getMessage()


def test_a_completion_that_cannot_be_written_is_tried_at_doubling_pauses_up_to_a_second() -> None:
    scene = Scene()
    producer = scene.opened()
    scene.end(producer, commit=True)
    scene.commit()
    scene.mark()
    pauses = []
    for _ in range(9):
        scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
        (after,) = scene.delayed
        scene.delayed = []
        pauses.append(after.delay_ms)
        scene.carry_out(after.then())
    assert pauses == [20, 40, 80, 160, 320, 640, 1_000, 1_000, 1_000]


def test_partitions_leave_room_for_the_decision() -> None:
    """Prepare… and Complete… hold more than Ongoing does: whatever was accepted as Ongoing can be ended."""
    scene = Scene()
    at(scene, S.EMPTY, epoch=LAST_CLIENT_EPOCH, version=1)
    scene.add((7, LAST_CLIENT_EPOCH), A0, A1, client_version=1)
    (opened,) = scene.appends
    scene.settle()
    scene.end((7, LAST_CLIENT_EPOCH), commit=True)
    (decision,) = scene.appends
    assert len(decision.records[0].value or b"") > len(opened.records[0].value or b"")
    assert opened.reserved_bytes >= len(decision.records[0].value or b"") - len(
        opened.records[0].value or b""
    )
    assert decision.reserved_bytes == 0


def test_ids_that_nobody_uses_are_forgotten_tombstone_first() -> None:
    scene = Scene()
    scene.producer("idle")
    scene.opened(transactional_id="open", timeout_ms=HOUR_MS)
    scene.clock.advance(24 * HOUR_MS)
    scene.producer("fresh")
    scene.carry_out(scene.transactions.expire())
    assert scene.transactions.get("idle") is not None
    scene.commit()
    assert scene.transactions.get("idle") is None
    assert scene.log[-1].value is None
    assert {each for each, _ in scene.transactions} == {"open", "fresh"}
    assert scene.transactions.expire() == []


# ── the end of the epochs ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("commit", [True, False])
def test_last_epoch_of_version_2_ends_with_a_new_producer_id(commit: bool) -> None:
    scene = Scene()
    at(scene, S.ONGOING, epoch=LAST_CLIENT_EPOCH)
    answers = scene.end((7, LAST_CLIENT_EPOCH), commit=commit)
    scene.commit()
    assert answers == [(ErrorCode.NONE, 1_000, 0)]
    marker = scene.mark().marker
    assert (marker.producer_id, marker.producer_epoch) == (7, EPOCH_MAX)
    scene.commit()
    repeated = scene.end((7, LAST_CLIENT_EPOCH), commit=commit)
    assert repeated == [(ErrorCode.NONE, 1_000, 0)]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("dies", [True, False])
def test_new_id_is_told_to_come_again_until_the_old_one_is_completed(commit: bool, dies: bool) -> None:
    """KAFKA-18660: the client has the next id as soon as the decision is in the log, before any marker is written."""
    scene = Scene()
    scene.log.append(_record(at(scene, S.ONGOING, epoch=LAST_CLIENT_EPOCH)))
    answers = scene.end((7, LAST_CLIENT_EPOCH), commit=commit)
    scene.commit()
    assert answers == [(ErrorCode.NONE, 1_000, 0)]
    if dies:
        scene.crash()

    def told() -> list[ErrorCode]:
        (added,) = scene.add((1_000, 0), A0)
        ((raised, *_),) = scene.initialize(expected=(1_000, 0))
        ((aborted, *_),) = scene.end((1_000, 0), commit=False)
        return [added, raised, aborted]

    again = [ErrorCode.CONCURRENT_TRANSACTIONS] * 3
    assert told() == again, "markers are on their way"
    scene.mark()
    assert told() == again, "the end waits for its record"
    scene.commit()
    added = scene.add((1_000, 0), A0)
    scene.settle()
    assert added == [ErrorCode.NONE]


@pytest.mark.parametrize("expected", [(1_000, 0), (7, LAST_CLIENT_EPOCH)])
def test_raise_after_the_last_epoch_ended_is_served_with_the_new_id_and_with_the_old_one(
    expected: tuple[int, int],
) -> None:
    """KIP-360: the old one is said by a client that has not had the answer to its EndTxn."""
    scene = Scene()
    at(scene, S.ONGOING, epoch=LAST_CLIENT_EPOCH)
    scene.end((7, LAST_CLIENT_EPOCH), commit=True)
    scene.settle()
    answers = scene.initialize(expected=expected)
    scene.settle()
    ((error, producer_id, epoch),) = answers
    assert (error, producer_id) == (ErrorCode.NONE, 1_000)
    assert epoch <= 1


def test_timeout_at_the_last_epoch_leaves_an_id_that_can_go_on() -> None:
    """KAFKA-20090: the fence takes 32,767; neither the late EndTxn nor the next producer may be stuck."""
    scene = Scene()
    at(scene, S.ONGOING, epoch=LAST_CLIENT_EPOCH)
    scene.clock.advance(60_001)
    scene.carry_out(scene.transactions.abort_timed_out())
    scene.settle()
    now = scene.transactions.get("t")
    assert now is not None
    assert (now.state, now.producer_epoch) == (S.COMPLETE_ABORT, EPOCH_MAX)
    late = scene.end((7, LAST_CLIENT_EPOCH), commit=True)
    assert late == [(ErrorCode.INVALID_TXN_STATE, *REFUSED)]
    assert scene.producer() == (1_000, 0)


def test_client_never_gets_the_epoch_that_is_kept_for_fencing() -> None:
    scene = Scene()
    at(scene, S.ONGOING, epoch=LAST_CLIENT_EPOCH)
    scene.initialize()
    scene.settle()
    answers = scene.initialize(expected=(7, LAST_CLIENT_EPOCH))
    scene.settle()
    assert answers == [(ErrorCode.NONE, 1_000, 0)]


@pytest.mark.parametrize("state", [S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT])
@pytest.mark.parametrize("dies", [True, False])
def test_abort_without_a_partition_at_the_last_epoch_brings_a_new_producer_id(
    state: TransactionState, dies: bool
) -> None:
    """A client of version 2 may abort what it has not begun, and raises the epoch by that."""
    scene = Scene()
    epoch = LAST_CLIENT_EPOCH if state is S.EMPTY else LAST_CLIENT_EPOCH - 1  # an end has raised it
    scene.log.append(_record(at(scene, state, epoch=epoch)))
    answers = scene.end((7, LAST_CLIENT_EPOCH), commit=False)
    scene.commit()
    assert answers == [(ErrorCode.NONE, 1_000, 0)]
    if dies:
        scene.crash()
    effect = scene.markers[0]
    assert effect.partitions == frozenset()
    assert effect.marker.producer_epoch == EPOCH_MAX
    scene.settle()
    assert scene.end((7, LAST_CLIENT_EPOCH), commit=False) == [(ErrorCode.NONE, 1_000, 0)]
    added = scene.add((1_000, 0), A0)
    scene.settle()
    assert added == [ErrorCode.NONE]


@pytest.mark.parametrize("after", ["the decision", "the markers", "the end"])
@pytest.mark.parametrize("path", ["commit", "abort", "timeout", "successor"])
def test_every_way_to_the_last_epoch_goes_on_after_a_death(path: str, after: str) -> None:
    scene = Scene()
    scene.log.append(_record(at(scene, S.ONGOING, epoch=LAST_CLIENT_EPOCH)))
    old = (7, LAST_CLIENT_EPOCH)
    match path:
        case "commit" | "abort":
            scene.end(old, commit=path == "commit")
        case "timeout":
            scene.clock.advance(60_001)
            scene.carry_out(scene.transactions.abort_timed_out())
        case _:
            scene.initialize()
    scene.commit()
    decided = scene.markers[0].marker
    assert (decided.producer_id, decided.producer_epoch) == (7, EPOCH_MAX)
    if after != "the decision":
        scene.mark()
    if after == "the end":
        scene.commit()
    scene.crash()
    assert all(each.marker.producer_epoch == EPOCH_MAX for each in scene.markers)
    scene.settle()
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is (S.COMPLETE_COMMIT if path == "commit" else S.COMPLETE_ABORT)
    assert scene.add(old, A0)[0] in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    producer_id, epoch = scene.producer()
    assert producer_id >= 1_000
    assert epoch == (1 if path in ("commit", "abort") else 0), "the next id is taken once"
    opened = scene.add((producer_id, epoch), A0)
    scene.settle()
    assert opened == [ErrorCode.NONE]


@pytest.mark.parametrize("client_version", [1, 2])
def test_successors_of_a_producer_at_the_last_epoch_get_a_new_id_without_a_transaction_too(
    client_version: int,
) -> None:
    scene = Scene()
    at(scene, S.COMPLETE_COMMIT, epoch=LAST_CLIENT_EPOCH - (client_version == 2), version=client_version)
    assert scene.add((7, LAST_CLIENT_EPOCH), A0, client_version=client_version) == []
    scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert scene.producer() == (1_000, 0)
    assert scene.add((7, LAST_CLIENT_EPOCH), A0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]


def test_without_a_block_of_producer_ids_the_last_epoch_waits_and_nothing_is_decided() -> None:
    scene = Scene()
    at(scene, S.ONGOING, epoch=LAST_CLIENT_EPOCH)
    scene.ids.is_empty = True
    for _ in range(2):
        assert scene.end((7, LAST_CLIENT_EPOCH), commit=True) == [
            (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, *REFUSED)
        ]
    assert scene.appends == []
    scene.ids.is_empty = False
    answers = scene.end((7, LAST_CLIENT_EPOCH), commit=True)
    scene.settle()
    assert answers == [(ErrorCode.NONE, 1_000, 0)]


# ── proof for the leader (KIP-890) ────────────────────────────────────────────────────────────────────────────


def test_only_partitions_of_the_open_transaction_are_verified() -> None:
    scene = Scene()
    producer = scene.opened()
    verify = scene.transactions.verify_partitions
    assert verify("t", *producer, frozenset({A0, B0})) == {
        A0: ErrorCode.NONE,
        B0: ErrorCode.TRANSACTION_ABORTABLE,
    }
    assert verify("t", producer[0], producer[1] + 1, frozenset({A0})) == {A0: ErrorCode.PRODUCER_FENCED}
    assert verify("t", producer[0] + 1, 0, frozenset({A0})) == {A0: ErrorCode.INVALID_PRODUCER_ID_MAPPING}
    scene.end(producer, commit=True)
    scene.commit()
    now = scene.transactions.get("t")
    assert now is not None
    after = verify("t", producer[0], now.producer_epoch, frozenset({A0}))
    assert after == {A0: ErrorCode.CONCURRENT_TRANSACTIONS}


# ── the coordinator dies or moves ─────────────────────────────────────────────────────────────────────────────


def test_decided_transaction_gets_all_its_markers_again_after_a_death() -> None:
    scene = Scene()
    producer = scene.opened()
    scene.end(producer, commit=True)
    scene.commit()
    before = scene.markers[0]
    scene.crash()
    (again,) = scene.markers
    assert again.partitions == before.partitions == frozenset({A0, A1})
    assert (again.marker.commit, again.marker.producer_epoch) == (True, before.marker.producer_epoch)
    assert again.marker.coordinator_epoch == before.marker.coordinator_epoch + 1
    scene.settle()
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is S.COMPLETE_COMMIT


def test_decision_that_was_not_committed_never_happened() -> None:
    scene = Scene()
    producer = scene.opened()
    answers = scene.end(producer, commit=True)
    scene.crash()
    assert answers == []
    assert scene.markers == []
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is S.ONGOING


def test_effects_of_a_partition_that_was_given_away_come_to_nothing() -> None:
    scene = Scene()
    producer = scene.opened()
    answers = scene.end(producer, commit=True)
    append = scene.appends.pop()
    scene.transactions.unload(0)
    assert append.then(0) == []
    assert answers == [(ErrorCode.NOT_COORDINATOR, *REFUSED)]
    assert scene.transactions.next_deadline_ns() is None


def test_completion_that_could_not_be_written_is_tried_again_without_markers() -> None:
    scene = Scene()
    producer = scene.opened()
    scene.end(producer, commit=True)
    scene.commit()
    scene.mark()
    scene.commit(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert scene.markers == []
    scene.settle()
    now = scene.transactions.get("t")
    assert now is not None
    assert now.state is S.COMPLETE_COMMIT


def test_fence_of_version_1_keeps_no_last_epoch() -> None:
    transaction = fenced(initialized(None, 7, 3, -1, timeout_ms=1, now_ms=0), server_version=1, now_ms=0)
    assert (transaction.producer_epoch, transaction.last_epoch) == (4, -1)
