"""What a page tells a reader to paste works, line by line and in that order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pasted import Command, Terminal, commands_of

ROOT = Path(__file__).parent.parent.parent
PAGES = ("README.md", "docs/five-minutes.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_works_when_the_page_is_pasted_in_order(page: str, tmp_path: Path) -> None:
    commands = commands_of((ROOT / page).read_text())
    assert len(commands) > 5
    terminal = Terminal(tmp_path)
    try:
        for command in commands:
            terminal.run(command)
    finally:
        terminal.close()


def test_blocks_of_both_kinds_are_read_with_what_they_print() -> None:
    shell = "```sh\nfirst |\n    second  # note\n# only a note\nthird\n```\n"
    console = "```console\n$ echo a\na\n```\n"
    page = f"text\n{shell}more text\n{console}```python\nno\n```\n"
    assert commands_of(page) == [
        Command("first |\n    second  # note"),
        Command("third"),
        Command("echo a", ["a"]),
    ]


def test_a_command_that_fails_or_prints_something_else_than_its_page_says_is_found(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.run(Command("echo a", ["a"]))
    with pytest.raises(AssertionError, match="echo a"):
        terminal.run(Command("echo a", ["b"]))
    with pytest.raises(AssertionError, match="ended with 1"):
        terminal.run(Command("false"))
