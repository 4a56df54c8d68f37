"""A stream's positions: pinned, bounded, replayed to the letter, and never past something lost without saying so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.log.config import LogSettings
from spark_connector import directory
from spark_connector.admission import Patience, admitted
from spark_connector.errors import DataLost
from spark_connector.options import read_options
from spark_connector.record_batches import record_batches
from spark_connector.stream_offsets import Mark, StreamOffsets, UnknownPosition, decode_offsets
from spark_connector.stream_query import StreamQuery
from tests.log.batches import NOW_MS, batch_of
from tests.spark.logs import filled, make_log, publish


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def query(home: Path, clock: Clock | None = None, **options: str) -> StreamQuery:
    given = {"path": str(home), "subscribe": "orders", "startingOffsets": "earliest", **options}
    return StreamQuery(read_options(given, streaming=True), clock=clock or Clock())


def offsets(position: StreamOffsets) -> list[int]:
    return [position.marks[name].offset for name in position]


def read(found: StreamQuery, start: StreamOffsets, end: StreamOffsets) -> list[int]:
    """Offsets of the records between two positions."""
    return [
        offset
        for task in found.tasks(start, end)
        for batch in record_batches(task, ("offset",))
        for offset in batch.column("offset").to_pylist()
    ]


def test_a_position_comes_back_as_it_went() -> None:
    position = StreamOffsets(
        "lease", {"b": "id", "a": ""}, {("b", 10): Mark(5, 2), ("b", 9): Mark(0), ("a", 0): Mark(1)}
    )
    text = json.dumps(position.encode())
    assert decode_offsets(json.loads(text)) == position
    assert json.dumps(decode_offsets(json.loads(text)).encode()) == text
    assert list(position) == [("a", 0), ("b", 9), ("b", 10)]


@pytest.mark.parametrize(
    "found", [{}, {"version": 2}, {"orders": {"0": 5}}, {"version": 1, "lease": "", "topics": 3}]
)
def test_a_position_of_something_else_is_refused(found: dict[str, object]) -> None:
    with pytest.raises(UnknownPosition):
        decode_offsets(found)


@given(
    st.dictionaries(st.tuples(st.text(max_size=1), st.integers(0, 3)), st.integers(0, 100)),
    st.integers(1, 200),
)
def test_a_limit_is_kept_and_leaves_nobody_out(available: dict[tuple[str, int], int], most: int) -> None:
    taken = admitted(available, most)
    assert sum(taken.values()) <= most
    assert all(0 < taken[name] <= available[name] for name in taken)
    total = sum(available.values())
    assert bool(taken) == bool(total)
    if most >= total:
        assert sum(taken.values()) == total
    left = dict(available)
    for _ in range(total):
        for name, count in admitted(left, most).items():
            left[name] -= count
    assert not any(left.values())


def test_patience_ends_with_enough_or_with_time() -> None:
    patience = Patience(10, 1000)
    assert patience.lets_pass(1, now_ms=0)
    assert not patience.lets_pass(9, now_ms=500)
    assert patience.lets_pass(10, now_ms=600)
    assert not patience.lets_pass(9, now_ms=1600)
    assert patience.lets_pass(9, now_ms=1601)
    assert not patience.lets_pass(0, now_ms=99_999)


def test_micro_batches_are_bounded_and_read_every_record_once(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    found = query(tmp_path)
    position, records = found.initial(), []
    for _ in range(50):
        end = found.next(position, most=17)
        if end == position:
            break
        here = read(found, position, end)
        assert 0 < len(here) <= 17
        # A replay, by a query that has started again, reads the same.
        again = decode_offsets(json.loads(json.dumps(position.encode())))
        assert read(query(tmp_path), again, decode_offsets(end.encode())) == here
        records += here
        position = end
    assert records == list(range(log.log_end_offset))
    assert found.next(position) == position
    assert found.tasks(position, position) == []


def test_a_query_that_is_to_end_ends_at_what_was_there(tmp_path: Path) -> None:
    log, state = filled(tmp_path)
    found = query(tmp_path)
    start = found.initial()
    until = found.ends(start)
    log.append(batch_of([b"later"], timestamp_ms=NOW_MS), leader_epoch=0)
    publish(log, state)
    other, other_state = make_log(tmp_path, "orders-1")
    other.append(batch_of([b"other"], timestamp_ms=NOW_MS), leader_epoch=0)
    publish(other, other_state)
    assert offsets(found.next(start, until=until)) == [log.log_end_offset - 1]
    assert offsets(found.next(start)) == [log.log_end_offset, 1]


def test_a_query_waits_for_enough(tmp_path: Path) -> None:
    clock = Clock()
    log, state = filled(tmp_path, batches=10)
    found = query(tmp_path, clock, minOffsetsPerTrigger="10", maxTriggerDelay="60s")
    position = found.next(found.initial(), waits=True)
    assert offsets(position) == [30]
    log.append(batch_of([b"a", b"b"], timestamp_ms=NOW_MS), leader_epoch=0)
    publish(log, state)
    assert found.next(position, waits=True) == position
    clock.now_s += 61
    assert offsets(found.next(position, waits=True)) == [32]


def test_a_stream_holds_a_lease_that_moves_and_goes_on_after_a_new_start(tmp_path: Path) -> None:
    clock = Clock()
    filled(tmp_path)
    found = query(tmp_path, clock)
    start = found.initial()
    readers = tmp_path / "orders-0" / ".readers"
    (lease,) = readers.iterdir()
    assert start.lease in lease.name
    held = lease.read_bytes()
    end = found.next(start, most=20)
    found.done(end)
    assert lease.read_bytes() == held, "a lease is not rewritten with every micro-batch"
    clock.now_s += 10
    found.done(end)
    assert lease.read_bytes() != held
    query(tmp_path).next(end)
    assert [each.name for each in readers.iterdir()] == [lease.name]


def test_a_new_partition_is_read_from_its_begin(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    found = query(tmp_path)
    position = found.next(found.initial())
    other, state = make_log(tmp_path, "orders-1")
    other.append(batch_of([b"a", b"b"], timestamp_ms=NOW_MS), leader_epoch=0)
    publish(other, state)
    end = found.next(position)
    assert offsets(end) == [log.log_end_offset, 2]
    assert read(found, position, end) == [0, 1]


def test_a_partition_that_nobody_vouches_for_is_waited_for(tmp_path: Path) -> None:
    log, state = filled(tmp_path)
    found = query(tmp_path)
    position = found.next(found.initial())
    (log.directory / ".state").rename(log.directory / "aside")
    assert found.next(position) == position
    (log.directory / "aside").rename(log.directory / ".state")
    log.append(batch_of([b"later"], timestamp_ms=NOW_MS), leader_epoch=0)
    publish(log, state)
    assert offsets(found.next(position)) == [log.log_end_offset]


def loses(home: Path, position: StreamOffsets, saying: str) -> StreamOffsets:
    """Asserts that a stream at `position` fails, and says why; where it goes on when it may."""
    with pytest.raises(DataLost, match=saying):
        query(home).next(position)
    lenient = query(home, failOnDataLoss="false")
    return lenient.next(position)


def test_records_deleted_before_they_were_read_are_told(tmp_path: Path) -> None:
    log, state = filled(tmp_path)
    start = query(tmp_path).initial()
    log.advance_start(50)
    publish(log, state)
    end = loses(tmp_path, start, "begins at 50")
    assert read(query(tmp_path, failOnDataLoss="false"), start, end) == list(range(50, log.log_end_offset))


def test_a_topic_made_anew_is_told_though_its_end_has_passed(tmp_path: Path) -> None:
    filled(tmp_path, batches=5)
    position = query(tmp_path).next(query(tmp_path).initial())
    known = position.encode()
    known["topics"]["orders"]["id"] = "00000000-0000-0000-0000-0000000000ff"
    shutil.rmtree(tmp_path)
    log, _ = filled(tmp_path, batches=20)
    old = decode_offsets(known)
    end = loses(tmp_path, old, "created again")
    assert read(query(tmp_path, failOnDataLoss="false"), old, end) == list(range(log.log_end_offset))


def test_a_log_that_was_cut_and_has_grown_again_is_told(tmp_path: Path) -> None:
    log, state = make_log(tmp_path, settings=LogSettings())
    for number in range(10):
        log.append(batch_of([b"old %d" % number], timestamp_ms=NOW_MS), leader_epoch=3)
    publish(log, state, leader_epoch=3)
    position = query(tmp_path).next(query(tmp_path).initial())
    assert position.marks["orders", 0] == Mark(10, 3)
    log.truncate_to(6)
    for number in range(8):
        log.append(batch_of([b"new %d" % number], timestamp_ms=NOW_MS), leader_epoch=4)
    publish(log, state, leader_epoch=4)
    end = loses(tmp_path, position, "epoch 3 ended at 6")
    assert read(query(tmp_path, failOnDataLoss="false"), position, end) == list(range(6, 14))


def test_a_followers_copy_that_lags_is_waited_for_and_is_no_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_LEADER_PATIENCE_S", 0.01)
    filled(tmp_path / "slot-0", batches=10)
    (tmp_path / "slot-1").mkdir()
    (tmp_path / "slot-1" / "meta.properties").write_text("version=1\n")
    found = query(tmp_path)
    end = found.next(found.initial())
    shutil.rmtree(tmp_path / "slot-0" / "orders-0")
    log, state_file = make_log(tmp_path / "slot-1")
    for number in range(9):
        log.append(batch_of([b"value-%d" % number] * 3), leader_epoch=0)
    publish(log, state_file, leads=False)
    assert found.next(end) == end
    log.append(batch_of([b"value-9"] * 3), leader_epoch=0)
    log.append(batch_of([b"new"]), leader_epoch=0)
    publish(log, state_file)
    assert read(found, end, found.next(end)) == [30]


def test_a_partition_that_is_gone_is_told(tmp_path: Path) -> None:
    filled(tmp_path)
    make_and_publish(tmp_path, "orders-1")
    position = query(tmp_path).next(query(tmp_path).initial())
    shutil.rmtree(tmp_path / "orders-1")
    end = loses(tmp_path, position, "orders-1 is gone")
    assert list(end) == [("orders", 0)]


def test_a_topic_that_is_missing_hides_nothing_of_the_others(tmp_path: Path) -> None:
    log, _ = filled(tmp_path)
    make_and_publish(tmp_path, "bills-0")
    both = {"subscribe": "bills,orders", "failOnDataLoss": "false"}
    position = query(tmp_path, None, **both).next(query(tmp_path, None, **both).initial())
    shutil.rmtree(tmp_path / "bills-0")
    make_and_publish(tmp_path, "orders-1")
    end = query(tmp_path, None, **both).next(position)
    assert dict(end.marks).keys() == {("orders", 0), ("orders", 1)}
    assert offsets(end) == [log.log_end_offset, 1]


@pytest.mark.parametrize(
    "asked",
    [{"subscribe": "bills"}, {"subscribe": "", "subscribePattern": "b.*"}, {"assign": '{"bills": [0]}'}],
)
def test_what_is_not_asked_for_any_more_is_told_and_not_read(tmp_path: Path, asked: dict[str, str]) -> None:
    log, state = filled(tmp_path)
    make_and_publish(tmp_path, "bills-0")
    position = query(tmp_path).next(query(tmp_path).initial())
    log.append(batch_of([b"later"], timestamp_ms=NOW_MS), leader_epoch=0)
    publish(log, state)

    def changed(**more: str) -> StreamQuery:
        given = {"path": str(tmp_path), "startingOffsets": "earliest", **asked, **more}
        given = {name: text for name, text in given.items() if text}
        return StreamQuery(read_options(given, streaming=True), clock=Clock())

    with pytest.raises(DataLost, match=r"orders-0 was read up to .* not asked for any more"):
        changed().next(position)
    assert list(changed(failOnDataLoss="false").next(position)) == [("bills", 0)]


def make_and_publish(home: Path, name: str) -> None:
    log, state = make_log(home, name)
    log.append(batch_of([b"a"], timestamp_ms=NOW_MS), leader_epoch=0)
    publish(log, state)
