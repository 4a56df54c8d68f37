"""Asking and waiting: a Fetch is answered once, when there is enough, an error or no time left, and whoever dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from appliance.channels.partition_table import FILES_VERSION, SERVING_INCARNATION
from appliance.channels.purgatory_channel import PurgatoryOp
from appliance.channels.request_channel import (
    API_VERSION,
    OFFSET,
    REQUEST_ID,
    ROW,
    Op,
    RequestFlag,
    ResponseFlag,
)
from appliance.channels.roles import PURGATORY
from appliance.log.config import LogSettings
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import batches
from appliance.requests.log_handlers.fetch import ASKED_AT_ONCE
from tests.log.batches import batch_of, open_log
from tests.requests.fetching_process import (
    INCARNATION,
    LEADER_EPOCH,
    PARTITIONS_MAX,
    WORKERS,
    NetworkProcess,
    Wait,
    Wanted,
    network_process,
    partitions_of,
)

WAIT_MS = 500
WAIT_NS = WAIT_MS * 1_000_000
FIRST, SECOND = Wanted("t", 0), Wanted("t", 1)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[NetworkProcess]:
    """Every partition has the offsets 0 to 9."""
    with network_process(tmp_path) as made:
        for partition in made.content:
            made.grow(partition, 10)
        yield made


# Enough, or not


def test_what_reaches_min_bytes_is_answered_at_once(process: NetworkProcess) -> None:
    process.fetch(FIRST, min_bytes=100)
    (operation,) = process.asked()
    assert not process.finished
    process.answer(operation, 100, position=7)
    told = process.told_partitions()["t", 0]
    assert (told.error_code, told.high_watermark, told.log_start_offset) == (0, 10, 0)
    assert told.records == process.content[0][7:107]
    assert process.waits() == []
    assert process.at_rest()


def test_less_than_min_bytes_waits_for_what_is_missing(process: NetworkProcess) -> None:
    process.grow(1, 0)
    process.clock.advance(30)
    process.fetch(FIRST, SECOND, min_bytes=100, max_wait_ms=WAIT_MS)
    (operation,) = process.asked()
    process.answer(operation, 60)
    assert not process.finished
    rows = process.route(0).row, process.route(1).row
    assert process.waits() == [
        Wait([(rows[0], 10, True), (rows[1], 0, False)], 30_000_000 + WAIT_NS, needed_bytes=40)
    ]


def test_the_bytes_of_all_partitions_together_reach_min_bytes(process: NetworkProcess) -> None:
    process.fetch(FIRST, SECOND, min_bytes=100)
    first, second = process.asked()
    process.answer(second, 40)
    assert not process.finished
    process.answer(first, 60)
    told = process.told_partitions()
    assert [len(one.records) for one in told.values()] == [60, 40]


def test_min_bytes_above_max_bytes_are_not_waited_for(process: NetworkProcess) -> None:
    process.fetch(FIRST, min_bytes=1000, max_bytes=100)
    (operation,) = process.asked()
    process.answer(operation, 100)
    assert process.responses()


@pytest.mark.parametrize(("max_wait_ms", "min_bytes"), [(0, 1), (-1, 1), (WAIT_MS, 0)])
def test_who_does_not_want_to_wait_is_told_that_there_is_nothing(
    process: NetworkProcess, max_wait_ms: int, min_bytes: int
) -> None:
    process.fetch(Wanted("t", 0, 10), max_wait_ms=max_wait_ms, min_bytes=min_bytes)
    told = process.told_partitions()["t", 0]
    assert (told.error_code, told.high_watermark, told.records) == (0, 10, b"")


def test_what_ends_with_its_segment_is_answered_however_little(process: NetworkProcess) -> None:
    process.fetch(FIRST, min_bytes=1000)
    (operation,) = process.asked()
    process.answer(operation, 5, flags=int(ResponseFlag.OLDER_SEGMENT))
    assert process.told_partitions()["t", 0].records == process.content[0][:5]


def test_a_partition_without_new_records_costs_no_worker(process: NetworkProcess) -> None:
    process.fetch(Wanted("t", 0, 10), SECOND)
    (operation,) = process.asked()
    assert operation[ROW] == process.route(1).row
    process.answer(operation, 1)
    assert [len(one.records) for one in process.told_partitions().values()] == [0, 1]


def test_a_partition_named_twice_is_watched_once(process: NetworkProcess) -> None:
    process.fetch(Wanted("t", 0, 10), Wanted("t", 0, 10))
    (wait,) = process.waits()
    assert wait.watches == [(process.route(0).row, 10, False)]


def test_the_owner_is_asked_for_what_the_client_and_the_process_allow(process: NetworkProcess) -> None:
    process.fetch(
        FIRST._replace(max_bytes=300), SECOND._replace(max_bytes=900, offset=3, leader_epoch=4), max_bytes=500
    )
    first, second = process.asked()
    assert [(each[0], each[6], each[9]) for each in (first, second)] == [
        (Op.FETCH, INCARNATION, 300),
        (Op.FETCH, INCARNATION, 500),
    ]
    assert [(each[7], each[11]) for each in (first, second)] == [(-1, 0), (LEADER_EPOCH, 3)]


# Errors


UNKNOWN, MOVED, OUT_OF_RANGE = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.OFFSET_OUT_OF_RANGE,
)


def _nothing(_: NetworkProcess) -> None:
    """Happens."""


@pytest.mark.parametrize(
    ("wanted", "before", "error"),
    [
        (Wanted("none", 0), _nothing, UNKNOWN),
        (Wanted("t", 4), _nothing, UNKNOWN),
        (Wanted("t", 0, 10), lambda process: process.lead(0, 1), MOVED),
        (Wanted("t", 0, 10), lambda process: process.lead(0, -1), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (Wanted("t", 0, 10), lambda process: process.word(0, SERVING_INCARNATION, 0), MOVED),
        (
            Wanted("t", 0, 10),
            lambda process: process.word(0, SERVING_INCARNATION, -INCARNATION),
            ErrorCode.KAFKA_STORAGE_ERROR,
        ),
        (Wanted("t", 0, 10), lambda process: process.die(owner(process, 0)), MOVED),
        (Wanted("t", 0, 10, leader_epoch=LEADER_EPOCH - 1), _nothing, ErrorCode.FENCED_LEADER_EPOCH),
        (Wanted("t", 0, 10, leader_epoch=LEADER_EPOCH + 1), _nothing, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (Wanted("t", 0, 11), _nothing, OUT_OF_RANGE),
        (Wanted("t", 0, 2), lambda process: process.grow(0, 10, log_start=3), OUT_OF_RANGE),
    ],
)
def test_an_error_is_answered_at_once_without_asking_its_owner(
    process: NetworkProcess, wanted: Wanted, before: Callable[[NetworkProcess], None], error: int
) -> None:
    before(process)
    others = next(each for each in (1, 2, 3) if owner(process, each) != owner(process, 0))
    process.fetch(Wanted("t", others, 10), wanted, min_bytes=1000)
    assert [one.error_code for one in process.told_partitions().values()] == [0, error]
    assert process.asked() == []
    assert process.waits() == []
    assert process.at_rest()


def test_an_error_that_the_owner_tells_is_answered_at_once(process: NetworkProcess) -> None:
    process.fetch(FIRST, SECOND, min_bytes=1000)
    first, second = process.asked()
    process.answer(first, error=MOVED)
    assert not process.finished, "the other is asked already"
    process.answer(second, 20)
    told = process.told_partitions()
    assert [(one.error_code, len(one.records)) for one in told.values()] == [(MOVED, 0), (0, 20)]
    assert process.waits() == []


def test_an_offset_between_high_watermark_and_log_end_is_waited_at(process: NetworkProcess) -> None:
    """Who read from a leader that is no more may be ahead of what its successor knows to be committed."""
    process.grow(0, 10, log_end=20)
    process.fetch(Wanted("t", 0, 20))
    assert len(process.waits()) == 1
    process.fetch(Wanted("t", 0, 21))
    assert process.told_partitions()["t", 0].error_code == OUT_OF_RANGE


def test_by_their_ids_topics_are_found_and_an_unknown_one_is_told_as_such(process: NetworkProcess) -> None:
    known, stranger = process.topic_ids["t"], UUID(int=77)
    process.fetch(Wanted(known, 0, 10), Wanted(stranger, 0), version=13)
    assert {name: one.error_code for name, one in process.told_partitions().items()} == {
        (known, 0): 0,
        (stranger, 0): ErrorCode.UNKNOWN_TOPIC_ID,
    }


def test_a_session_that_is_not_known_is_refused_with_no_partition_named(process: NetworkProcess) -> None:
    process.fetch(FIRST, session_id=77, session_epoch=3)
    response = process.response()
    assert (response.error_code, response.responses) == (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, [])
    assert process.asked() == []
    assert process.at_rest()


def test_a_replica_is_refused(process: NetworkProcess) -> None:
    process.fetch(FIRST, replica_id=1)
    assert process.response().error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert process.at_rest()


# Waiting


def test_when_the_time_is_up_it_is_answered_with_what_there_is(process: NetworkProcess) -> None:
    pending = process.fetch(FIRST, min_bytes=100, max_wait_ms=WAIT_MS)
    (operation,) = process.asked()
    process.answer(operation, 60)
    assert len(process.waits()) == 1
    process.clock.advance(WAIT_MS)
    process.complete(operation[REQUEST_ID])
    (again,) = process.asked()
    process.answer(again, 60)
    assert [each for each, _ in process.finished] == [pending]
    assert process.told_partitions()["t", 0].records == process.content[0][:60]
    assert process.waits() == []
    assert process.at_rest()


def test_who_is_woken_with_too_little_waits_on_to_the_same_deadline(process: NetworkProcess) -> None:
    process.fetch(FIRST, min_bytes=100, max_wait_ms=WAIT_MS)
    (operation,) = process.asked()
    process.answer(operation, 60)
    process.clock.advance(WAIT_MS - 1)
    process.grow(0, 12)
    process.complete(operation[REQUEST_ID])
    (again,) = process.asked()
    process.answer(again, 70)
    assert not process.finished, "60 and 70 bytes are the same ones"
    first, second = process.waits()
    assert (first.needed_bytes, second.needed_bytes) == (40, 30)
    assert first.deadline_ns == second.deadline_ns == WAIT_NS
    assert [watch[1] for watch in second.watches] == [12]


def test_records_that_come_meanwhile_are_answered(process: NetworkProcess) -> None:
    process.fetch(Wanted("t", 0, 10))
    assert process.asked() == []
    process.grow(0, 11)
    process.complete(1)
    (operation,) = process.asked()
    process.answer(operation, 20)
    told = process.told_partitions()["t", 0]
    assert (told.high_watermark, len(told.records)) == (11, 20)


@pytest.mark.parametrize(
    ("meanwhile", "error"),
    [
        (lambda process: process.word(0, SERVING_INCARNATION, 0), MOVED),
        (lambda process: process.grow(0, 10, log_start=3), OUT_OF_RANGE),
    ],
)
def test_an_error_that_comes_meanwhile_is_told_and_no_record_that_was_found_before(
    process: NetworkProcess, meanwhile: Callable[[NetworkProcess], None], error: int
) -> None:
    process.fetch(FIRST, min_bytes=100)
    (operation,) = process.asked()
    process.answer(operation, 60)
    meanwhile(process)
    process.complete(operation[REQUEST_ID])
    told = process.told_partitions()["t", 0]
    assert (told.error_code, told.records) == (error, b"")


def test_nobody_waits_where_the_purgatory_is_down(process: NetworkProcess) -> None:
    process.fetch(FIRST, min_bytes=100)
    (operation,) = process.asked()
    process.answer(operation, 60)
    process.purgatory.stop()
    (again,) = process.asked()
    process.answer(again, 60)
    assert len(process.told_partitions()["t", 0].records) == 60
    process.fetch(Wanted("t", 0, 10))
    assert len(process.responses()) == 1
    assert process.at_rest()


# Transactions and epochs


def test_a_read_committed_reader_asks_for_nothing_behind_the_last_stable_offset(
    process: NetworkProcess,
) -> None:
    process.grow(0, 10, last_stable_offset=6)
    process.fetch(Wanted("t", 0, 6), read_committed=True, min_bytes=100)
    assert process.asked() == []
    (wait,) = process.waits()
    assert wait == Wait([(process.route(0).row, 10, True)], WAIT_NS, needed_bytes=1), "a marker lets it out"
    process.fetch(Wanted("t", 0, 5), read_committed=True)
    process.fetch(Wanted("t", 0, 6))
    committed, uncommitted = sorted(process.asked(), key=lambda operation: int(operation[REQUEST_ID]))
    assert committed[1] & RequestFlag.READ_COMMITTED
    assert not uncommitted[1] & RequestFlag.READ_COMMITTED


def test_a_read_committed_reader_waits_for_min_bytes_where_all_is_stable(process: NetworkProcess) -> None:
    process.fetch(FIRST, read_committed=True, min_bytes=100)
    (operation,) = process.asked()
    process.answer(operation, 60)
    assert [wait.needed_bytes for wait in process.waits()] == [40]


def test_a_history_that_parts_from_the_log_is_told_at_once(process: NetworkProcess) -> None:
    """Also at the log end, where nobody else asks the owner."""
    process.fetch(Wanted("t", 0, 10, last_fetched_epoch=3), min_bytes=100)
    (operation,) = process.asked()
    assert (operation[API_VERSION], operation[OFFSET]) == (3, 10)
    process.answer(operation, op=Op.EPOCH_END, segment=8, leader_epoch=2)
    told = process.told_partitions()["t", 0]
    assert (told.error_code, told.diverging_epoch.epoch, told.diverging_epoch.end_offset) == (0, 2, 8)
    assert process.waits() == []


# Many partitions


def test_owners_are_asked_about_so_many_partitions_at_a_time_until_the_answer_is_full(
    tmp_path: Path,
) -> None:
    count = 2 * ASKED_AT_ONCE + 5
    with network_process(tmp_path, partitions=count) as process:
        for partition in range(count):
            process.grow(partition, 1)
        process.fetch(
            *(Wanted("t", partition) for partition in range(count)), max_bytes=100 * (ASKED_AT_ONCE + 1)
        )
        asked = process.asked()
        assert [each[4] for each in asked] == list(range(ASKED_AT_ONCE))
        for operation in asked:
            assert process.asked() == []
            process.answer(operation, 100)
        asked = process.asked()
        assert [each[4] for each in asked] == list(range(ASKED_AT_ONCE, 2 * ASKED_AT_ONCE))
        for operation in asked:
            process.answer(operation, 100)
        assert process.asked() == [], "the answer is full"
        told = process.told_partitions()
        assert len(told) == count
        lengths = [len(one.records) for one in told.values()]
        assert lengths == [100] * (ASKED_AT_ONCE + 1) + [0] * (count - ASKED_AT_ONCE - 1)
        assert process.at_rest()


def test_who_reads_on_is_led_by_a_cursor_and_asks_its_owner_no_more(tmp_path: Path) -> None:
    with network_process(tmp_path) as process:
        process.segment(0).unlink()
        log = open_log(tmp_path / "t-0", settings=LogSettings(index_interval_bytes=512))
        for _ in range(200):
            log.append(batch_of([bytes(1_000)]), leader_epoch=LEADER_EPOCH)
        process.grow(0, log.log_end_offset)
        wanted = FIRST._replace(max_bytes=20_000)
        process.fetch(wanted)
        (operation,) = process.asked()
        process.answer(operation, 20_000, first_batch_bytes=1_068)
        read = process.told_partitions()["t", 0].records
        offset = [header for _, header in batches(read)][-1].next_offset
        process.fetch(wanted._replace(offset=offset), min_bytes=20_000)
        assert process.asked() == []
        following = process.told_partitions()["t", 0].records
        assert process.segment(0).read_bytes().startswith(read + following)
        assert len(following) > 10_000
        # The names of its files mean others now.
        process.word(0, FILES_VERSION, 2)
        process.fetch(wanted._replace(offset=offset))
        (operation,) = process.asked()
        process.answer(operation, 1_000, position=len(read))
        assert process.told_partitions()["t", 0].records == following[:1_000]
        log.close(clean=False)


# Who dies, and who goes


def owner(process: NetworkProcess, partition: int) -> object:
    return process.route(partition).worker


def test_a_worker_that_dies_while_it_is_asked_is_an_error_beside_the_records_of_others(
    process: NetworkProcess,
) -> None:
    process.fetch(*(Wanted("t", partition) for partition in range(4)), min_bytes=1000)
    asked = process.asked()
    lost = [each for each in asked if owner(process, each[5]) is WORKERS[0]]
    kept = [each for each in asked if owner(process, each[5]) is WORKERS[1]]
    assert lost
    assert kept
    process.die(WORKERS[0])
    assert not process.finished, "the other worker is still to answer"
    for operation in kept:
        process.answer(operation, 30)
    told = process.told_partitions()
    assert {index: (one.error_code, len(one.records)) for (_, index), one in told.items()} == {
        **{each[4]: (int(MOVED), 0) for each in lost},
        **{each[4]: (0, 30) for each in kept},
    }
    assert process.at_rest()


def test_when_all_workers_die_it_is_answered_with_errors(process: NetworkProcess) -> None:
    pending = process.fetch(*(Wanted("t", partition) for partition in range(4)))
    for worker in WORKERS:
        process.die(worker)
    assert [each for each, _ in process.finished] == [pending]
    assert [one.error_code for one in process.told_partitions().values()] == [MOVED] * 4
    assert process.at_rest()


def test_an_answer_that_comes_twice_counts_once(process: NetworkProcess) -> None:
    process.fetch(FIRST, SECOND, min_bytes=100)
    first, second = process.asked()
    process.answer(first, 60, times=2)
    assert not process.finished, "60 bytes are there, and the second partition is not answered"
    process.answer(second, 40, times=2)
    assert len(process.responses()) == 1
    process.answer(first, 60)
    assert not process.finished


def test_nothing_is_answered_twice_however_often_it_is_woken(process: NetworkProcess) -> None:
    process.fetch(FIRST, min_bytes=100)
    (operation,) = process.asked()
    process.answer(operation, 60)
    process.clock.advance(WAIT_MS)
    process.complete(operation[REQUEST_ID], times=2)
    (again,) = process.asked()
    process.answer(again, 60, times=2)
    assert len(process.responses()) == 1
    for worker in WORKERS:
        process.die(worker)
    process.purgatory.purgatory_down()
    assert not process.finished


def test_a_connection_that_ends_while_owners_are_asked_is_answered_nothing_and_holds_nothing(
    process: NetworkProcess,
) -> None:
    pending = process.fetch(FIRST, SECOND, min_bytes=100)
    first, second = process.asked()
    process.answer(first, 60)
    assert pending.drop is not None
    pending.drop()
    assert process.at_rest()
    process.answer(second, 60)
    process.die(WORKERS[0])
    assert not process.finished
    assert process.waits() == []
    assert process.files.statistics()["open"] == 0


def test_a_connection_that_ends_while_it_waits_is_taken_out_of_the_purgatory(process: NetworkProcess) -> None:
    pending = process.fetch(FIRST, min_bytes=100)
    (operation,) = process.asked()
    process.answer(operation, 60)
    assert len(process.waits()) == 1
    assert pending.drop is not None
    pending.drop()
    assert process.cancelled() == [operation[REQUEST_ID]]
    assert process.at_rest()
    process.complete(operation[REQUEST_ID])
    assert process.asked() == []
    assert not process.finished


def test_a_connection_that_ends_after_its_answer_takes_nothing_back(process: NetworkProcess) -> None:
    """The outlet has the pieces by then, and lets go of their segments."""
    pending = process.fetch(FIRST)
    (operation,) = process.asked()
    process.answer(operation, 60)
    assert pending.drop is None
    assert process.files.statistics()["held"] == 1
    process.responses()
    assert process.at_rest()


# Sessions


def test_an_incremental_session_hears_of_what_changed_and_is_kept_waiting_for_the_rest(
    process: NetworkProcess,
) -> None:
    process.fetch(Wanted("t", 0, 10), Wanted("t", 1, 10), session_epoch=0, min_bytes=0)
    made = process.response()
    assert made.session_id > 0
    assert list(partitions_of(made)) == [("t", 0), ("t", 1)]
    process.fetch(session_id=made.session_id, session_epoch=1)
    assert not process.finished
    assert len(process.waits()[0].watches) == 2
    process.grow(1, 11)
    process.complete(2)
    (operation,) = process.asked()
    process.answer(operation, 20)
    response = process.response()
    assert response.session_id == made.session_id
    assert list(partitions_of(response)) == [("t", 1)]
    process.fetch(Wanted("t", 1, 11), session_id=made.session_id, session_epoch=2, max_wait_ms=0)
    response = process.response()
    assert (response.error_code, response.session_id, response.responses) == (0, made.session_id, [])


# Too many partitions that are waited for


def test_oldest_wide_fetch_is_answered_early_where_too_many_partitions_are_waited_for(tmp_path: Path) -> None:
    wide = [Wanted("t", partition) for partition in range(200)]
    with network_process(tmp_path, partitions=200) as process:
        narrow = process.fetch(wide[0])
        first, second, third = process.fetch(*wide), process.fetch(*wide), process.fetch(*wide)
        assert [pending for pending, _ in process.finished] == [first]
        assert process.purgatory.statistics()["partitions"] == 401
        assert process.purgatory.statistics()["hurried"] == 1
        assert {one.error_code for one in process.told_partitions().values()} == {0}
        waiting = [watcher.request_id for watcher in process.purgatory._watchers.values()]
        assert len(waiting) == 3
        for request_id in waiting:
            process.clock.advance(WAIT_MS)
            process.complete(request_id)
        assert [pending for pending, _ in process.finished] == [narrow, second, third]
        process.responses()
        while process.purgatory.congested:  # the ring has fewer slots than these registrations
            process.cancelled()
        assert process.at_rest()


def test_fetch_of_more_partitions_than_may_be_waited_for_is_answered_at_once(tmp_path: Path) -> None:
    with network_process(tmp_path, partitions=PARTITIONS_MAX + 1) as process:
        narrow = process.fetch(Wanted("t", 0))
        all_of_them = process.fetch(*(Wanted("t", partition) for partition in range(PARTITIONS_MAX + 1)))
        assert [pending for pending, _ in process.finished] == [all_of_them]
        assert narrow.answer is None
        assert process.purgatory.statistics()["partitions"] == 1


def test_wide_fetches_that_leave_before_they_are_registered_leave_nothing_behind(tmp_path: Path) -> None:
    wide = [Wanted("t", partition) for partition in range(200)]
    with network_process(tmp_path, partitions=200) as process:
        for _ in range(50):
            pending = process.fetch(*wide)
            assert pending.drop is not None
            pending.drop()
        held = process.purgatory._unplaced
        assert sum(len(registration.rows) for registration in held) == 0
        cancelled: list[int] = []
        while process.purgatory.congested:
            cancelled += process.cancelled()
        assert cancelled == [1]  # the others never got there
        assert process.at_rest()


def test_cancel_that_finds_the_ring_full_is_said_later(process: NetworkProcess) -> None:
    process.grow(0, 0)
    pending = process.fetch(FIRST)
    ring = process.attachment.outbound[PURGATORY]
    while ring.put(int(PurgatoryOp.CANCEL), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0):
        pass
    assert pending.drop is not None
    pending.drop()
    assert process.purgatory.statistics()["unplaced"] == 1
    told: list[int] = []
    while process.purgatory.congested:
        told += process.cancelled()
    assert (told + process.cancelled())[-1] == 1
    assert process.at_rest()
