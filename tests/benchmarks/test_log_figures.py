"""The pages of the log by itself are read again, so that the next one is compared with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import log_figures, machine
from benchmarks.guard import fallen, told
from benchmarks.log_figures import PARTS, kept_pages, rows
from benchmarks.machine import Patience
from benchmarks.results import BARE, OURS

HEAD = "# The log by itself\n\npure build; cores 2, processor P, memory_gib 8. One run, wall time{began}.\n"
BODY = """
## Append, beside CRC-32C and one `pwrite` of the same bytes

```
append                                             µs    bare µs    ours µs    GB/s
1 KiB, one record                                {append}       {bare}       4.11    0.18

lookup                                             µs
read, at the end (empty)                         0.26
```

## Compaction of a million keys

```
252 MB became 110 MB in 1 rounds, 5.4 s: {speed} MB/s, 20.9 CPU s/GB; peak +38 MiB, of it the map 32 MiB
```
"""


def text(*, append: float = 6.0, bare: float = 2.0, speed: int = 50, began: str = "") -> str:
    return HEAD.format(began=f"; began {began}" if began else "") + BODY.format(
        append=append, bare=bare, speed=speed
    )


def test_every_part_of_the_newest_kept_page_has_rows() -> None:
    found = {row.figure.title.partition(",")[0] for row in rows(kept_pages()[-1].read_text())}
    assert found == {title.partition(",")[0].partition(":")[0] for title, _ in PARTS}


def test_a_line_becomes_a_row_with_what_the_bare_operation_took_beside_it() -> None:
    made = {row.figure.title: row for row in rows(text())}
    append = made["Append, 1 KiB, one record"]
    assert (append.values[OURS].median, append.values[BARE].median, append.ratios[BARE]) == (6.0, 2.0, 3.0)
    assert made["Compaction of a million keys, speed"].values[OURS].median == 50.0


def test_what_fell_since_the_last_page_is_named() -> None:
    before = rows(text())
    assert [fall.row.figure.title for fall in fallen(rows(text(speed=30)), before)] == [
        "Compaction of a million keys, speed"
    ]
    assert "None of 5 rows fell" in told(rows(text(speed=45)), before, since="before")


def test_a_slower_machine_is_no_fall_where_the_bare_operation_slowed_as_much() -> None:
    assert fallen(rows(text(append=12.0, bare=4.0)), rows(text())) == []
    assert len(fallen(rows(text(append=12.0)), rows(text()))) == 1


def test_pages_of_one_day_stand_in_the_order_in_which_they_began(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(log_figures, "RESULTS", tmp_path)
    for name, began in (
        ("2026-01-02-aaa", "2026-01-02T12:00:00+00:00"),
        ("2026-01-02-bbb", "2026-01-02T09:00:00+00:00"),
        ("2026-01-02-ccc", ""),
        ("2026-01-01-ddd", "2026-01-01T23:00:00+00:00"),
    ):
        (tmp_path / f"{name}-log.md").write_text(text(began=began))
    assert [page.name[11:14] for page in kept_pages()] == ["ddd", "ccc", "bbb", "aaa"]


def test_a_part_beside_which_others_used_the_machine_is_void_and_its_page_not_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nobody_is_below = -1.0
    monkeypatch.setattr(log_figures, "RESULTS", tmp_path / "kept")
    monkeypatch.setattr(log_figures, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(machine, "Patience", lambda: Patience(case_seconds=0.0))
    path, failed = log_figures.measure(busy_limit=nobody_is_below)
    assert failed
    assert path.parent == tmp_path / "cache" / "results"
    assert path.read_text().count("void: the machine was busy") == len(PARTS)
    assert not list(kept_pages())
