from __future__ import annotations

import pytest

from appliance.ipc.doorbell import Doorbell
from appliance.ipc.process_table import (
    BUSY_NS,
    CONNECTIONS,
    COUNTER_0,
    COUNTERS,
    IDLE_NS,
    REQUESTS,
    ROW_BYTES,
    SLEEPING,
    STATE,
    STRIDE_BYTES,
    ProcessState,
    ProcessTable,
    own_row,
    process_table_size_bytes,
    row_position,
)
from appliance.ipc.shared_memory import PAGE_BYTES, Region

from .conftest import Fork, MakeRegion


def table(rows: int = 3) -> ProcessTable:
    return ProcessTable(memoryview(bytearray(process_table_size_bytes(rows))))


def test_zeros_are_processes_that_have_not_started() -> None:
    snapshots = table(3).snapshot()
    assert [(s.index, s.pid, s.state) for s in snapshots] == [(i, 0, ProcessState.ABSENT) for i in range(3)]


def test_a_row_is_read_by_another_process_while_its_owner_runs(make_region: MakeRegion, fork: Fork) -> None:
    rows = ProcessTable(make_region(process_table_size_bytes(2)).view)

    def live() -> None:
        row = rows.row(1)
        row.start(77, 3, now_ms=5_000, now_ns=9)
        row.set_state(ProcessState.RUNNING)
        row.cells[REQUESTS] += 12
        row.cells[CONNECTIONS] = 4
        row.cells[COUNTER_0 + COUNTERS - 1] = 8
        row.set_queue_depth(30)
        row.set_queue_depth(2)

    assert fork(live).join() == 0
    seen = rows.snapshot()[1]
    assert (seen.pid, seen.generation, seen.state, seen.started_ms) == (77, 3, ProcessState.RUNNING, 5_000)
    assert (seen.requests, seen.connections, seen.queue_depth, seen.queue_depth_max) == (12, 4, 2, 30)
    assert seen.counters == (*[0] * (COUNTERS - 1), 8)


def test_a_new_life_clears_what_the_last_one_left() -> None:
    row = table().row(0)
    row.start(1, 1, now_ms=1, now_ns=1)
    for word in range(8, 32):
        row.cells[word] = 99
    row.start(2, 2, now_ms=2, now_ns=2)
    seen = row.snapshot()
    assert (seen.pid, seen.generation, seen.state) == (2, 2, ProcessState.STARTING)
    assert seen.requests == seen.errors == seen.connections == 0
    assert not any(seen.counters)


def test_neighbouring_rows_do_not_touch() -> None:
    rows = table(3)
    for word in range(ROW_BYTES // 8):
        rows.row(1).cells[word] = -1
    assert rows.row(0).snapshot().pid == rows.row(2).snapshot().pid == 0


def test_a_process_can_write_its_own_row_and_no_other(make_region: MakeRegion) -> None:
    assert STRIDE_BYTES == PAGE_BYTES, "a page is the least that can be mapped writable"
    name = make_region(process_table_size_bytes(3)).name
    everybody = ProcessTable(Region.open(name, writable=False).view)
    page = Region.open_page(name, row_position(1))
    own_row(page.view, 1).start(77, 3, now_ms=5_000, now_ns=9)
    assert [row.pid for row in everybody.snapshot()] == [0, 77, 0]
    for index in range(3):
        with pytest.raises(TypeError, match="read-only"):
            everybody.row(index).cells[SLEEPING] = 1
    assert page.size_bytes == PAGE_BYTES


def test_the_sleeping_cell_is_the_doorbells_flag() -> None:
    row = table().row(2)
    Doorbell(0, row.sleeping_cell).announce_sleep()
    assert row.cells[SLEEPING] == 1
    assert row.snapshot().sleeping


def test_a_word_nobody_writes_there_is_not_an_error_to_look_at() -> None:
    row = table().row(0)
    row.cells[STATE] = 42
    assert row.snapshot().state is ProcessState.ABSENT


@pytest.mark.parametrize(
    ("sleeping", "busy_ns", "idle_ns", "share"),
    [
        (True, 100, 100, 0.9),
        (False, 100, 100, 0.1),
        (False, 0, 1000, 1.0),
        (True, 0, 0, 1.0),
        (False, 1000, 0, 0.0),
    ],
)
def test_idle_share_counts_the_time_since_the_last_wake(
    sleeping: bool, busy_ns: int, idle_ns: int, share: float
) -> None:
    row = table().row(0)
    row.start(1, 1, now_ms=1, now_ns=5_000)
    row.cells[BUSY_NS], row.cells[IDLE_NS], row.cells[SLEEPING] = busy_ns, idle_ns, sleeping
    assert row.snapshot().idle_share(6_000) == pytest.approx(share)


def test_a_row_beyond_the_table_is_refused() -> None:
    with pytest.raises(IndexError):
        table(3).row(3)
    with pytest.raises(IndexError):
        table(3).row(-1)
    with pytest.raises(ValueError, match="rows"):
        ProcessTable(memoryview(bytearray(100)))
