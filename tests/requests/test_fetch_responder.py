"""The response to a Fetch: how much is sent and from where, who is told what, and that no segment stays held."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from appliance.channels.partition_table import FILES_VERSION, LOG_START, SERVING_INCARNATION
from appliance.channels.request_channel import Op, ResponseFlag
from appliance.cluster import NO_LEADER
from appliance.log.config import LogSettings
from appliance.log.transaction_index import AbortedTransaction, encode_transactions
from appliance.protocol.errors import ErrorCode
from appliance.protocol.records.batch import batches
from appliance.requests.answer import FilePiece
from appliance.requests.cursors import Cursors
from appliance.requests.fetch_session import FetchSession, SessionPartition, SessionTurn
from appliance.requests.log_handlers.fetch_item import FetchItem
from appliance.requests.log_handlers.fetch_responder import FetchResponder
from appliance.requests.session import Request
from tests.log.batches import batch_of, open_log
from tests.requests.fetching_process import (
    LEADER_EPOCH,
    MIB,
    NetworkProcess,
    network_process,
    partitions_of,
)

MOVED, STORAGE, OUT_OF_RANGE = (
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_OUT_OF_RANGE,
)


class Bench:
    """A responder, and items as they are when all owners have answered: high watermark 20, last stable offset 15."""

    def __init__(self, process: NetworkProcess) -> None:
        self.process = process
        self.cursors = Cursors(process.files)
        self.responder = FetchResponder(
            process.routes,
            process.table,
            files=process.files,
            cursors=self.cursors,
            finish=process.finish,
            complain=process.complain,
        )

    def item(
        self,
        partition: int,
        length_bytes: int = 0,
        *,
        topic: str = "t",
        offset: int = 0,
        first_batch_bytes: int = 1,
        max_bytes: int = MIB,
        position: int = 0,
        flags: int = 0,
        error: int = 0,
        op: Op = Op.FETCH,
    ) -> FetchItem:
        route = self.process.route(partition, topic)
        made = FetchItem(SessionPartition(topic, partition, offset, max_bytes), route)
        made.asks_owner = True
        made.answered(
            (
                int(op),
                flags,
                error,
                1,
                0,
                route.row,
                0,
                20,
                0,
                position,
                length_bytes,
                first_batch_bytes,
                LEADER_EPOCH,
                15,
            )
        )
        return made

    def respond(
        self,
        items: Sequence[FetchItem],
        *,
        version: int = 12,
        max_bytes: int = MIB,
        read_committed: bool = False,
        turn: SessionTurn | None = None,
    ) -> Request:
        pending = self.process.pending(version)
        pending.drop = self.process.finished.clear
        self.responder.respond(
            pending,
            turn or SessionTurn(None, tuple(item.wanted for item in items)),
            items=items,
            max_bytes=max_bytes,
            read_committed=read_committed,
        )
        return pending

    def told(self, *items: FetchItem, read_committed: bool = False, max_bytes: int = MIB) -> list[Any]:
        """The partitions of the response, in its order."""
        self.respond(items, read_committed=read_committed, max_bytes=max_bytes)
        return list(self.process.told_partitions().values())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with network_process(tmp_path) as process:
        yield Bench(process)


# How much


@pytest.mark.parametrize(
    ("found", "max_bytes", "expected"),
    [
        # (bytes found, of these the first batch, partition's max bytes)
        ([(100, 40, 500), (100, 40, 500)], 200, [100, 100]),
        ([(100, 40, 500), (100, 40, 500)], 150, [100, 50]),
        ([(100, 40, 500), (100, 60, 500)], 150, [100, 0]),
        ([(100, 40, 500), (100, 60, 500), (100, 40, 500)], 150, [100, 0, 50]),
        ([(100, 100, 500), (10, 10, 500)], 50, [100, 0]),
        ([(0, 0, 500), (100, 100, 500), (100, 1, 500)], 0, [0, 100, 0]),
        ([(100, 40, 70), (100, 40, 500)], 500, [70, 100]),
        ([(100, 100, 70), (100, 100, 70)], 500, [100, 0]),
        ([(100, 40, -1), (100, 40, 500)], 500, [40, 100]),
    ],
)
def test_max_bytes_are_kept_but_the_first_batch_of_all_comes_whole(
    bench: Bench, found: list[tuple[int, int, int]], max_bytes: int, expected: list[int]
) -> None:
    items = [
        bench.item(index, length, first_batch_bytes=first, max_bytes=partition_max_bytes)
        for index, (length, first, partition_max_bytes) in enumerate(found)
    ]
    assert [len(one.records) for one in bench.told(*items, max_bytes=max_bytes)] == expected
    assert bench.process.at_rest()


def test_records_are_sent_from_the_segment_and_only_what_surrounds_them_from_memory(bench: Bench) -> None:
    bench.respond([bench.item(0, 5_000, position=123), bench.item(1), bench.item(2, 3_000)])
    ((_, answer),) = bench.process.finished
    pieces = [each for each in answer if isinstance(each, FilePiece)]
    assert [(each.position, each.remaining) for each in pieces] == [(123, 5_000), (0, 3_000)]
    assert [each.file.holders for each in pieces] == [1, 1]
    assert sum(len(each) for each in answer if isinstance(each, bytes)) < 300
    told = bench.process.told_partitions()
    assert told["t", 0].records == bench.process.content[0][123:5_123]
    assert told["t", 2].records == bench.process.content[2][:3_000]
    assert [each.file.holders for each in pieces] == [0, 0]


def test_a_segment_is_held_once_for_each_time_that_it_is_sent_from(bench: Bench) -> None:
    """A client may name a partition twice, and two clients may read the same."""
    bench.respond([bench.item(0, 50), bench.item(0, 60, position=50)])
    bench.respond([bench.item(0, 70)])
    files = [
        each.file for _, answer in bench.process.finished for each in answer if isinstance(each, FilePiece)
    ]
    assert len(files) == 3
    assert len(set(map(id, files))) == 1
    for left in (2, 1, 0):
        files.pop().release()
        assert (files[0].holders if files else 0) == left
    assert bench.process.at_rest()
    bench.process.finished.clear()


def test_partitions_of_a_topic_stand_together_each_with_its_own_records(bench: Bench) -> None:
    items = [bench.item(1, 10), bench.item(0, topic="u"), bench.item(0, 20), bench.item(1, topic="u")]
    bench.respond(items)
    response = bench.process.response()
    assert [topic.topic for topic in response.responses] == ["t", "u"]
    told = partitions_of(response)
    assert list(told) == [("t", 1), ("t", 0), ("u", 0), ("u", 1)]
    content = bench.process.content
    assert (told["t", 1].records, told["t", 0].records) == (content[1][:10], content[0][:20])


def test_what_was_cut_short_by_what_was_asked_for_ends_with_a_whole_batch(
    bench: Bench, tmp_path: Path
) -> None:
    bench.process.segment(0).unlink()
    log = open_log(tmp_path / "t-0", settings=LogSettings(index_interval_bytes=512))
    for _ in range(100):
        log.append(batch_of([bytes(1_000)]), leader_epoch=LEADER_EPOCH)
    item = bench.item(0, 20_000, first_batch_bytes=1_068, max_bytes=20_000)
    item.high_watermark = log.log_end_offset
    bench.respond([item])
    ((_, answer),) = bench.process.finished
    (piece,) = [each for each in answer if isinstance(each, FilePiece)]
    assert piece.following_bytes > 10_000
    (told,) = bench.process.told_partitions().values()
    whole = list(batches(told.records))
    assert 10_000 < len(told.records) < 20_000
    assert sum(header.size_bytes for _, header in whole) == len(told.records)
    assert bench.cursors.statistics() == {"cursors": 1}
    assert bench.process.at_rest()
    log.close(clean=False)


# Which partitions


def test_an_incremental_answer_mentions_what_has_news_and_nothing_else(bench: Bench) -> None:
    def items() -> list[FetchItem]:
        made = [bench.item(partition) for partition in range(4)]
        for item, wanted in zip(made, known, strict=False):
            item.wanted = wanted
        return made

    known: list[SessionPartition] = []
    first = items()
    known += [item.wanted for item in first]
    session = FetchSession(7, known, principal="User:a", uses_topic_ids=False)
    turn = SessionTurn(session, tuple(known), incremental=True)

    def mentioned(changed: list[FetchItem]) -> list[int]:
        bench.respond(changed, turn=turn)
        response = bench.process.response()
        assert response.session_id == 7
        return [index for _, index in partitions_of(response)]

    assert mentioned(first) == [0, 1, 2, 3], "nothing of them was told before"
    assert mentioned(items()) == []
    changed = items()
    changed[1].high_watermark = 21
    assert mentioned(changed) == [1]
    changed = items()
    changed[1].high_watermark, changed[2].log_start = 21, 3
    assert mentioned(changed) == [2]
    changed = items()
    changed[1].high_watermark, changed[2].log_start = 21, 3
    changed[3].answered((int(Op.EPOCH_END), 0, 0, 1, 0, 0, 8, 20, 0, 0, 0, 0, 2, 15))
    assert mentioned(changed) == [3], "where histories part"
    for _ in range(2):
        changed = items()
        changed[1].high_watermark, changed[2].log_start = 21, 3
        changed[0].error = int(MOVED)
        assert mentioned(changed) == [0], "an error is told each time"


def test_without_a_session_every_partition_is_mentioned_each_time(bench: Bench) -> None:
    items = [bench.item(partition) for partition in range(3)]
    for _ in range(2):
        assert [one.partition_index for one in bench.told(*items)] == [0, 1, 2]


def test_partitions_that_had_records_are_looked_at_last_next_time(bench: Bench) -> None:
    items = [bench.item(0, 100), bench.item(1), bench.item(2, 100), bench.item(3, 100, first_batch_bytes=100)]
    session = FetchSession(7, [item.wanted for item in items], principal="User:a", uses_topic_ids=False)
    bench.respond(items, turn=SessionTurn(session, ()), max_bytes=200)
    assert [index for _, index in session.partitions] == [1, 3, 0, 2], "the last one had no room"
    bench.process.responses()


def test_a_refusal_mentions_no_partition(bench: Bench) -> None:
    bench.responder.refuse(bench.process.pending(12), int(ErrorCode.INVALID_FETCH_SESSION_EPOCH))
    response = bench.process.response()
    assert (response.error_code, response.responses) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, [])


def test_with_its_answer_a_request_gives_back_nothing_more(bench: Bench) -> None:
    assert bench.respond([bench.item(0, 100)]).drop is None
    bench.process.responses()


# Transactions

ABORTED = int(ResponseFlag.ABORTED)


def test_a_read_committed_reader_is_told_which_transactions_were_aborted(bench: Bench) -> None:
    """Those that overlap what lies between its offset and the last stable offset."""
    entries = [
        AbortedTransaction(producer_id=1, first_offset=0, last_offset=2, last_stable_offset=3),
        AbortedTransaction(producer_id=2, first_offset=1, last_offset=7, last_stable_offset=8),
        AbortedTransaction(producer_id=3, first_offset=9, last_offset=12, last_stable_offset=13),
        AbortedTransaction(producer_id=4, first_offset=15, last_offset=18, last_stable_offset=19),
    ]
    bench.process.segment(0, suffix="txnindex").write_bytes(encode_transactions(entries))
    (told,) = bench.told(bench.item(0, 100, offset=5, flags=ABORTED), read_committed=True)
    assert [(each.producer_id, each.first_offset) for each in told.aborted_transactions] == [(2, 1), (3, 9)]
    assert (told.last_stable_offset, told.high_watermark, len(told.records)) == (15, 20, 100)


@pytest.mark.parametrize(("read_committed", "expected"), [(True, []), (False, None)])
def test_where_none_were_aborted_the_list_is_empty_and_null_for_who_reads_uncommitted(
    bench: Bench, read_committed: bool, expected: list[object] | None
) -> None:
    (told,) = bench.told(bench.item(0, 100), read_committed=read_committed)
    assert told.aborted_transactions == expected


def test_without_its_aborted_transactions_no_record_is_sent_and_its_segment_is_let_go(bench: Bench) -> None:
    bench.process.segment(0, suffix="txnindex").mkdir()  # cannot be read
    told, other = bench.told(
        bench.item(0, 100, flags=ABORTED), bench.item(1, 50, flags=ABORTED), read_committed=True
    )
    assert (told.error_code, told.records) == (STORAGE, b"")
    assert (other.error_code, len(other.records)) == (0, 50)
    assert len(bench.process.complaints) == 1
    assert bench.process.at_rest()


# Segments that are not there


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({LOG_START: 6}, OUT_OF_RANGE),  # deleted as too old
        ({LOG_START: 5}, MOVED),
        ({LOG_START: 6, SERVING_INCARNATION: 0}, MOVED),  # with its partition
    ],
)
def test_a_segment_that_is_gone_costs_its_partition_the_records_and_no_other(
    bench: Bench, words: dict[int, int], expected: int
) -> None:
    bench.process.segment(0).unlink()
    for word, value in words.items():
        bench.process.word(0, word, value)
    told, other = bench.told(bench.item(0, 100, offset=5), bench.item(1, 50))
    assert (told.error_code, told.records) == (expected, b"")
    assert (other.error_code, len(other.records)) == (0, 50)
    if expected == OUT_OF_RANGE:
        assert told.log_start_offset == 6, "where there is something to read"
    assert bench.process.complaints == []


def test_a_segment_that_the_host_does_not_let_us_read_is_a_storage_error_with_a_complaint(
    bench: Bench,
) -> None:
    segment = bench.process.segment(0)
    segment.unlink()
    segment.symlink_to(segment.name)
    told, other = bench.told(bench.item(0, 100), bench.item(1, 50))
    assert (told.error_code, told.records) == (STORAGE, b"")
    assert (other.error_code, len(other.records)) == (0, 50)
    (complaint,) = bench.process.complaints
    assert segment.name in complaint


def test_a_segment_that_was_replaced_since_its_owner_spoke_is_not_sent_and_no_error(bench: Bench) -> None:
    bench.process.word(0, FILES_VERSION, 2)
    before, after = bench.item(0, 100), bench.item(0, 80)
    after.files_version = 2
    assert [(one.error_code, one.records) for one in bench.told(before)] == [(0, b"")]
    assert [(one.error_code, len(one.records)) for one in bench.told(after)] == [(0, 80)]
    assert bench.process.complaints == []


def test_a_segment_that_is_removed_while_it_is_sent_stays_readable_and_is_closed_after(bench: Bench) -> None:
    bench.respond([bench.item(0, 100)])
    ((_, answer),) = bench.process.finished
    (fd,) = [each.file.fd for each in answer if isinstance(each, FilePiece)]
    bench.process.segment(0).unlink()
    bench.process.files.let_go_of_removed()
    (told,) = bench.process.told_partitions().values()
    assert told.records == bench.process.content[0][:100]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


# Who leads now

HINTS = [(1, LEADER_EPOCH), (1, LEADER_EPOCH), None]


@pytest.mark.parametrize(
    ("version", "leaders", "endpoints"),
    [(11, None, []), (12, HINTS, []), (15, HINTS, []), (16, HINTS, [(1, "right", 9093)])],
)
def test_who_asked_a_former_leader_is_told_who_leads_now_and_where_it_listens_once(
    bench: Bench, version: int, leaders: list[object] | None, endpoints: list[tuple[int, str, int]]
) -> None:
    for partition in (0, 1):
        bench.process.lead(partition, 1)
    items = [bench.item(0, error=int(MOVED)), bench.item(1, error=int(MOVED)), bench.item(2)]
    if version >= 13:
        for item in items:
            item.wanted.topic = bench.process.topic_ids["t"]
    bench.respond(items, version=version)
    response = bench.process.response()
    told = list(partitions_of(response).values())
    if leaders is not None:
        hints = [one.current_leader for one in told]
        assert [hint and (hint.leader_id, hint.leader_epoch) for hint in hints] == leaders
    if version >= 16:
        assert [(each.node_id, each.host, each.port) for each in response.node_endpoints] == endpoints
    assert [one.error_code for one in told] == [MOVED, MOVED, 0]


def test_who_comes_with_an_old_leader_epoch_is_told_of_the_new_one(bench: Bench) -> None:
    item = bench.item(0, error=int(ErrorCode.FENCED_LEADER_EPOCH))
    item.wanted.topic = bench.process.topic_ids["t"]
    bench.respond([item], version=16)
    response = bench.process.response()
    (told,) = partitions_of(response).values()
    assert told.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert (told.current_leader.leader_id, told.current_leader.leader_epoch) == (0, LEADER_EPOCH)
    assert [each.node_id for each in response.node_endpoints] == [0]


def test_where_nobody_leads_no_hint_is_given(bench: Bench) -> None:
    item = bench.item(0, error=int(MOVED))
    item.wanted.topic = bench.process.topic_ids["t"]
    bench.process.lead(0, NO_LEADER)
    bench.respond([item], version=16)
    response = bench.process.response()
    (told,) = partitions_of(response).values()
    assert (told.error_code, told.current_leader) == (MOVED, None)
    assert not response.node_endpoints
