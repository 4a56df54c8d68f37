"""Each anomaly is found in a history that has it, and nothing in one that has none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.checker.anomalies import find
from tests.checker.history import NOT_KNOWN, History, Reading, token_of
from tests.checker.twice import told_twice
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
