"""Tables of commands: for tools in a pipe, and for people on a terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.cli.completing import is_plain
from appliance.cli.output import TerminalSink, plain, terminal_json

ROOT = Path(__file__).parents[2]
MANY = 120_000
PROGRAM = """
import sys, time
from appliance.cli.output import print_table
rows = [(f"topic-{n}", n % 64, None if n % 5 else "x" * (n % 40), n) for n in range(ROWS)]
print_table(("TOPIC", "PARTITION", "NOTE", "END"), rows, right=("PARTITION", "END"))
print(time.process_time(), file=sys.stderr)
"""


def run(rows: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("ROWS", str(rows))],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )


def test_a_table_of_all_partitions_of_a_large_host_takes_seconds() -> None:
    """rich took a minute for 120,000 rows. Counted in processor time, so that a busy machine does not matter."""
    done = run(MANY)
    assert float(done.stderr) < 10
    lines = done.stdout.splitlines()
    assert len(lines) == MANY + 1
    assert lines[0].split() == ["TOPIC", "PARTITION", "NOTE", "END"]
    ends = [line.rstrip() for line in lines]
    assert {len(line) for line in ends} == {len(lines[0])}, "the last column is aligned to the right"
    assert [line.split()[-1] for line in lines[1:]] == [str(number) for number in range(MANY)]


def test_a_reader_that_has_seen_enough_ends_the_table() -> None:
    """`appliance partitions | head`: the rest is not written, and nothing is held of it."""
    program = PROGRAM.replace("ROWS", str(MANY))
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().split()[0] == b"TOPIC"
        process.stdout.close()
        assert process.wait(60) != 0
        assert process.stderr is not None
        assert b"BrokenPipeError" in process.stderr.read()


def test_on_a_terminal_cells_are_folded_to_its_width_and_a_long_table_is_not() -> None:
    for rows, is_folded in ((20, True), (1_000, False)):
        program = PROGRAM.replace("ROWS", str(rows)).replace("n % 40", "300")
        leader, follower = pty.openpty()
        with subprocess.Popen(
            [sys.executable, "-c", program],
            stdout=follower,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=os.environ | {"COLUMNS": "80", "TERM": "dumb"},
        ) as process:
            os.close(follower)
            shown = b""
            try:
                while part := os.read(leader, 1 << 16):
                    shown += part
            except OSError:
                pass  # the end of a terminal
            assert process.wait(60) == 0
        os.close(leader)
        longest = max(len(line.rstrip()) for line in shown.decode().splitlines())
        assert (longest <= 80) == is_folded


def test_a_name_that_a_client_chose_neither_steers_the_terminal_nor_adds_a_row() -> None:
    assert plain("g\x1b[2J\nother\x9b1m\u202e") == "g\\x1b[2J\\nother\\x9b1m\\u202e"
    assert plain("Zoë 日本") == "Zoë 日本"


def test_only_names_that_a_shell_takes_as_one_word_are_completed() -> None:
    assert all(map(is_plain, ("orders", "a.b-c_d", "Zoë", "__consumer_offsets")))
    assert not any(map(is_plain, ("$(reboot)", "a;b", "a b", "a\nplain,b", "--yes", "`x`", "")))


HOSTILE = {"a": "\x9b2J\u202e\x7f\x1b]0;owned\x07 Zoë 日本 \U000e0001", "list": [1, None, "\n"]}


def test_json_on_a_terminal_has_escapes_for_what_would_control_it() -> None:
    for indent in (None, 2):
        text = json.dumps(HOSTILE, ensure_ascii=False, indent=indent)
        shown = terminal_json(text)
        assert json.loads(shown) == HOSTILE
        assert all(map(str.isprintable, shown.split("\n")))
        assert "Zoë 日本" in shown
        assert shown.count("\n") == text.count("\n")


def test_records_as_json_on_a_terminal_are_json_with_escapes() -> None:
    terminal = io.BytesIO()
    TerminalSink(terminal, as_json=True).write(json.dumps(HOSTILE, ensure_ascii=False).encode() + b"\n")
    shown = terminal.getvalue().decode()
    assert json.loads(shown) == HOSTILE
    assert shown.endswith("\n")
    assert shown[:-1].isprintable()


@pytest.mark.parametrize(
    "call",
    ["print_json(names)", "say(' '.join(names))", "Outcomes(as_json=False).done({}, 'done', names[0])"],
)
def test_names_do_not_control_a_terminal(call: str) -> None:
    program = (
        "from appliance.cli.output import print_json, say; from appliance.cli.outcomes import Outcomes;"
        f" names = ['group\\x9b2J\\u202e\\x1b[31m']; {call}"
    )
    leader, follower = pty.openpty()
    done = subprocess.run([sys.executable, "-c", program], stdout=follower, cwd=ROOT, check=True)
    os.close(follower)
    shown = os.read(leader, 1 << 16).decode()
    os.close(leader)
    assert done.returncode == 0
    assert "group" in shown
    assert shown.replace("\r\n", "").isprintable()
