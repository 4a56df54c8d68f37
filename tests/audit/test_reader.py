"""The journal is read while it is written, rotated and torn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from appliance.audit.entry import Entry, Resource, line
from appliance.audit.journal_file import NAME, JournalFile
from appliance.audit.reader import LINE_BYTES_MAX, EntryFilter, Reader
from appliance.cli.audit_log import audit_log
from appliance.clock import ManualClock


def entry(number: int, **more: object) -> Entry:
    fields = {"event": "change", "result": "done", "principal": "User:alice", "api": "CreateTopics", **more}
    return Entry(f"2026-03-01T12:00:{number:02d}.000Z", port=number + 1, **fields)  # type: ignore[arg-type]


def journal(directory: Path, *, file_bytes: int = 1000) -> JournalFile:
    return JournalFile(
        directory, file_bytes=file_bytes, files_max=100, clock=ManualClock(), complain=lambda _: None
    )


def numbers(reader: Reader) -> list[int]:
    return [each.port - 1 for each in reader.entries()]


def test_all_files_are_read_oldest_first_and_what_comes_later_too(tmp_path: Path) -> None:
    files, reader, read = journal(tmp_path), Reader(tmp_path), []
    assert numbers(reader) == []
    for number in range(50):
        files.append(line(entry(number)))
        if not number % 13:  # several rotations between two looks
            read += numbers(reader)
    read += numbers(reader)
    assert read == list(range(50))
    assert reader.skipped == 0


def test_the_reader_goes_on_when_files_went_that_it_had_not_read(tmp_path: Path) -> None:
    files, reader = journal(tmp_path), Reader(tmp_path)
    files.append(line(entry(0)))
    assert numbers(reader) == [0]
    for number in range(1, 30):
        files.append(line(entry(number)))
    for path in tmp_path.glob(f"{NAME}.*"):
        if int(path.suffix[1:]) > 2:
            path.unlink()
    read = numbers(reader)
    assert read == list(range(read[0], 30))


def test_half_a_line_is_left_out_until_it_is_whole(tmp_path: Path) -> None:
    whole = line(entry(1))
    path = tmp_path / NAME
    path.write_bytes(line(entry(0)) + whole[:20])
    reader = Reader(tmp_path)
    assert numbers(reader) == [0]
    assert numbers(reader) == []
    with path.open("ab") as file:
        file.write(whole[20:])
    assert numbers(reader) == [1]
    assert reader.skipped == 0


def test_a_torn_line_and_damage_are_skipped_and_counted(tmp_path: Path) -> None:
    damage = [b'{"time":"2026-03-0\n', b"\n", b"\xff\x00\n", b"[]\n", b"x" * (3 * LINE_BYTES_MAX) + b"\n"]
    (tmp_path / NAME).write_bytes(line(entry(0)) + b"".join(damage) + line(entry(1)))
    reader = Reader(tmp_path)
    assert numbers(reader) == [0, 1]
    assert reader.skipped == len(damage)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (EntryFilter(), [0, 1, 2]),
        (EntryFilter(events=frozenset({"refusal"})), [1]),
        (EntryFilter(results=frozenset({"done"})), [0, 2]),
        (EntryFilter(principals=frozenset({"User:bob"})), [1]),
        (EntryFilter(hosts=frozenset({"::1"})), [2]),
        (EntryFilter(apis=frozenset({"produce"})), [1]),
        (EntryFilter(resource="orders"), [1]),
        (EntryFilter(resource="ord*"), [1, 2]),
        (EntryFilter(since="2026-03-01T12:00:01.000Z"), [1, 2]),
        (EntryFilter(until="2026-03-01T12:00:01.000Z"), [0]),
    ],
)
def test_filters(wanted: EntryFilter, found: list[int]) -> None:
    entries = [
        entry(0),
        entry(
            1,
            event="refusal",
            result="denied",
            principal="User:bob",
            api="Produce",
            resources=(Resource("topic", "orders", "denied"),),
        ),
        entry(2, host="::1", resources=(Resource("topic", "ord", "done"),)),
    ]
    assert [each.port - 1 for each in entries if wanted.matches(each)] == found


def test_the_command_prints_lines_for_people_and_for_programs(tmp_path: Path) -> None:
    hostile = Resource("topic", "a\nb\x1b[2J", "failed", error="INVALID_TOPIC_EXCEPTION", code=17)
    written = [entry(0), entry(1, host="10.0.0.1", resources=(hostile,)), entry(2)]
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / NAME).write_bytes(b"".join(map(line, written)) + b"torn\n")
    run = CliRunner().invoke(audit_log, ["show", "--data-dir", str(tmp_path)], standalone_mode=False)
    assert run.stdout.splitlines()[1] == (
        "2026-03-01T12:00:01.000Z change done User:alice from 10.0.0.1 CreateTopics:"
        " topic a\\nb\\x1b[2J INVALID_TOPIC_EXCEPTION"
    )
    assert len(run.stdout.splitlines()) == 3
    assert "1 lines are no entries" in run.stderr
    run = CliRunner().invoke(
        audit_log, ["tail", "-n", "2", "--json", "--dir", str(tmp_path / "audit")], standalone_mode=False
    )
    assert [json.loads(each)["port"] for each in run.stdout.splitlines()] == [2, 3]
    run = CliRunner().invoke(
        audit_log,
        ["show", "--since", "2026-03-01T12:00:02Z", "--data-dir", str(tmp_path)],
        standalone_mode=False,
    )
    assert len(run.stdout.splitlines()) == 1
    run = CliRunner().invoke(audit_log, ["show", "--since", "yesterday", "--data-dir", str(tmp_path)])
    assert run.exit_code == 2
    assert "no time" in run.stderr
