"""Each anomaly is found in a history that has it, and nothing in one that has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checker.anomalies import find
from tests.checker.backlog_readers import ALONE_S, KINDS, TornRecords, may_read, records_of
from tests.checker.history import NOT_KNOWN, History, Reading, token_of
from tests.checker.twice import told_twice
from tests.checker.values import key_of, token_in, value_of
from tests.log.batches import batch_of

PARTITIONS = 2


def sound(records: int = 8) -> History:
    """Two producers took turns; two readers saw everything."""
    history = History.empty(partitions=PARTITIONS, producers=2, readers=2)
    offsets = [0] * PARTITIONS
    for sequence in range(records):
        partition = sequence % PARTITIONS
        for producer in range(2):
            history.acknowledged[producer].append(offsets[partition])
            for reading in (history.log[partition], *(each[partition] for each in history.readings)):
                reading.add(offsets[partition], token_of(producer, sequence))
            offsets[partition] += 1
    return history


def drop(reading: Reading, index: int) -> None:
    del reading.offsets[index]
    del reading.tokens[index]


def everywhere(history: History, partition: int) -> list[Reading]:
    return [history.log[partition], *(readings[partition] for readings in history.readings)]


def lose(history: History) -> None:
    for reading in everywhere(history, 1):
        drop(reading, 2)


def move(history: History) -> None:
    history.acknowledged[0][0] = 5


def duplicate(history: History) -> None:
    for reading in everywhere(history, 0):
        reading.add(8, reading.tokens[0])


def reorder(history: History) -> None:
    history.acknowledged[0][0], history.acknowledged[0][2] = (
        history.acknowledged[0][2],
        history.acknowledged[0][0],
    )
    for reading in everywhere(history, 0):
        reading.tokens[0], reading.tokens[2] = reading.tokens[2], reading.tokens[0]


def invent(history: History) -> None:
    for reading in everywhere(history, 0):
        reading.add(8, token_of(1, 1000))


def disagree(history: History) -> None:
    history.readings[1][0].tokens[3] = token_of(0, 0)


def vanish(history: History) -> None:
    history.acknowledged[1][7] = NOT_KNOWN
    drop(history.log[1], 7)


def go_back(history: History) -> None:
    reading = history.readings[0][0]
    reading.add(reading.offsets[2], reading.tokens[2])


def pass_over(history: History) -> None:
    drop(history.readings[0][1], 4)


def never_arrive(history: History) -> None:
    drop(history.readings[1][1], 7)


def test_sound_history_has_no_anomaly() -> None:
    assert find(sound()) == []


@pytest.mark.parametrize(
    ("spoil", "kinds"),
    [
        (lose, {"lost"}),
        (move, {"moved"}),
        (duplicate, {"duplicated"}),
        (reorder, {"reordered"}),
        (invent, {"phantom"}),
        (disagree, {"inconsistent"}),
        (vanish, {"vanished"}),
        (go_back, {"went back"}),
        (pass_over, {"unseen"}),
        (never_arrive, {"unseen"}),
    ],
)
def test_each_anomaly_is_found_and_called_by_its_name(
    spoil: Callable[[History], None], kinds: set[str]
) -> None:
    history = sound()
    spoil(history)
    assert {anomaly.kind for anomaly in find(history)} == kinds


def test_record_of_unknown_fate_may_be_there_or_not() -> None:
    there = sound()
    there.acknowledged[1][7] = NOT_KNOWN
    assert find(there) == []
    not_there = sound()
    not_there.acknowledged[1][7] = NOT_KNOWN
    for reading in everywhere(not_there, 1):
        drop(reading, 7)
    assert find(not_there) == []


@given(st.data())
def test_any_lost_record_of_any_history_is_found(data: st.DataObject) -> None:
    history = sound(data.draw(st.integers(2, 40)))
    partition = data.draw(st.integers(0, PARTITIONS - 1))
    index = data.draw(st.integers(0, len(history.log[partition].offsets) - 1))
    for reading in everywhere(history, partition):
        drop(reading, index)
    assert {anomaly.kind for anomaly in find(history)} == {"lost"}


def test_a_record_that_is_there_twice_is_told_with_its_numbers(tmp_path: Path) -> None:
    directory = tmp_path / "slot-1" / "t-0"
    directory.mkdir(parents=True)
    batches = [
        batch_of([b"0", b"1"], producer_id=5, producer_epoch=0, base_sequence=70),
        batch_of([b"1"], producer_id=5, producer_epoch=1, base_sequence=0, base_offset=2),
    ]
    (directory / "00000000000000000000.log").write_bytes(b"".join(batches) + bytes(100))
    history = History.empty(partitions=1, producers=1, readers=0)
    for offset, token in enumerate((0, 1, 1)):
        history.log[0].add(offset, token)
    assert list(told_twice(history, tmp_path, "t")) == [
        "producer 0's record 1 in partition 0: offset 1 is epoch 0, sequence 71 and offset 2 is epoch 1, sequence 0"
    ]


def reread(history: History, *, missing: frozenset[int] = frozenset()) -> None:
    """A reader of the backlog goes through all logs, without the offsets that are `missing`."""
    for partition, log in enumerate(history.log):
        before = -1
        for offset, token in zip(log.offsets, log.tokens, strict=True):
            if offset not in missing:
                history.backlogs[partition].add("again", offset, token, before=before)
                before = offset


def compacted(history: History) -> None:
    """All but the last record of each key is gone from partition 1."""
    history.keys = 2
    log = history.log[1]
    newest = {
        key_of(token, partitions=PARTITIONS, keys=2): offset
        for offset, token in zip(log.offsets, log.tokens, strict=True)
    }
    for index in reversed(range(len(log.offsets))):
        if log.offsets[index] not in newest.values():
            drop(log, index)


def without_readers(records: int = 8) -> History:
    history = sound(records)
    history.readings.clear()
    return history


def test_who_begins_again_sees_the_same() -> None:
    history = sound()
    reread(history)
    reread(history)
    assert find(history) == []


def test_what_a_reader_of_the_backlog_passes_is_found() -> None:
    history = sound()
    reread(history, missing=frozenset({2, 3}))
    assert {anomaly.kind for anomaly in find(history)} == {"unseen"}


@pytest.mark.parametrize(
    "value", [b"", None, bytes(40), value_of("t", 7)[:-1], value_of("t", 7) + b"x", b"7", b"x y"]
)
def test_a_value_that_nobody_sent_is_no_token(value: bytes | None) -> None:
    assert token_in("t", value) is None


@given(st.integers(0, 3), st.integers(0, 1 << 39), st.booleans())
def test_a_value_is_known_by_its_token(producer: int, sequence: int, is_long: bool) -> None:
    token = token_of(producer, sequence)
    value = value_of("t", token, is_long=is_long)
    assert token_in("t", value) == token
    assert (
        len(value) == 5 or token_in("t", value[:-1] + bytes([value[-1] ^ 1])) is None
    )  # nothing behind its digits


@pytest.mark.parametrize(
    ("offset", "token", "before", "kind"),
    [
        (3, None, 2, "torn"),
        (2, token_of(0, 2), 2, "went back"),
        (2, token_of(1, 4), 1, "inconsistent"),
        (8, token_of(0, 9), 7, "vanished"),
    ],
)
def test_what_a_reader_of_the_backlog_may_not_be_given(
    offset: int, token: int | None, before: int, kind: str
) -> None:
    history = sound()
    reread(history)
    history.backlogs[0].add("again", offset, token, before=before)
    assert {anomaly.kind for anomaly in find(history)} == {kind}


def test_what_was_deleted_before_the_logs_start_may_be_missing() -> None:
    history = without_readers()
    reread(history)
    reread(history, missing=frozenset({0, 1, 2}))
    for index in (2, 1, 0):
        drop(history.log[1], index)
    assert {anomaly.kind for anomaly in find(history)} == {"lost", "vanished", "unseen"}
    history.starts[:] = [3, 3]
    assert find(history) == []


def test_where_a_log_began_it_need_not_begin_at_the_end() -> None:
    history = sound()
    reread(history)
    backlog = history.backlogs[1]
    backlog.add("again", 3, token_of(1, 3), before=-1, may_have_passed=True)
    assert find(history) == []
    backlog.add("again", 3, token_of(1, 3), before=4, may_have_passed=True)
    assert {anomaly.kind for anomaly in find(history)} == {"went back"}


def test_compaction_may_take_what_has_a_later_record_of_its_key_and_nothing_else() -> None:
    history = without_readers()
    reread(history)
    compacted(history)
    reread(history)
    assert find(history) == []
    history.log[1] = sound().log[1]  # of another replica, which is not compacted yet
    assert find(history) == []
    compacted(history)
    drop(history.log[1], 0)
    assert {anomaly.kind for anomaly in find(history)} == {"lost", "unseen", "vanished"}


def batches_from(offset: int) -> list[bytes]:
    return [bytes(batch_of([b"a", b"b"], base_offset=offset + 2 * number)) for number in range(4)]


def test_whole_batches_and_a_cut_one_are_read() -> None:
    first, second, third, _ = batches_from(6)
    for length in (0, 3, 30, 70):
        records, following = records_of(first + second + third[:length], offset=7)
        assert [offset for offset, _ in records] == [7, 8, 9]
        assert following == 10


def zeros_behind(batches: list[bytes]) -> bytes:
    return b"".join(batches) + bytes(200)


def few_zeros_behind(batches: list[bytes]) -> bytes:
    return b"".join(batches) + bytes(20)


def zeros_within(batches: list[bytes]) -> bytes:
    return batches[0] + batches[1][:-4] + bytes(4) + batches[2]


def another_place(batches: list[bytes]) -> bytes:
    return batches[0] + batches[2] + batches[1]


def nothing_whole(batches: list[bytes]) -> bytes:
    return batches[0][:-1]


@pytest.mark.parametrize(
    "spoil", [zeros_behind, few_zeros_behind, zeros_within, another_place, nothing_whole]
)
def test_bytes_that_are_no_records_are_told(spoil: Callable[[list[bytes]], bytes]) -> None:
    with pytest.raises(TornRecords):
        records_of(spoil(batches_from(6)), offset=6)


def test_bytes_from_before_the_offset_are_told() -> None:
    with pytest.raises(TornRecords):
        records_of(b"".join(batches_from(6)), offset=8)


def test_each_reader_has_its_time_alone() -> None:
    readers = range(len(KINDS))
    times = [[each for each in readers if may_read(each, turn * ALONE_S)] for turn in range(2 * len(KINDS))]
    assert times[::2] == [list(readers)] * len(KINDS)
    assert times[1::2] == [[each] for each in readers]
