from __future__ import annotations

import os
import signal

import pytest

from appliance.ipc.errors import WriterGone
from appliance.ipc.seqlock import SequenceLock

from .conftest import Fork, MakeRegion


def cells(words: int = 4) -> memoryview:
    return memoryview(bytearray(words * 8)).cast("q")


def test_zeros_are_a_lock_at_rest() -> None:
    words = cells()
    lock = SequenceLock(words, 0)
    assert lock.version() == 0
    assert lock.read(lambda: words[1]) == 0


def test_each_publication_counts_one_version() -> None:
    lock = SequenceLock(cells(), 0)
    for expected in (1, 2, 3):
        lock.begin()
        lock.end()
        assert lock.version() == expected


def test_a_reader_never_sees_half_of_a_write(make_region: MakeRegion, fork: Fork) -> None:
    words = make_region(4096).view.cast("q")
    lock = SequenceLock(words, 0)
    writes = 60_000

    def write() -> None:
        for number in range(1, writes + 1):
            lock.begin()
            for word in range(8, 24):
                words[word] = number
            lock.end()

    child = fork(write)
    last = 0
    while last < writes:
        # The writer may lose its processor in the middle of a write, for as long as the machine likes.
        values = lock.read(words[8:24].tolist, patience_ms=60_000)
        assert len(set(values)) == 1
        assert values[0] >= last
        last = values[0]
    assert child.join() == 0


def test_a_writer_killed_inside_is_reported_and_its_successor_repairs(
    make_region: MakeRegion, fork: Fork
) -> None:
    words = make_region(4096).view.cast("q")
    lock = SequenceLock(words, 0)

    def die_inside() -> None:
        lock.begin()
        words[8] = 1
        os.kill(os.getpid(), signal.SIGKILL)

    assert fork(die_inside).join() == -signal.SIGKILL
    with pytest.raises(WriterGone):
        lock.read(lambda: words[8], patience_ms=5)
    lock.begin()
    words[8] = words[9] = 2
    lock.end()
    assert lock.read(lambda: (words[8], words[9])) == (2, 2)


def test_an_error_on_half_written_values_is_retried_and_a_true_one_passed_on() -> None:
    words = cells()
    lock = SequenceLock(words, 0)
    attempts = 0

    def trip_once() -> int:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            lock.begin()
            lock.end()
            raise IndexError("half-written")
        return 5

    assert lock.read(trip_once) == 5
    assert attempts == 2

    def always() -> int:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        lock.read(always)
