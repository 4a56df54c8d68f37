"""What a process counts outlives it: totals over all lives of a process never fall."""

from __future__ import annotations

from appliance.ipc.process_table import (
    COUNTER_0,
    GENERATION,
    REQUESTS,
    STRIDE_BYTES,
    ProcessTable,
    own_row,
    process_table_size_bytes,
    row_position,
)


class Recorder:
    """A page whose stores are counted, so that a test can end a process between any two of them."""

    def __init__(self, page: memoryview, stores: int) -> None:
        self.page = page
        self.left = stores

    def __getitem__(self, index: int) -> int:
        return self.page[index]

    def __setitem__(self, index: int, value: int) -> None:
        if not self.left:
            raise KeyboardInterrupt
        self.left -= 1
        self.page[index] = value


def begin(memory: bytearray, generation: int, *, stores: int = 10**6) -> None:
    """A life of process 1 begins, and ends after so many stores."""
    page = memoryview(memory)[row_position(1) : row_position(1) + STRIDE_BYTES]
    row = own_row(page, 1)
    recorder = Recorder(page.cast("q"), stores)
    row._page = row.cells = recorder  # type: ignore[assignment]
    row.start(4711, generation, now_ms=1, now_ns=1)


def count(memory: bytearray, amount: int) -> None:
    cells = memoryview(memory).cast("q")[row_position(1) // 8 :]
    cells[REQUESTS] += amount
    cells[COUNTER_0] += 2 * amount


def test_a_total_is_the_sum_of_all_lives() -> None:
    memory = bytearray(process_table_size_bytes(3))
    table = ProcessTable(memoryview(memory))
    assert table.generation(1) == 0
    for generation in range(1, 5):
        begin(memory, generation)
        assert table.totals(1)[REQUESTS] == 10 * (generation - 1)
        count(memory, 10)
        assert (table.totals(1)[REQUESTS], table.totals(1)[COUNTER_0]) == (10 * generation, 20 * generation)
        assert table.row(1).snapshot().requests == 10
        assert table.generation(1) == generation
    assert table.totals(0)[REQUESTS] == table.totals(2)[REQUESTS] == 0


def test_no_total_changes_wherever_a_process_dies_at_its_start() -> None:
    stores = 0
    while True:
        memory = bytearray(process_table_size_bytes(3))
        table = ProcessTable(memoryview(memory))
        begin(memory, 1)
        count(memory, 10)
        begin(memory, 2)
        count(memory, 7)
        try:
            begin(memory, 3, stores=stores)
        except KeyboardInterrupt:
            assert table.totals(1)[REQUESTS] == 17, f"after {stores} stores"
            assert table.generation(1) in {2, 3}
            begin(memory, 4)  # the supervisor counts on
            assert table.totals(1)[REQUESTS] == 17, f"after {stores} stores and the next life"
            assert table.generation(1) == 4
            stores += 1
        else:
            break
    assert stores > 2 * GENERATION + 40
