"""What holds for every command: `--json`, a word for what it does, a question before it destroys; completion."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from appliance.cli.program import program
from tests.cli.command import appliance, environment


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, hidden ones left out, by its whole name."""

    def below(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
        if not isinstance(command, click.Group):
            yield name, command
            return
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            if not found.hidden:
                yield from below(found, f"{name} {each}".strip())

    yield from below(program, "")


ALL = dict(commands())
DESTROYS = {
    "backup prune",
    "dead-letters purge",
    "delayed cancel",
    "groups delete",
    "groups delete-offsets",
    "topics delete",
    "topics delete-records",
    "users delete",
}


@pytest.mark.parametrize("name", list(ALL))
def test_every_command_can_answer_in_json(name: str) -> None:
    assert any("--json" in each.opts for each in ALL[name].params), name


@pytest.mark.parametrize("name", list(ALL))
def test_every_command_says_what_it_does(name: str) -> None:
    assert ALL[name].help, name


@pytest.mark.parametrize("name", sorted(DESTROYS))
def test_what_destroys_asks_first(name: str) -> None:
    assert any("--yes" in each.opts for each in ALL[name].params)


@pytest.mark.parametrize(
    "arguments",
    [
        ("groups", "delete", "g"),
        ("groups", "delete-offsets", "g", "--topic", "t"),
        ("topics", "delete-records", "t", "--before", "0=1"),
        ("users", "delete", "u"),
    ],
)
def test_without_a_terminal_nothing_is_destroyed_unless_yes_is_given(arguments: tuple[str, ...]) -> None:
    refused = appliance(*arguments)
    assert refused.code == 2
    assert "without a terminal give --yes" in refused.errors


def test_version_help_and_script_in_json() -> None:
    told = json.loads(appliance("version", "--json").succeeded().text)
    assert set(told) == {"version", "build"}
    assert "Usage" in json.loads(appliance("help", "topics", "--json").succeeded().text)["help"]
    shown = json.loads(appliance("completion", "show", "fish", "--json").succeeded().text)
    assert shown["shell"] == "fish"
    assert "_APPLIANCE_COMPLETE" in shown["script"]


@pytest.mark.parametrize(
    ("shell", "place"),
    [
        ("bash", ".local/share/bash-completion/completions/appliance"),
        ("zsh", ".zfunc/_appliance"),
        ("fish", ".config/fish/completions/appliance.fish"),
    ],
)
def test_completion_is_installed_for_the_user_and_again_without_a_fault(
    tmp_path: Path, shell: str, place: str
) -> None:
    home = {"HOME": str(tmp_path), "SHELL": f"/bin/{shell}"}
    said = appliance("completion", "install", more=home).succeeded().text
    path = tmp_path / place
    assert said.startswith(f"installed {path}\n")
    assert path.read_text() + "\n" == appliance("completion", "show", shell).succeeded().text
    assert not stat.S_IMODE(path.stat().st_mode) & 0o022
    assert os.listdir(path.parent) == [path.name]
    assert json.loads(appliance("completion", "install", shell, "--json", more=home).succeeded().text) == {
        "shell": shell,
        "path": str(path),
    }


def test_completion_is_not_installed_over_a_file_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / ".config/fish/completions/appliance.fish"
    path.parent.mkdir(parents=True)
    path.write_text("mine\n")
    refused = appliance("completion", "install", "fish", more={"HOME": str(tmp_path)})
    assert refused.code == 1
    assert "remove it first" in refused.errors
    assert path.read_text() == "mine\n"
    unknown = appliance("completion", "install", more={"HOME": str(tmp_path), "SHELL": "/bin/csh"})
    assert unknown.code == 2
    assert "name the shell" in unknown.errors


def test_bash_runs_the_script_and_completes_a_command(tmp_path: Path) -> None:
    script = tmp_path / "appliance"
    script.write_text(appliance("completion", "show", "bash").succeeded().text)
    done = subprocess.run(
        ["bash", "-c", f'. "{script}"; complete -p appliance'],
        capture_output=True,
        text=True,
        check=True,
        env=environment(),
    )
    assert "_appliance_completion" in done.stdout


def test_completion_of_names_is_silent_where_no_broker_answers() -> None:
    more = {
        "_APPLIANCE_COMPLETE": "bash_complete",
        "COMP_WORDS": "appliance consume -b 127.0.0.1:1 o",
        "COMP_CWORD": "4",
    }
    done = appliance(more=more)
    assert (done.code, done.text, done.errors) == (0, "\n", "")
