"""Amounts that several processes add up: against a plain model, and with processes that are killed."""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict
from pathlib import Path

import pytest

from appliance.ipc import rate_samples
from appliance.ipc.rate_samples import (
    ROWS,
    WAYS,
    WINDOW_S,
    Key,
    RateSamples,
    SampledRate,
    key_of,
    samples_size_bytes,
)
from appliance.ipc.shared_memory import Region

PARTS = 3


def views(parts: int = PARTS) -> list[RateSamples]:
    memory = memoryview(bytearray(samples_size_bytes(parts)))
    return [RateSamples(memory, part) for part in range(parts)]


def keys(count: int, *, seed: int = 1) -> list[Key]:
    chance = random.Random(seed)
    return [key_of(chance.randbytes(16)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_every_process_sees_the_sum_of_all(seed: int) -> None:
    chance = random.Random(seed)
    wanted = keys(40, seed=seed)
    processes = views()
    rates: list[dict[Key, SampledRate]] = [{key: each.sampled(key) for key in wanted} for each in processes]
    counted: dict[Key, dict[int, int]] = {key: defaultdict(int) for key in wanted}
    now_s = 1_000
    for _ in range(3_000):
        now_s += chance.choice((0, 0, 0, 1, 1, 5, 40 if chance.random() < 0.05 else 0))
        key, part = chance.choice(wanted), chance.randrange(PARTS)
        if chance.random() < 0.05:  # a process died, and its next life knows nothing
            processes[part] = RateSamples(processes[part].cells.cast("B"), part)
            rates[part] = {each: processes[part].sampled(each) for each in wanted}
        amount = chance.randrange(1, 1_000_000)
        rates[part][key].add(amount, now_s)
        counted[key][now_s] += amount
        asked, who = chance.choice(wanted), chance.randrange(PARTS)
        model = sum(what for second, what in counted[asked].items() if now_s - WINDOW_S < second <= now_s)
        assert rates[who][asked].total(now_s) == model
        processes[part].check()
    assert not any(each.evicted for each in processes)


def test_a_budget_that_is_not_used_makes_room_and_one_that_is_used_does_not() -> None:
    process = views(1)[0]
    many = keys(ROWS * 3 // 100 * 100)
    for second, start in enumerate(range(0, len(many), 100)):
        for key in many[start : start + 100]:
            process.sampled(key).add(7, second * WINDOW_S)
    process.check()
    assert not process.evicted
    last_s = (len(many) - 1) // 100 * WINDOW_S
    assert [process.sampled(key).total(last_s) for key in many[-100:]] == [7] * 100


def test_a_full_bucket_loses_the_budget_that_was_used_longest_ago() -> None:
    process = views(1)[0]
    first = keys(1)[0][0]
    alike = [(first, number) for number in range(WAYS + 1)]
    for second, key in enumerate(alike):
        process.sampled(key).add(1, 100 + second)
    assert process.evicted == 1
    assert [process.sampled(key).total(100 + WAYS) for key in alike] == [0] + [1] * WAYS
    process.check()


def test_a_handle_whose_row_was_lost_counts_on_in_another() -> None:
    process = views(1)[0]
    first = keys(1)[0][0]
    rate = process.sampled((first, -1))
    rate.add(5, 100)
    for number in range(WAYS):
        process.sampled((first, number)).add(1, 101)
    assert rate.total(101) == 0
    rate.add(3, 102)
    assert rate.total(102) == 3


def test_what_a_killed_process_counted_leaves_the_window(tmp_path: Path) -> None:
    region = Region.create(f"{tmp_path}/samples", samples_size_bytes(2))
    key = keys(1)[0]
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        theirs = RateSamples(Region.open(region.name).view, 1).sampled(key)
        second = 0
        while True:
            theirs.add(1_000, 50)
            second += 1
            if second == 100:
                os.write(writing, b"x")
    os.read(reading, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    ours = RateSamples(region.view, 0).sampled(key)
    assert ours.total(50) >= 100_000
    assert ours.total(50 + WINDOW_S - 1) >= 100_000
    assert ours.total(50 + WINDOW_S) == 0
    region.close()


def test_a_row_of_another_budget_is_never_taken_for_ours() -> None:
    ours, theirs = views(2)
    first = keys(1)[0][0]
    rate = ours.sampled((first, 1))
    theirs.sampled((first, 1)).add(10, 100)
    assert rate.total(100) == 10
    for number in range(2, 2 + WAYS):
        theirs.sampled((first, number)).add(1_000, 120)
    assert rate.total(120) == 0
    theirs.sampled((first, 1)).add(4, 121)
    assert rate.total(121) == 4


def test_the_layout_is_as_drawn() -> None:
    assert rate_samples._END_PAIR * 8 == 224
    assert samples_size_bytes(1) == 256 + ROWS * 256
