"""`appliance completion`: install and show: what makes a shell complete commands, flags, topics and groups."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import click

from appliance.cli.output import json_option, print_json
from appliance.cli.program import COMPLETE_VARIABLE, program
from appliance.errors import OperatorFault

SHELLS: Final = ("bash", "zsh", "fish")

_AFTER: Final = {
    "bash": "It works in the next shell, if the package bash-completion is installed.",
    "zsh": "Write `fpath=({directory} $fpath)` before `compinit` in ~/.zshrc, unless it is there. It works in the next"
    " shell.",
    "fish": "It works in the next shell.",
}


@click.group(short_help="Let the shell complete commands and names.")
def completion() -> None:
    """Let the shell complete commands, flags, and the names of topics and groups.

    The names come from the broker of --bootstrap or $APPLIANCE_BOOTSTRAP.
    """


@completion.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@json_option
def install(*, shell: str | None, as_json: bool) -> None:
    """Install the script for SHELL, by default the login shell, for this user."""
    shell = shell or _login_shell()
    path = script_path(shell)
    try:
        there = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if there and COMPLETE_VARIABLE not in there:
            raise OperatorFault(f"{path}: this file is not from this command; remove it first")
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        unfinished.write_text(script(shell), encoding="utf-8")
        unfinished.replace(path)
    except OSError as fault:
        raise OperatorFault(f"{fault.filename or path}: {fault.strerror}") from None
    if as_json:
        print_json({"shell": shell, "path": str(path)})
        return
    click.echo(f"installed {path}")
    click.echo(_AFTER[shell].format(directory=path.parent))


@completion.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@json_option
def show(*, shell: str | None, as_json: bool) -> None:
    """Print the script for SHELL, by default the login shell."""
    _show(shell or _login_shell(), as_json=as_json)


def _show(shell: str, *, as_json: bool = False) -> None:
    if as_json:
        print_json({"shell": shell, "script": script(shell)})
    else:
        click.echo(script(shell))


def _named(shell: str) -> click.Command:
    """`appliance completion bash`, which other tools have taught people."""
    return click.Command(shell, callback=lambda: _show(shell), hidden=True, short_help=f"As `show {shell}`.")


for _shell in SHELLS:
    completion.add_command(_named(_shell))


def script(shell: str) -> str:
    """Return what a shell reads."""
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None, "click knows the three"
    return complete(program, {}, "appliance", COMPLETE_VARIABLE).source()


def script_path(shell: str) -> Path:
    """Return where a shell looks for the script of a command of this user."""
    home = Path.home()
    if shell == "bash":
        data = os.environ.get("XDG_DATA_HOME") or home / ".local/share"
        own = os.environ.get("BASH_COMPLETION_USER_DIR") or Path(data) / "bash-completion"
        return Path(own) / "completions/appliance"
    if shell == "zsh":
        return Path(os.environ.get("ZDOTDIR") or home) / ".zfunc/_appliance"
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish/completions/appliance.fish"


def _login_shell() -> str:
    """Return the shell of $SHELL.

    Raises:
        click.UsageError: it is none of the three.
    """
    shell = Path(os.environ.get("SHELL", "")).name
    if shell not in SHELLS:
        raise click.UsageError(f"name the shell: {', '.join(SHELLS)}")
    return shell
