"""Manual pages: one for each command, made from the commands' own help, in roff that groff reads without a warning."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from scripts import man_pages


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pages")
    man_pages.write(directory)
    return directory


def test_each_command_and_the_options_have_a_page(pages: Path) -> None:
    names = {path.name for path in pages.iterdir()}
    assert names >= {"appliance.1", "appliance-serve.1", "appliance-topics-create.1", "appliance.toml.5"}
    above = (pages / "appliance.1").read_text()
    assert "appliance\\-audit\\-log" in above
    assert "\\-\\-ephemeral" in (pages / "appliance-serve.1").read_text()
    assert "\\-\\-scratch" not in (pages / "appliance-serve.1").read_text()
    options = (pages / "appliance.toml.5").read_text()
    assert "max.connections.per.ip" in options
    assert "socket.listen.backlog.size\\fP = 1024" in options
    assert "durability\\fP = page\\-cache" in options
    assert "log.retention.hours" in options


def test_a_line_that_looks_like_a_request_of_roff_is_text() -> None:
    assert (
        man_pages.escaped(".deleted files\n'quoted' a-b \\n") == "\\&.deleted files\n\\&'quoted' a\\-b \\en"
    )


def test_groff_finds_nothing_wrong(pages: Path) -> None:
    files = sorted(map(str, pages.iterdir()))
    read = subprocess.run(
        ["groff", "-man", "-Tutf8", "-K", "utf8", "-ww", "-z", *files],
        capture_output=True,
        text=True,
        check=True,
    )
    wrong = [
        line
        for line in read.stderr.splitlines()
        if "cannot break line" not in line and "can't break" not in line
    ]
    assert wrong == []
