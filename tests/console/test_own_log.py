"""The page of logs merges what the processes keep in shared memory with what the supervisor sends."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from appliance.console.own_log import SUPERVISORS, SUPERVISORS_MAX, OwnLog, positions
from appliance.ipc.line_ring import PlacedLine


class Table:
    """Lines of two processes."""

    def __init__(self) -> None:
        self.kept: list[list[PlacedLine]] = [[], []]

    def lines(self, row: int) -> list[PlacedLine]:
        return self.kept[row]


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.fixture
def log(table: Table) -> OwnLog:
    attachment, wiring = SimpleNamespace(process_table=table), SimpleNamespace(planned=(0, 1))
    return OwnLog(attachment, wiring)  # type: ignore[arg-type]


def at(second: int, text: str) -> str:
    return f"2026-11-27T10:00:{second:02}.000Z WARNING {text}"


def test_lines_of_all_are_in_the_order_of_time(log: OwnLog, table: Table) -> None:
    table.kept[0].append(PlacedLine(50, at(1, "netproc 0: one")))
    table.kept[1].append(PlacedLine(50, at(3, "ioproc 0.0: three")))
    log.add_supervisors(1, at(2, "supervisor: two: with a colon"))
    found = log.lines()
    assert [(each.process, each.text) for each in found] == [
        ("netproc 0", "one"),
        ("supervisor", "two: with a colon"),
        ("ioproc 0.0", "three"),
    ]
    assert positions(found) == {0: 50, 1: 50, SUPERVISORS: 1}


def test_a_stream_goes_on_behind_what_it_has_seen(log: OwnLog) -> None:
    log.add_supervisors(1, at(1, "supervisor: one"))
    seen = positions(log.lines())
    assert log.lines(behind=seen) == []
    log.add_supervisors(2, at(1, "supervisor: two"))
    assert [each.text for each in log.lines(behind=seen)] == ["two"]


def test_lines_of_the_supervisor_are_bounded_and_others_are_left_out(log: OwnLog) -> None:
    log.add_supervisors(1, "no line")
    for position in range(2, SUPERVISORS_MAX * 2):
        log.add_supervisors(position, at(1, f"supervisor: {position}"))
    found = log.lines()
    assert len(found) == SUPERVISORS_MAX
    assert found[-1].text == str(SUPERVISORS_MAX * 2 - 1)
