"""`appliance help`, `version`, `completion` and `ls`: commands about the commands."""

from __future__ import annotations

from typing import Final

import click

from appliance.cli.program import program, version_text
from appliance.cli.topics import list_topics

SHELLS: Final = ("bash", "zsh", "fish")
COMPLETE_VARIABLE: Final = "_APPLIANCE_COMPLETE"


@click.command(name="help", short_help="Show the help of a command.")
@click.argument("names", metavar="[COMMAND...]", nargs=-1)
def show_help(*, names: tuple[str, ...]) -> None:
    """Show the help of a command, or of all commands."""
    command: click.Command = program
    context = click.Context(program, info_name="appliance", **program.context_settings)
    for name in names:
        found = command.get_command(context, name) if isinstance(command, click.Group) else None
        if found is None:
            raise click.UsageError(f"no such command: {' '.join(names)!r}")
        command = found
        context = click.Context(command, info_name=found.name, parent=context)
    click.echo(command.get_help(context))


@click.command(short_help="Show the version.")
def version() -> None:
    """Show the version and whether this build is compiled."""
    click.echo(version_text())


@click.command(short_help="Print a script for shell completion.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(*, shell: str) -> None:
    """Print a script that lets SHELL complete commands and flags.

    \b
    bash: appliance completion bash > ~/.local/share/bash-completion/completions/appliance
    zsh:  appliance completion zsh > "${fpath[1]}/_appliance"
    fish: appliance completion fish > ~/.config/fish/completions/appliance.fish
    """
    from click.shell_completion import get_completion_class

    complete = get_completion_class(shell)
    assert complete is not None, "click knows the three"
    click.echo(complete(program, {}, "appliance", COMPLETE_VARIABLE).source())


ls = click.Command(
    "ls",
    callback=list_topics.callback,
    params=list_topics.params,
    help=list_topics.help,
    short_help="List the topics.",
)
"""`appliance ls`, for those who try it first."""
